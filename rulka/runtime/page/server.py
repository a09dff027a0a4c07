"""Serves the live page of a run, to this machine only."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rulka.errors import UserError
from rulka.ports import check_port
from rulka.runtime.live import TRACK_FILE
from rulka.runtime.page.snapshot import RunReader, track_outline
from rulka.tracks.track import load_track

HOST = "127.0.0.1"
PAGE_FILE = Path(__file__).with_name("page.html")


class PortError(UserError):
    """The port for the page is taken."""


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Returns a server for the page of the run in `folder`; `serve_forever` starts it.

    Args:
        folder: of the run.
        port: to listen on; 0 takes any.

    Raises:
        PortError: if the port is taken.
        PortNumberError: if there is no such port.
    """
    check_port(port, zero_takes_any=True)
    path = folder / TRACK_FILE
    reader = RunReader(folder, load_track(path) if path.exists() else None)
    pages: dict[str, tuple[str, Callable[[], bytes]]] = {
        "/": ("text/html; charset=utf-8", PAGE_FILE.read_bytes),
        "/track.json": ("application/json", lambda: json.dumps(track_outline(folder)).encode()),
        "/run.json": ("application/json", lambda: json.dumps(reader.snapshot()).encode()),
    }
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, pages))
    except OSError as error:
        message = f"port {port} of this machine is taken: {error.strerror}"
        raise PortError(message, hint="Name another one with --port, or 0 for any.") from error


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the known pages."""

    def __init__(self, pages: dict[str, tuple[str, Callable[[], bytes]]], *args: object) -> None:
        self._pages = pages
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        """Sends a page, or 404."""
        found = self._pages.get(self.path.split("?")[0])
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = found[0], found[1]()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: two lines a second would hide everything else."""
