"""Starlette application of the dashboard: HTML pages and their JSON, served on the loopback interface only."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from rulka.dashboard import history, laps
from rulka.dashboard.runs import AXES, MAIN, Runs
from rulka.machine.errors import UserError
from rulka.machine.ports import check_port
from rulka.report.formatting import templates
from rulka.stages.folders import EVALUATION, REPORT_PAGE, VIDEO_FILE

if TYPE_CHECKING:
    from rulka.dashboard.drive_page import DrivePage  # the other pages need no simulator and no video

HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
"""Accepted Host headers: a foreign name that was made to resolve to this machine is refused (DNS rebinding)."""
MAX_MESSAGE_BYTES = 1024
"""Largest message of a websocket that is taken in; what it may hold is the page's matter."""
HERE = Path(__file__).parent
PAGES = {"/runs": "Training", "/live": "Live", "/replay": "Replay", "/nights": "Nights"}
DRIVE = "/drive"
HEADERS = {
    # Blocks all foreign content, even if a name in a recording injects markup; plotly needs inline styles.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
REPORT_POLICY = "default-src 'none'; img-src data:; media-src data: 'self'; style-src 'unsafe-inline'"
"""Content-Security-Policy of the report, whose pictures and styles are embedded."""


def open_port(port: int) -> socket.socket:
    """Opens a listening socket on the loopback interface.

    Args:
        port: port to listen on; 0 takes any free one.

    Raises:
        UserError: if the port is taken, or the number is not a valid port.
    """
    check_port(port, zero_takes_any=True)
    try:
        door = socket.create_server((HOST, port))
        # Else a picture waits up to 40 ms until the browser has acknowledged the state before it. Connections inherit
        # this; asyncio sets it on sockets of a named protocol alone.
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return door
    except OSError as error:
        message = f"port {port} of this machine is taken: {error.strerror}"
        raise UserError(message, hint="Name another one with --port, or 0 for any.") from error


def make_server(runs: Runs | None = None, drive: DrivePage | None = None) -> uvicorn.Server:
    """Returns a server that prints nothing; start it with `run([socket])`. For its arguments see `make_app`."""
    config = uvicorn.Config(
        make_app(runs, drive),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=2,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,  # pictures are compressed
    )
    return uvicorn.Server(config)


def serve(
    port: int, address: str, say: Callable[[str], None], runs: Path | None = None, drive: DrivePage | None = None
) -> None:
    """Serves the dashboard until Ctrl-C.

    Args:
        port: port to listen on; 0 takes any free one.
        address: path of the page to announce.
        say: receives the URL, and what to do, as one line.
        runs: folder of the training runs to show; None shows this project's.
        drive: races of a person to add as a page; None for none.

    Raises:
        UserError: if the port is taken or not valid.
    """
    with open_port(port) as door:
        server = make_server(None if runs is None else Runs(runs, with_agents=False), drive)
        say(f"http://{HOST}:{door.getsockname()[1]}/{address}  (Ctrl-C ends)")
        server.run([door])


def make_app(runs: Runs | None = None, drive: DrivePage | None = None) -> Starlette:
    """Returns the application.

    Args:
        runs: training runs to show; None shows this project's.
        drive: races of a person to add as a page; None for none.
    """
    # plotly.js is served from plotly's wheel, the report's styles from `rulka.report`.
    static = StaticFiles(directory=HERE / "static", packages=[("plotly", "package_data"), ("rulka.report", "template")])
    runs = runs or Runs()
    pages = Pages(runs, drive)
    routes: list[BaseRoute] = [
        Route("/", lambda _: RedirectResponse("/runs")),
        Route("/runs", pages.runs),
        Route("/curves.json", pages.curves),
        Route("/live", pages.live),
        Route("/run.json", lambda request: JSONResponse(runs.snapshot(request.query_params.get("run", "")))),
        Route("/newest.json", lambda request: JSONResponse(runs.newest(request.query_params.get("run", "")))),
        Route("/replay", pages.replay),
        Route("/laps.json", lambda request: JSONResponse(laps.replay(request.query_params.get("track", "")))),
        Route("/nights", pages.nights),
        Route("/nights.json", lambda _: JSONResponse(history.paces())),
        Route("/records/{uid}", pages.record),
        Route("/evaluation/{name}", pages.evaluation_file),
        Mount("/static", static),
    ]
    if drive is not None:
        routes += [Route(DRIVE, pages.drive), WebSocketRoute(f"{DRIVE}/socket", drive.connect)]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS),
            Middleware(BaseHTTPMiddleware, dispatch=_with_headers),
        ],
        exception_handlers={HTTPException: pages.http_error, UserError: pages.user_error},
    )


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


