"""Prefect artifacts of a run: progress and metrics of each stage, links to the dashboard."""

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
from rulka.machine.ports import DASHBOARD_PORT, LOOPBACK
from rulka.stages.folders import REPORT_PAGE
from rulka.stages.graph import read_graph

PERIOD_S = 5.0
"""Minimum interval between progress updates to the server."""
PERCENT = re.compile(r"\((\d+) %\)")
"""Percentage in the lines of `rulka.machine.progress`."""
WATCHED = "train"
"""Stage that the dashboard shows live."""


def is_bar(line: str) -> bool:
    """True if a line of a stage is a progress bar."""
    return PERCENT.search(line) is not None


class StageProgress:
    """Reports a stage's progress to Prefect; call it with each line that DVC and the stage write.

    A stage may show several progress bars, one after another, or none.

    Args:
        stage: name of the stage.
        say: receives every line.
    """

    def __init__(self, stage: str, say: Callable[[str], None]) -> None:
        self._stage, self._key, self._say = stage, f"{stage}-progress", say
        self._artifact: UUID | None = None
        self._told_s, self._percent = -PERIOD_S, 0.0

    def __call__(self, line: str) -> None:
        """Forwards a line, and reports the progress in it to Prefect."""
        self._say(line)
        found = PERCENT.search(line)
        is_end = line.endswith((", done", ", stopped"))
        if line == RUNNING.format(self._stage):
            self._tell(0.0, f"{self._stage}: it has begun")
        elif found is not None and (is_end or time.monotonic() - self._told_s >= PERIOD_S):
            self._told_s = time.monotonic()
            self._tell(float(found[1]), line)

    def end(self) -> None:
        """Reports 100 % to Prefect unless already reported."""
        if self._percent < 100.0:
            self._tell(100.0, f"{self._stage}: done")

    def _tell(self, percent: float, text: str) -> None:
        self._percent = percent
        with _log_prefect_errors(self._say):
            if self._artifact is None:
                made = create_progress_artifact(percent, key=self._key, description=text)
                self._artifact = cast(UUID, made)
                if self._stage == WATCHED:
                    show_link(f"{WATCHED}-live", "live", "The cars on the track and the curves", self._say)
            else:
                update_progress_artifact(self._artifact, percent, description=text)


@contextmanager
def _log_prefect_errors(say: Callable[[str], None]) -> Iterator[None]:
    """Logs errors of Prefect's server instead of raising: the artifact is lost, the stage continues."""
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        say(f"not shown on Prefect's pages: {error}")


def show_results(stage: str, say: Callable[[str], None]) -> None:
    """Puts the metrics of a stage's outputs, and a link to its report, on the page of its run.

    Args:
        stage: name of the stage.
        say: receives a line if the server fails.
    """
    with _log_prefect_errors(say):
        for out in (Path(path) for path in read_graph()[stage]["outs"]):
            if numbers := numbers_of(out):
                rows = [{"measure": name, "value": value} for name, value in numbers.items()]
                create_table_artifact(rows, key=f"{stage}-numbers", description=f"{out}/metrics.json")
            if (out / REPORT_PAGE).is_file():
                show_link(f"{stage}-report", f"{out.name}/{REPORT_PAGE}", "The report of this evaluation", say)


def show_link(key: str, page: str, text: str, say: Callable[[str], None]) -> None:
    """Puts a link to a page of `rulka dashboard` on the page of this run.

    Browsers open no local files from Prefect's page, so the dashboard also serves the report.

    Args:
        key: key of the artifact: lower-case letters, digits and dashes.
        page: path at the dashboard.
        text: text of the link.
        say: receives a line if the server fails.
    """
    served = f"On the machine that did the work, while `rulka dashboard` runs there in `{Path.cwd()}`."
    with _log_prefect_errors(say):
        url = f"http://{LOOPBACK[0]}:{DASHBOARD_PORT}/{page}"
        create_link_artifact(url, link_text=text, key=key, description=served)


def show_rows(rows: list[dict[str, Any]], key: str, description: str, say: Callable[[str], None]) -> None:
    """Puts a table on the page of this run; `say` receives a line if the server fails."""
    with _log_prefect_errors(say):
        create_table_artifact(rows, key=key, description=description)


def numbers_of(out: Path) -> dict[str, float | str]:
    """Returns the scalars and strings of an output's `metrics.json`, nested keys joined by a dot, lists left out."""
    file = out / "metrics.json"
    if not file.is_file():
        return {}
    (found,) = json_normalize(json.loads(file.read_text(encoding="utf-8")), max_level=1).to_dict("records")
    return {str(name): value for name, value in found.items() if isinstance(value, int | float | str)}
