"""The pages and what they ask for, as a Starlette application; served to this machine only."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rulka.dashboard import datasets, history, laps, origins
from rulka.dashboard.asking import Problem, Remembered, ask
from rulka.dashboard.events import Watcher
from rulka.dashboard.runs import AXES, Runs
from rulka.dashboard.stages import Pipeline, recorded_stages, stages
from rulka.errors import UserError
from rulka.folders import EVALUATION, METRICS_FILE, REPORT_PAGE, VIDEO_FILE
from rulka.ports import check_port
from rulka.report import words

if TYPE_CHECKING:
    from rulka.dashboard.agents import Agents

HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
"""What a browser may call this machine: a page whose own name was made to point here is refused (DNS rebinding)."""
HERE = Path(__file__).parent
REPORT_STYLE = Path(words.__file__).parent / "template" / "page.css"
PAGES = {
    "/": "Overview",
    "/runs": "Training",
    "/live": "Live",
    "/replay": "Replay",
    "/nights": "Nights",
    "/data": "Data",
    "/origins": "Origins",
}
HEADERS = {
    # Nothing is fetched from anywhere else, whatever a name in a recording says; plotly writes styles into its charts.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
FOR_LONG = "max-age=31536000, immutable"
"""How long a browser may keep what has its version in its address."""
ASK_STAGES_S, ASK_AGENTS_S = 3.0, 10.0
"""How long an answer holds, for all pages."""


class PortError(UserError):
    """The port for the pages is taken."""


class MissingScriptError(UserError):
    """The script that draws charts is not installed."""


def open_port(port: int) -> socket.socket:
    """Returns a socket of this machine for `serve`.

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


def make_server(pipeline: Pipeline, runs: Runs | None = None) -> uvicorn.Server:
    """Returns a server of the pages, for `run([socket])`, which says nothing on the terminal.

    Args:
        pipeline: whom to ask about it.
        runs: trainings to show; those of this project when left out.
    """
    ending: list[uvicorn.Server] = []
    app = make_app(pipeline, runs, lambda: any(server.should_exit for server in ending))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    ending.append(server)
    return server


def make_app(pipeline: Pipeline, runs: Runs | None = None, is_ending: Callable[[], bool] = lambda: False) -> Starlette:
    """Returns the application.

    Args:
        pipeline: whom to ask about it.
        runs: trainings to show; those of this project when left out.
        is_ending: whether the server is about to end, which listeners shall not hold up.

    Raises:
        MissingScriptError: if plotly is not installed.
    """
    pages = Pages(pipeline, runs or Runs(), is_ending)
    routes = [
        Route("/", pages.overview),
        Route("/part/stages", pages.stages),
        Route("/part/results", pages.results),
        Route("/part/agents", pages.agents),
        Route("/part/frames", pages.frames),
        Route("/runs", pages.runs),
        Route("/curves.json", pages.curves),
        Route("/live", pages.live),
        Route("/run.json", pages.run),
        Route("/events", pages.events),
        Route("/replay", pages.replay),
        Route("/laps.json", pages.laps),
        Route("/nights", pages.nights),
        Route("/nights.json", pages.paces),
        Route("/records/{uid}", pages.record),
        Route("/data", pages.data),
        Route("/pictures/{name}", pages.picture),
        Route("/origins", pages.origins),
        Route("/evaluation/{name}", pages.evaluation_file),
        Route("/static/plotly.js", pages.plotly),
        Route("/static/report.css", pages.report_css),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(_Headers)],
        exception_handlers={HTTPException: pages.http_error, UserError: pages.user_error},
    )
    app.state.watcher = pages.watcher
    return app


