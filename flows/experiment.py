"""Flow that runs `rulka experiment` in the worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from flows.pipeline import HOUR_S, Hours
from flows.process import CommandError, error_lines, run_in_group
from flows.shown import show_link


def _name_of_run() -> str:
    return f"{Path(flow_run.parameters['file']).stem}: {(flow_run.name or '').rpartition(': ')[2]}"


@flow(name="rulka", flow_run_name=_name_of_run)
def experiment(
    file: str,
    processes: Annotated[int, Field(ge=1, le=64)] = 1,
    page: str | None = None,
    timeout_h: Hours = 24.0,
) -> State:
    """Runs the unfinished part of an experiment; resumes after a crash or a cancellation.

    Args:
        file: experiment file, such as experiments/sight.yaml.
        processes: maximum number of stages that run at once, 1 to 64.
        page: Markdown file to write, with a table, curves and every run; None writes none.
        timeout_h: timeout in hours.
    """
    log = get_run_logger()
    command = [sys.executable, "-m", "rulka.cli", "experiment", file, "--processes", str(processes)]
    command += [] if page is None else ["--page", page]
    show_link("experiment-curves", "runs", "Learning curves of its trainings over each other", log.warning)
    try:
        lines = run_in_group(command, log.info, timeout_h * HOUR_S)
    except CommandError as error:
        return Failed(message="\n".join([f"{file} did not come to its end: {error}", *error_lines(error.lines)]))
    return Completed(message="\n".join(line for line in lines if line.startswith("|")))
