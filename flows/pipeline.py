"""The flow `rulka`: the stages of `dvc.yaml`, one task each. Prefect decides when, DVC decides whether."""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.process import run_in_group
from rulka.errors import UserError
from rulka.graph import read_graph
from rulka.stage import require

HOUR_S = 3600.0


@task(task_run_name="{stage}", cache_policy=NO_CACHE)
def reproduce(stage: str, force: bool, timeout_h: float) -> State:
    """Runs one stage in a process group of its own; DVC skips it when nothing it reads has changed.

    Args:
        stage: name of the stage in `dvc.yaml`.
        force: run it even if nothing has changed.
        timeout_h: hours after which the stage is ended.
    """
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", *(["--force"] if force else []), stage]
    try:
        check_inputs(stage)
        run_in_group(command, get_run_logger().info, timeout_h * HOUR_S)
    except UserError as error:
        return Failed(message=str(error))
    return Completed(message=f"{stage} is up to date")


@flow(name="rulka")
def pipeline(stages: list[str] | None = None, force: bool = False, timeout_h: float = 24.0) -> State:
    """Runs stages one after another, in the order of `dvc.yaml`.

    Args:
        stages: names of the stages to run; all when None.
        force: run them even if nothing they read has changed.
        timeout_h: hours after which a stage is ended.
    """
    for stage in chosen_stages(stages):
        state = reproduce(stage, force, timeout_h, return_state=True)
        if not state.is_completed():
            return Failed(message=f"stage {stage}: {state.message}")
    return Completed(message="every stage is up to date")


def check_inputs(stage: str) -> None:
    """Checks that what other stages write for this one exists.

    Raises:
        StageInputError: naming the stage to run first; DVC would only name the path.
    """
    graph = read_graph()
    writers = {path: writer for writer, parts in graph.items() for path in parts["outs"]}
    for path in graph[stage].get("deps", ()):
        if path in writers:
            require(Path(path), writers[path])


def chosen_stages(names: list[str] | None) -> list[str]:
    """Returns the named stages in the order of `dvc.yaml`; all of them when `names` is None.

    Raises:
        UserError: if a name is no stage.
    """
    stages = list(read_graph())
    unknown = sorted(set(names or ()) - set(stages))
    if unknown:
        message = f"no stage is called {', '.join(unknown)}; the stages are {', '.join(stages)}"
        raise UserError(message)
    return [stage for stage in stages if names is None or stage in names]