class _Headers:
    """Adds `HEADERS` to answers that do not say otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in known)]
            await send(message)

        await self._app(scope, receive, send_on if scope["type"] == "http" else send)


class Pages:
    """Answers to requests. Those that read files are plain functions, which Starlette calls in threads.

    Args:
        pipeline: whom to ask about it.
        runs: trainings to show.
        is_ending: whether the server is about to end.
    """

    def __init__(self, pipeline: Pipeline, runs: Runs, is_ending: Callable[[], bool]) -> None:
        self._runs, self._script = runs, plotly_file()
        self.watcher = Watcher(runs, is_ending)
        self._stages = Remembered(lambda: ask(lambda: stages(pipeline)), ASK_STAGES_S)
        self._agents = Remembered(_agents, ASK_AGENTS_S)
        self._frames = Remembered(lambda: ask(_frames), ASK_AGENTS_S)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "template"),
            autoescape=True,  # names of tracks and players come from files of strangers
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {
            "seconds": words.seconds,
            "duration": words.duration,
            "memory": words.memory,
            "moment": moment,
            "size": size,
        }
        self._templates.globals |= {"pages": PAGES, "plotly_version": version("plotly"), "project": Path.cwd().name}

    # Pages

    def overview(self, _: Request) -> Response:
        """What runs, how the stages stand, what came of them."""
        return self._page("overview.html", "/", stages=ask(recorded_stages))

    def stages(self, _: Request) -> Response:
        """How the stages stand, after DVC has been asked."""
        return self._part("part_stages.html", stages=self._stages())

    def results(self, _: Request) -> Response:
        """What the last evaluation found."""
        return self._part("part_results.html", results=ask(last_evaluation))

    def runs(self, _: Request) -> Response:
        """Learning curves of all trainings."""
        logs = ask(self._runs.logs)
        rows = [self._row(log) for log in logs.value or ()]
        names = ask(self._runs.names).value or []
        return self._page("runs.html", "/runs", rows=rows, names=names, axes=AXES, problem=logs.problem)

    def live(self, request: Request) -> Response:
        """Cars and numbers of one training."""
        key = request.query_params.get("run", "")
        shown = ask(lambda: self._runs.log(key))
        return self._page("live.html", "/live", shown=shown, logs=ask(self._runs.logs).value or [])

    def replay(self, _: Request) -> Response:
        """Laps driven side by side on one track."""
        found = ask(lambda: laps.tracks_of(laps.known_laps()))
        return self._page("replay.html", "/replay", tracks=found.value or {}, problem=found.problem)

    def nights(self, _: Request) -> Response:
        """The nightly evaluations."""
        return self._page(
            "nights.html", "/nights", nights=ask(history.nights), records=ask(history.records).value or {}
        )

    def data(self, _: Request) -> Response:
        """What there is to learn from."""
        return self._page("data.html", "/data", races=ask(datasets.races), pictures=datasets.pictures())

    def frames(self, _: Request) -> Response:
        """What the frame dataset holds."""
        return self._part("part_frames.html", frames=self._frames())

    def origins(self, _: Request) -> Response:
        """Where results come from."""
        return self._page("origins.html", "/origins", chain=ask(origins.chain))

    def agents(self, _: Request) -> Response:
        """What agents, and what they were made of, say of themselves."""
        return self._part("part_agents.html", agents=self._agents())

    # What they ask for

    def curves(self, request: Request) -> Response:
        """One number of all trainings."""
        metric, axis = (request.query_params.get(name, "") for name in ("metric", "axis"))
        if axis not in AXES:
            raise HTTPException(400, f"axis is one of {', '.join(AXES)}")
        return JSONResponse(self._runs.curves(metric, axis))

    def run(self, request: Request) -> Response:
        """All of one training."""
        return JSONResponse(self._runs.snapshot(request.query_params.get("run", "")))

    def laps(self, request: Request) -> Response:
        """All laps on one track."""
        return JSONResponse(laps.replay(request.query_params.get("track", "")))

    def paces(self, _: Request) -> Response:
        """The pace of all nights."""
        return JSONResponse(history.paces())

    def record(self, request: Request) -> Response:
        """The film of the fastest race of all nights on a track."""
        return _file(history.record_file(request.path_params["uid"]), "no record was filmed there")

    def picture(self, request: Request) -> Response:
        """A picture that a stage left beside its data."""
        name = request.path_params["name"]
        return _file(datasets.picture_file(name), f"there is no picture {name}")

    async def events(self, _: Request) -> Response:
        """What pages are told without asking."""
        return StreamingResponse(self.watcher.listen(), media_type="text/event-stream")

    def evaluation_file(self, request: Request) -> Response:
        """Report and video of the last evaluation."""
        name = request.path_params["name"]
        if name not in (REPORT_PAGE, VIDEO_FILE) or not (EVALUATION / name).is_file():
            raise HTTPException(404, f"{EVALUATION.as_posix()} holds no {name}")
        # The report has its pictures and its style in itself.
        own = "default-src 'none'; img-src data:; media-src data: 'self'; style-src 'unsafe-inline'"
        return FileResponse(EVALUATION / name, headers={"Content-Security-Policy": own})

    async def plotly(self, _: Request) -> Response:
        """The script that draws charts, out of its wheel."""
        return FileResponse(self._script, headers={"Cache-Control": FOR_LONG})

    async def report_css(self, _: Request) -> Response:
        """The look of the report, which that of the pages builds on."""
        return FileResponse(REPORT_STYLE, media_type="text/css")

    # What goes wrong

    def http_error(self, request: Request, error: Exception) -> Response:
        """A page that there is not, or a request that makes no sense."""
        assert isinstance(error, HTTPException)
        text = f"there is no page {request.url.path}" if error.detail == "Not Found" else error.detail
        return self._problem(request, Problem(text), error.status_code)

    def user_error(self, request: Request, error: Exception) -> Response:
        """Something that a person can act on."""
        assert isinstance(error, UserError)
        return self._problem(request, Problem(str(error), error.hint), 404)

    def _problem(self, request: Request, problem: Problem, status: int) -> Response:
        if request.url.path.endswith(".json"):
            return JSONResponse(problem._asdict(), status)
        return self._page("problem.html", "", status, problem=problem)

    def _row(self, log: Any) -> dict[str, Any]:
        metrics = self._runs.metrics(log)
        return {
            "log": log,
            "latest": metrics.latest,
            "is_running": log.key in {each.key for each in self._runs.running()},
            "num_damaged": metrics.num_damaged,
        }

    def _page(self, template: str, path: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(path=path, **values), status)

    def _part(self, template: str, **values: Any) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(**values))


def _file(path: Path | None, missing: str) -> Response:
    if path is None:
        raise HTTPException(404, missing)
    return FileResponse(path)


def _agents() -> Agents:
    """Imports torch at the first question alone: the server is there within a second, and most pages need none."""
    from rulka.dashboard.agents import agents

    return agents()


def _frames() -> dict[str, Any] | None:
    """Imports torch likewise."""
    from rulka.dashboard.frames import frames

    return frames()


def plotly_file() -> Path:
    """Returns plotly's script, which its wheel brings.

    Raises:
        MissingScriptError: if it is not installed.
    """
    spec = find_spec("plotly")  # not imported: it would take half a second, and only its script is of use
    for folder in () if spec is None else spec.submodule_search_locations or ():
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path
    message = "plotly, whose script draws the charts, is not installed"
    raise MissingScriptError(message, hint="`make setup` in a new .venv installs everything.")


def last_evaluation() -> dict[str, Any] | None:
    """Returns what the last evaluation found: `tracks`, see `rulka.evaluation.by_track`, and `files`; None without one.

    Raises:
        UserError: if its metrics are damaged.
    """
    path = EVALUATION / METRICS_FILE
    try:
        tracks = json.loads(path.read_bytes())["tracks"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        message = f"{path.as_posix()} is damaged: {error}"
        hint = "`dvc checkout --force evaluate` brings back DVC's copy, `dvc repro evaluate` races anew."
        raise UserError(message, hint=hint) from error
    return {"tracks": tracks, "files": [name for name in (REPORT_PAGE, VIDEO_FILE) if (EVALUATION / name).is_file()]}


def moment(at: str | float) -> str:
    """Returns a moment, ISO 8601 or seconds since 1970, in local time; what is no moment as it is."""
    try:
        when = datetime.fromtimestamp(at) if isinstance(at, int | float) else datetime.fromisoformat(at)
    except ValueError:
        return str(at)
    return (when if when.tzinfo is None else when.astimezone()).strftime("%Y-%m-%d %H:%M")


def size(num_bytes: float) -> str:
    """Returns how large something is."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