class Pages:
    """Request handlers. They read files, so they are plain functions, which Starlette runs in threads."""

    def __init__(self, runs: Runs, drive: DrivePage | None) -> None:
        self._runs, self._drive = runs, drive
        environment = templates(HERE / "template")
        environment.filters["moment"] = moment
        environment.globals |= {"project": Path.cwd().name, "pages": PAGES, "command": "rulka dashboard"}
        if drive is not None:
            environment.globals |= {"pages": {DRIVE: "Drive", **PAGES}, "command": "rulka drive"}
        self._templates = Jinja2Templates(env=environment)

    def runs(self, request: Request) -> Response:
        """Learning curves of all training runs."""
        logs = self._runs.logs()
        rows = [(log, self._runs.metrics(log), self._runs.is_running(log)) for log in logs]
        return self._page(request, "runs.html", rows=rows, names=self._runs.names(), main=MAIN, axes=AXES)

    def live(self, request: Request) -> Response:
        """Cars and metrics of one training run."""
        logs, key = self._runs.logs(), request.query_params.get("run", "")
        return self._page(request, "live.html", shown=self._runs.log(key) if logs else None, logs=logs)

    def replay(self, request: Request) -> Response:
        """Laps driven side by side on one track."""
        return self._page(
            request,
            "replay.html",
            tracks=laps.tracks_of(laps.known_laps()),
            has_report=(EVALUATION / REPORT_PAGE).is_file(),
        )

    def nights(self, request: Request) -> Response:
        """The nightly evaluations."""
        return self._page(request, "nights.html", nights=history.nights(), records=history.records())

    def drive(self, request: Request) -> Response:
        """The driver's seat."""
        assert self._drive is not None
        return self._page(request, "drive.html", track=self._drive.track, medals=self._drive.medals)

    def curves(self, request: Request) -> Response:
        """One metric of all training runs, as JSON."""
        metric, axis = (request.query_params.get(name, "") for name in ("metric", "axis"))
        if axis not in AXES:
            raise HTTPException(400, f"axis is one of {', '.join(AXES)}")
        return JSONResponse(self._runs.curves(metric, axis))

    def record(self, request: Request) -> Response:
        """Video of the fastest race of all nights on a track."""
        path = history.record_file(request.path_params["uid"])
        if path is None:
            raise HTTPException(404, "no record was filmed there")
        return FileResponse(path)

    def evaluation_file(self, request: Request) -> Response:
        """Report and video of the last evaluation."""
        name = request.path_params["name"]
        if name not in (REPORT_PAGE, VIDEO_FILE) or not (EVALUATION / name).is_file():
            raise HTTPException(404, f"{EVALUATION.as_posix()} holds no {name}")
        return FileResponse(EVALUATION / name, headers={"Content-Security-Policy": REPORT_POLICY})

    def http_error(self, request: Request, error: Exception) -> Response:
        """Error page of an unknown path or an invalid request."""
        assert isinstance(error, HTTPException)
        text = f"there is no page {request.url.path}" if error.detail == "Not Found" else error.detail
        return self._problem(request, text, "", error.status_code)

    def user_error(self, request: Request, error: Exception) -> Response:
        """Error page of a `UserError`, with its hint."""
        assert isinstance(error, UserError)
        return self._problem(request, str(error), error.hint, 404)

    def _problem(self, request: Request, text: str, hint: str, status: int) -> Response:
        if request.url.path.endswith(".json"):
            return JSONResponse({"text": text, "hint": hint}, status)
        return self._page(request, "problem.html", status, text=text, hint=hint)

    def _page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        return self._templates.TemplateResponse(request, template, {"path": request.url.path, **values}, status)


def moment(at: str | float) -> str:
    """Formats a time, ISO 8601 or Unix seconds, in local time; returns text that does not parse unchanged."""
    try:
        when = datetime.fromtimestamp(at) if isinstance(at, int | float) else datetime.fromisoformat(at)
        return (when if when.tzinfo is None else when.astimezone()).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # no date, or one that this machine's clock cannot show
        return str(at)
