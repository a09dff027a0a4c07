"""What a run shows on Prefect's pages: how far each stage is, its numbers, links to the dashboard."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from pandas import json_normalize
from prefect.artifacts import (
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
    """Puts the numbers of a stage's outputs, and a link to its report, on the page of its run.

    Args:
        stage: its name.
        say: gets a line where the server does not take them.
    """
    with _which_may_fail(say):
        for out in (Path(path) for path in read_graph()[stage]["outs"]):
            if numbers := numbers_of(out):
                rows = [{"measure": name, "value": value} for name, value in numbers.items()]
                create_table_artifact(rows, key=f"{stage}-numbers", description=f"{out}/metrics.json")
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
    if not file.is_file():
        return {}
    (found,) = json_normalize(json.loads(file.read_text(encoding="utf-8")), max_level=1).to_dict("records")
    return {str(name): value for name, value in found.items() if isinstance(value, int | float | str)}
