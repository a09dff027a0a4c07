"""The flow `rulka`: the stages of `dvc.yaml`, one task each. Prefect decides when, DVC decides whether."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from prefect import Task, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from flows.dvc import Outcome, out_of_date, reproduce_stage, upstream, wait_for_dvc
from flows.process import CommandError
from flows.shown import StageProgress, is_bar, show_results
from flows.turns import our_turn
from rulka.errors import UserError
from rulka.graph import read_graph
from rulka.stage import require

Stage = Literal["races", "capture", "pretrain", "clone", "transfer", "train", "evaluate"]
"""The stages of `dvc.yaml`, for those who start a deployment: its page lists them, and another name is refused."""
Hours = Annotated[float, Field(gt=0.0, le=168.0)]
HOUR_S = 3600.0
GOES_ON = ("pretrain", "clone", "train")
"""Stages that go on from a checkpoint: one that was killed is started once more."""
RETRY_DELAY_S = 30.0
KILLED = re.compile(r"exited with -\d+")
"""What DVC says of a stage that a signal ended."""
LAST_LINES = 15


def _was_killed(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether a stage was ended by somebody else, most often for want of memory, and not by an error of its own."""
    del task, task_run
    return state.message is not None and KILLED.search(state.message) is not None


@task(task_run_name="{stage}", cache_policy=NO_CACHE, retry_delay_seconds=RETRY_DELAY_S, retry_condition_fn=_was_killed)
def reproduce(stage: str, force: bool, timeout_h: float, is_unchanged: bool) -> State:
    """Runs one stage in a process group of its own; DVC skips it when nothing it reads has changed.

    Args:
        stage: name of the stage in `dvc.yaml`.
        force: run it even if nothing has changed.
        timeout_h: hours after which the stage is ended.
        is_unchanged: whether DVC has just said that nothing has changed, and need not be asked again.
    """
    if is_unchanged:
        return Completed(message=f"{stage}: {Outcome.UNCHANGED}", data=Outcome.UNCHANGED)
    log = get_run_logger()
    try:
        check_inputs(stage)
        say = StageProgress(stage, log.info)
        outcome = reproduce_stage(stage, force=force, say=say, timeout_s=timeout_h * HOUR_S)
    except CommandError as error:
        return Failed(message=_what_to_do(stage, error))
    except UserError as error:
        return Failed(message=error.for_people())
    if outcome is Outcome.RAN:
        say.end()
        show_results(stage, log.warning)
    return Completed(message=f"{stage}: {outcome}", data=outcome)


def _what_to_do(stage: str, error: CommandError) -> str:
    """Returns what a stage last said, and what to type when that is mended."""
    said = _errors(error.lines)
    if not said:
        # Of a bar that was written again and again, only where it came to.
        following = [*error.lines[1:], ""]
        said = [line for line, then in zip(error.lines, following, strict=True) if not (is_bar(line) and is_bar(then))]
    said = said[-LAST_LINES:]
    goes_on = ", which goes on from its last checkpoint" if stage in GOES_ON else ""
    return "\n".join([str(error), *said, f"  Mend that, then `rulka run {stage}`{goes_on}."])


def _errors(lines: Sequence[str]) -> list[str]:
    """Returns the lines of errors that are meant for users, each with its hint, which is indented."""
    found: list[str] = []
    is_of_error = False
    for line in lines:
        is_of_error = line.startswith("error: ") or (is_of_error and line.startswith("  "))
        found += [line] if is_of_error else []
    return found


def _name_of_run() -> str:
    """Says what a run is of, for the lists of Prefect, before the name that Prefect gave it."""
    stages = flow_run.parameters.get("stages")
    return f"{', '.join(stages) if stages else 'all stages'}: {(flow_run.name or '').rpartition(': ')[2]}"


@flow(name="rulka", flow_run_name=_name_of_run)
def pipeline(stages: list[Stage] | None = None, force: bool = False, timeout_h: Hours = 24.0) -> State:
    """Runs stages one after another, in the order of `dvc.yaml`, when no other run is at work in this folder.

    Stages that are not named are not run; where they are out of date, the state at the end says so.

    Args:
        stages: names of the stages to run; all when None.
        force: run them even if nothing they read has changed.
        timeout_h: hours after which a stage is ended; more than 0, and at most a week.
    """
    log = get_run_logger()
    try:
        chosen = chosen_stages(stages)
        with our_turn(name_of_this_run(), log.info):
            # One question for all stages: a DVC for each would take a second each. It holds until a stage has run.
            wait_for_dvc(log.info)
            changed = out_of_date(chosen_stages([*chosen, *upstream(chosen)]))
            stale = [stage for stage in changed if stage not in chosen]
            if stale:
                log.warning(_stale_text(stale))
            outcomes: dict[str, Outcome] = {}
            for stage in chosen:
                run = reproduce.with_options(retries=int(stage in GOES_ON))
                holds = not force and set(outcomes.values()) <= {Outcome.UNCHANGED}
                state = run(stage, force, timeout_h, holds and stage not in changed, return_state=True)
                if not state.is_completed():
                    return Failed(message=f"stage {stage}: {state.message}")
                outcomes[stage] = cast(Outcome, state.result())
    except UserError as error:
        return Failed(message=error.for_people())
    return Completed(message=summary(outcomes, stale), data={"stages": outcomes, "stale_upstream": stale})


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


def chosen_stages(names: Sequence[str] | None) -> list[str]:
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
