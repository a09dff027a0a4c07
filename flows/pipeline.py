"""The flow `rulka`: one task per stage of `dvc.yaml`. Prefect decides when a stage runs, DVC whether."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from prefect import Task, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from flows.dvc import DvcError, Outcome, changed_stages, reproduce_stage, with_upstream
from flows.process import CommandError, error_lines
from flows.shown import StageProgress, is_bar, show_results
from rulka.machine.errors import UserError
from rulka.stages.graph import read_graph

Stage = Literal["races", "capture", "pretrain", "clone", "transfer", "train", "evaluate"]
"""Stages of `dvc.yaml`: the deployment's page lists them, and Prefect rejects other names."""
Hours = Annotated[float, Field(gt=0.0, le=168.0)]
HOUR_S = 3600.0
RESUMABLE_STAGES = ("capture", "pretrain", "clone", "train")
"""Stages that resume; retried once if killed."""
RETRY_DELAY_S = 30.0
KILLED = re.compile(r"exited with -\d+")
"""DVC's message for a stage that a signal killed."""
LAST_LINES = 15


def _was_killed(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """True if a signal killed the stage (most often the OOM killer), rather than an error of its own."""
    del task, task_run
    return state.message is not None and KILLED.search(state.message) is not None


@task(task_run_name="{stage}", cache_policy=NO_CACHE, retry_delay_seconds=RETRY_DELAY_S, retry_condition_fn=_was_killed)
def reproduce(stage: str, force: bool, timeout_h: float) -> State:
    """Runs one stage in its own process group; DVC skips it if its inputs are unchanged.

    Args:
        stage: name of the stage in `dvc.yaml`.
        force: run it even if nothing has changed.
        timeout_h: timeout in hours.
    """
    log = get_run_logger()
    say = StageProgress(stage, log.info)
    try:
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
    """Returns the last output of a failed stage, and the command to rerun it."""
    said = error_lines(error.lines)
    if not said:
        # Keep only the last update of each progress bar.
        following = [*error.lines[1:], ""]
        said = [line for line, then in zip(error.lines, following, strict=True) if not (is_bar(line) and is_bar(then))]
    goes_on = ", which resumes" if stage in RESUMABLE_STAGES else ""
    return "\n".join([str(error), *said[-LAST_LINES:], f"  Mend that, then `dvc repro {stage}`{goes_on}."])


def _name_of_run() -> str:
    """Names a run in Prefect's lists: its stages, then the name that Prefect generated."""
    stages = flow_run.parameters.get("stages")
    return f"{', '.join(stages) if stages else 'all stages'}: {(flow_run.name or '').rpartition(': ')[2]}"


@flow(name="rulka", flow_run_name=_name_of_run)
def pipeline(stages: list[Stage] | None = None, force: bool = False, timeout_h: Hours = 24.0) -> State:
    """Brings stages and their upstream stages up to date, one after another, in the order of `dvc.yaml`.

    Args:
        stages: names of the stages to run; None runs all.
        force: run them and their upstream stages even if nothing has changed.
        timeout_h: timeout of each stage in hours; more than 0, at most a week (168).
    """
    outcomes: dict[str, Outcome] = {}
    try:
        chosen = with_upstream(stages or read_graph())
        try:
            # One `dvc status` for all stages: one per stage takes a second each. It is valid until a stage has run.
            changed = set(chosen) if force else changed_stages()
        except DvcError:
            changed = set(chosen)  # another DVC holds the lock: each stage waits for it, and DVC checks the stage then
    except UserError as error:
        return Failed(message=error.for_people())
    for stage in chosen:
        if stage not in changed and set(outcomes.values()) <= {Outcome.UNCHANGED}:
            outcomes[stage] = Outcome.UNCHANGED
            continue
        run = reproduce.with_options(retries=int(stage in RESUMABLE_STAGES))
        state = run(stage, force, timeout_h, return_state=True)
        if not state.is_completed():
            return Failed(message=f"stage {stage}: {state.message}")
        outcomes[stage] = cast(Outcome, state.result())
    return Completed(message=summary(outcomes))


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """Formats the outcomes in one line: each kind of outcome with its stages, in the order in which they ran."""
    return "; ".join(
        f"{outcome}: {', '.join(stages)}"
        for outcome in Outcome
        if (stages := [stage for stage, found in outcomes.items() if found == outcome])
    )
