"""An experiment as a flow: `rulka experiment`, when no other run is at work in this folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from flows.pipeline import HOUR_S, Hours, name_of_this_run
from flows.process import CommandError, run_in_group
from flows.shown import show_link
from flows.turns import our_turn
from rulka.errors import UserError


def _name_of_run() -> str:
    return f"{Path(flow_run.parameters['file']).stem}: {(flow_run.name or '').rpartition(': ')[2]}"


@flow(name="rulka", flow_run_name=_name_of_run)
def experiment(
    file: str,
    processes: Annotated[int, Field(ge=1, le=64)] = 1,
    page: str | None = None,
    timeout_h: Hours = 24.0,
) -> State:
    """Does what is left to do of an experiment; started again after a crash or a cancellation, it goes on.

    Args:
        file: of the experiment, such as experiments/sight.yaml.
        processes: stages that may run at once, 1 to 64.
        page: Markdown file to write, with a table, curves and every run; none where it is left out.
        timeout_h: hours after which it is ended; waiting for another run does not count.
    """
    log = get_run_logger()
    command = [sys.executable, "-m", "rulka.cli", "experiment", file, "--processes", str(processes)]
    command += [] if page is None else ["--page", page]
    try:
        with our_turn(name_of_this_run(), log.info):
            show_link("experiment-curves", "runs", "Learning curves of its trainings over each other", log.warning)
            lines = run_in_group(command, log.info, timeout_h * HOUR_S)
    except CommandError as error:
        reasons = [line for line in error.lines if line.startswith("error: ")]
        return Failed(message="\n".join([f"{file} did not come to its end: {error}", *reasons]))
    except UserError as error:
        return Failed(message=error.for_people())
    return Completed(message="\n".join(line for line in lines if line.startswith("|")))
