"""What a run shows on Prefect's pages: how far each stage is, its numbers and pictures, links to the dashboard."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from PIL import Image
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import PrefectException

from flows.dvc import RUNNING
from rulka.folders import REPORT_PAGE
from rulka.graph import read_graph
from rulka.ports import DASHBOARD_PORT, LOOPBACK

PERIOD_S = 5.0
"""How often the server is told how far a stage is."""
PERCENT = re.compile(r"\((\d+) %\)")
"""In the lines of `rulka.progress`."""
PICTURES = ("*.png", "plots/*.png")
MAX_PIXELS = 1000
"""Pictures are kept in the database of the server, so no side of one is longer."""
NUMBERS_DEPTH = 2
WATCHED = "train"
"""The stage that the dashboard shows while it runs."""


def is_bar(line: str) -> bool:
    """Whether a line of a stage says how far it is."""
    return PERCENT.search(line) is not None


class StageProgress:
    """Tells Prefect how far a stage is, from its beginning, by the lines that DVC and it write; call it with each.

    A stage may show the progress of several pieces of work, one after another, or of none.

    Args:
        stage: its name.
        say: gets every line.
    """

    def __init__(self, stage: str, say: Callable[[str], None]) -> None:
        self._stage, self._key, self._say = stage, f"{stage}-progress", say
        self._artifact: UUID | None = None
        self._told_s, self._percent = -PERIOD_S, 0.0

    def __call__(self, line: str) -> None:
        """Hands a line on, and tells Prefect what it says of the work."""
        self._say(line)
        found = PERCENT.search(line)
        is_end = line.endswith((", done", ", stopped"))
        if line == RUNNING.format(self._stage):
            self._tell(0.0, f"{self._stage}: it has begun")
        elif found is not None and (is_end or time.monotonic() - self._told_s >= PERIOD_S):
            self._told_s = time.monotonic()
            self._tell(float(found[1]), line)

    def end(self) -> None:
        """Tells Prefect that the stage is complete, where its last line has not said so."""
        if self._percent < 100.0:
            self._tell(100.0, f"{self._stage}: done")

    def _tell(self, percent: float, text: str) -> None:
        self._percent = percent
        with _which_may_fail(self._say):
            if self._artifact is None:
                made = create_progress_artifact(percent, key=self._key, description=text)
                self._artifact = cast(UUID, made)
                if self._stage == WATCHED:
                    show_link(f"{WATCHED}-live", "live", "The cars on the track and the curves", self._say)
            else:
                update_progress_artifact(self._artifact, percent, description=text)


@contextmanager
def _which_may_fail(say: Callable[[str], None]) -> Iterator[None]:
    """A server that is away for a moment costs what would have been shown, which is said, and not the stage."""
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        say(f"not shown on Prefect's pages: {error}")


def show_results(stage: str, say: Callable[[str], None]) -> None:
    """Puts numbers and pictures of a stage's outputs on the page of its run.

    Args:
        stage: its name.
        say: gets a line where the server does not take them.
    """
    with _which_may_fail(say):
        for out in (Path(path) for path in read_graph()[stage]["outs"]):
            if numbers := numbers_of(out):
                rows = [{"measure": name, "value": value} for name, value in numbers.items()]
                create_table_artifact(rows, key=f"{stage}-numbers", description=f"{out}/metrics.json")
            for name, picture in _pictures(out):
                url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
                create_image_artifact(url, key=_key(stage, name), description=f"{out}: {name}")
            if (out / REPORT_PAGE).is_file():
                show_link(f"{stage}-report", f"{out.name}/{REPORT_PAGE}", "The report of this evaluation", say)


def show_link(key: str, page: str, text: str, say: Callable[[str], None]) -> None:
    """Puts a link to a page of `rulka dashboard` on the page of this run.

    A browser opens no file of this machine from Prefect's page, so the dashboard shows the report, too.

    Args:
        key: of the artifact: small letters, digits and dashes.
        page: path at the dashboard.
        text: of the link.
        say: gets a line where the server does not take it.
    """
    served = f"On the machine that did the work, while `rulka dashboard` runs there in `{Path.cwd()}`."
    with _which_may_fail(say):
        url = f"http://{LOOPBACK[0]}:{DASHBOARD_PORT}/{page}"
        create_link_artifact(url, link_text=text, key=key, description=served)


def show_rows(rows: list[dict[str, Any]], key: str, description: str, say: Callable[[str], None]) -> None:
    """Puts a table on the page of this run; `say` gets a line where the server does not take it."""
    with _which_may_fail(say):
        create_table_artifact(rows, key=key, description=description)


def numbers_of(out: Path) -> dict[str, float | str]:
    """Returns the numbers and words of an output's `metrics.json`, lists left out, with a dot before each inner key."""
    file = out / "metrics.json"
    return dict(_flat(json.loads(file.read_text(encoding="utf-8")), NUMBERS_DEPTH)) if file.is_file() else {}


def _flat(metrics: Mapping[str, Any], depth: int) -> Iterator[tuple[str, float | str]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping) and depth > 1:
            yield from ((f"{key}.{inner}", found) for inner, found in _flat(value, depth - 1))
        elif isinstance(value, int | float | str):
            yield key, value


def _pictures(out: Path) -> Iterator[tuple[str, bytes]]:
    """Yields name and PNG of each picture that an output has, of the main track, and of a frame of its video."""
    for file in sorted(file for pattern in PICTURES for file in out.glob(pattern)):
        with Image.open(file) as picture:
            yield file.stem, _small_png(picture)
    if (out / "tracks").is_dir():
        yield "track", _track_picture(out)
    if (video := out / "race.mp4").is_file():
        yield "race", _small_png(_middle_frame(video))


def _track_picture(races: Path) -> bytes:
    # Matplotlib and the simulator's arrays: not in a run in which nothing had changed.
    from rulka.datasets.races import load_main_track
    from rulka.report.theme import LIGHT, to_png
    from rulka.report.track_plot import track_plot

    track = load_main_track(races)
    with Image.open(BytesIO(to_png(lambda theme: track_plot(track, theme), LIGHT) or b"")) as picture:
        return _small_png(picture)


def _middle_frame(video: Path) -> Image.Image:
    import av

    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        middle = (stream.duration or 0) // 2
        container.seek(middle, stream=stream)  # to a frame before it from which it can be decoded
        return next(
            frame for frame in container.decode(stream) if (frame.pts or 0) + (frame.duration or 0) > middle
        ).to_image()


def _small_png(picture: Image.Image) -> bytes:
    small = picture.convert("RGB")
    small.thumbnail((MAX_PIXELS, MAX_PIXELS))
    file = BytesIO()
    small.save(file, "PNG", optimize=True)
    return file.getvalue()


def _key(stage: str, name: str) -> str:
    """Returns a key as Prefect wants it: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{stage}-{name}".lower())
