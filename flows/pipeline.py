"""The flow `rulka`: the stages of `dvc.yaml`, one task each. Prefect decides when, DVC decides whether."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed

from flows.dvc import Outcome, reproduce_stage, stale_upstream
from flows.turns import our_turn
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
    try:
        check_inputs(stage)
        outcome = reproduce_stage(stage, force=force, say=get_run_logger().info, timeout_s=timeout_h * HOUR_S)
    except UserError as error:
        return Failed(message=error.for_people())
    return Completed(message=f"{stage}: {outcome}", data=outcome)


@flow(name="rulka")
def pipeline(stages: list[str] | None = None, force: bool = False, timeout_h: float = 24.0) -> State:
    """Runs stages one after another, in the order of `dvc.yaml`, when no other run is at work in this folder.

    Stages that are not named are not run; where they are out of date, the state at the end says so.

    Args:
        stages: names of the stages to run; all when None.
        force: run them even if nothing they read has changed.
        timeout_h: hours after which a stage is ended.
    """
    log = get_run_logger()
    try:
        chosen = chosen_stages(stages)
        with our_turn(name_of_this_run(), log.info):
            stale = stale_upstream(chosen)
            if stale:
                log.warning(_stale_text(stale))
            outcomes: dict[str, Outcome] = {}
            for stage in chosen:
                state = reproduce(stage, force, timeout_h, return_state=True)
                if not state.is_completed():
                    return Failed(message=f"stage {stage}: {state.message}")
                outcomes[stage] = cast(Outcome, state.result())
    except UserError as error:
        return Failed(message=error.for_people())
    return Completed(message=summary(outcomes, stale))


def summary(outcomes: Mapping[str, Outcome], stale: Sequence[str] = ()) -> str:
    """Returns what a run did as one text.

    Args:
        outcomes: what came of each stage, in the order they were run.
        stale: stages that feed them, were not run, and are out of date.
    """
    parts = [
        f"{outcome}: {', '.join(stages)}"
        for outcome in Outcome
        if (stages := [stage for stage, found in outcomes.items() if found == outcome])
    ]
    return "; ".join([*parts, *([_stale_text(stale)] if stale else [])])


def _stale_text(stale: Sequence[str]) -> str:
    what = f"stage {stale[0]} is" if len(stale) == 1 else f"stages {', '.join(stale)} are"
    return f"the input is older than it could be: {what} out of date (`dvc status` says why, `rulka run` runs all)"


def name_of_this_run() -> str:
    """Returns what those who wait for this run are told."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return "a run"
    kind = "the deployment's run" if context.flow_run.deployment_id else "`rulka run`"
    return f"{kind} {context.flow_run.name}"


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
