"""Serves the live page of a run, to this machine only."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from rulka.errors import UserError
from rulka.ports import check_port
from rulka.runtime.live import TRACK_FILE
from rulka.runtime.page.snapshot import RunReader, track_outline
from rulka.tracks.track import load_track

HOST = "127.0.0.1"
PAGE_FILE = Path(__file__).with_name("page.html")
_NOT_KEPT = {"Cache-Control": "no-store"}


class PortError(UserError):
    """The port for the page is taken."""


def open_port(port: int) -> socket.socket:
    """Returns a socket of this machine for `uvicorn.Server.run`.

    Args:
        port: to listen on; 0 takes any.

    Raises:
        PortError: if the port is taken.
        PortNumberError: if there is no such port.
    """
    check_port(port, zero_takes_any=True)
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        message = f"port {port} of this machine is taken: {error.strerror}"
        raise PortError(message, hint="Name another one with --port, or 0 for any.") from error


def make_server(folder: Path) -> uvicorn.Server:
    """Returns a server for the page of the run in `folder`, which says nothing on the terminal."""
    path = folder / TRACK_FILE
    reader = RunReader(folder, load_track(path) if path.exists() else None)

    # Coroutines, so that answers are made one after another: all open pages share one reader.
    async def page(_: Request) -> Response:
        return FileResponse(PAGE_FILE, headers=_NOT_KEPT)

    async def track(_: Request) -> Response:
        return JSONResponse(track_outline(folder), headers=_NOT_KEPT)

    async def run(_: Request) -> Response:
        return JSONResponse(reader.snapshot(), headers=_NOT_KEPT)

    app = Starlette(routes=[Route("/", page), Route("/track.json", track), Route("/run.json", run)])
    # Two lines a second would hide everything else.
    return uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
