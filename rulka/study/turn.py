"""One turn of one member: `python -m rulka.study.turn` in a folder that looks like the project.

It is an ordinary training run that stops at the end of the turn. It starts as its order says: from the initial agent,
or from the last checkpoint of a finished turn, the member's own or another's. Then its newest weights race.

Reads  order.json    see `Order`
       params.yaml, data/    as stage `train` does
Writes runs/train/   as stage `train` does; the last checkpoint is kept for later turns
       data/agent/   likewise
       result.json   see `Result`
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from rulka.contracts.section import Section
from rulka.contracts.stored import checked
from rulka.machine.device import use_device, weights_on_host
from rulka.machine.precision import raise_malloc_thresholds
from rulka.params import Params, read_params
from rulka.runtime.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.greedy_check import GreedyCheck, RaceOutcomes
from rulka.runtime.ranks import DivergedError
from rulka.runtime.run_lock import locked
from rulka.runtime.specs import rank_folder
from rulka.stages.folders import AGENT, AGENT_INIT, FRAMES, RACES, TRAINING_RUNS
from rulka.stages.stage import output_folder, run_stage
from rulka.training.agent_run import AgentRun, Folders

ORDER_FILE, RESULT_FILE = "order.json", "result.json"
PATIENCE_S = 90.0
"""Lock timeout: an interrupted turn in the same folder may still be writing its checkpoint."""
RecordT = TypeVar("RecordT", bound=Section)


class Order(Section):
    """Instructions for a turn, besides its parameters."""

    member: int = Field(description="Number of the member.")
    turn: int = Field(description="Number of the turn.")
    parent: int = Field(description="Member whose last turn is continued; the member itself unless it was replaced.")
    begin: str | None = Field(description="Checkpoint to continue, relative to the turn's folder; null at first.")
    values: dict[str, float] = Field(description="Values of the searched parameters.")
    races: int = Field(description="Number of greedy races at the end.")
    seed: int = Field(description="Seed of the greedy races, the same for all members.")

    @property
    def is_copied(self) -> bool:
        """True if the member was replaced by a copy of another."""
        return self.parent != self.member


class Result(Section):
    """Result of a finished turn.

    Members are compared by the mean of `scores`, which is None if the weights have become NaN or infinite.
    """

    order: Order = Field(description="Order of the turn.")
    env_steps: int = Field(default=0, description="Environment steps of all turns that led here; 0 if it diverged.")
    checkpoint: str | None = Field(default=None, description="Last checkpoint, relative to the turn's folder.")
    scores: tuple[float, ...] | None = Field(default=None, strict=False, description="Scores of the greedy races.")
    finish_rate: float = Field(default=0.0, description="Share of the greedy races that finished.")
    mean_time_s: float | None = Field(default=None, description="Mean time of the finished greedy races, in seconds.")
    diverged: str | None = Field(default=None, description="Message of the divergence; null if there was none.")

    @property
    def score(self) -> float | None:
        """Mean score of its races, m/s; None if it diverged."""
        return None if self.scores is None else float(np.mean(self.scores))


def read_record(path: Path, kind: type[RecordT]) -> RecordT:
    """Reads an order or a result.

    Raises:
        UserError: if it is damaged.
        FileNotFoundError: if it does not exist.
    """
    hint = "Remove the folder that it is in: the turn is then done anew."
    return checked(path.read_bytes(), kind, path.as_posix(), hint=hint)


def do_turn(order: Order, params: Params, folders: Folders, device: torch.device, here: Path = Path()) -> Result:
    """Runs a turn, or resumes one that was killed, and returns its result.

    Args:
        order: instructions.
        params: parameters of the turn.
        folders: input and output folders.
        device: training device.
        here: the turn's folder.

    Raises:
        CheckpointError: if the checkpoint to start from is missing or damaged.
        UserError: see `AgentRun`.
    """
    run = AgentRun(params.train.algorithm, params, folders, device)
    checkpoints = Checkpoints(run.folder)
    with locked(run.folder, PATIENCE_S):
        if order.begin is not None and not checkpoints.files():
            take_over(here / order.begin, run.folder, is_copied=order.is_copied)
        try:
            run.train()
        except DivergedError as error:
            return Result(order=order, diverged=str(error))
        with output_folder(folders.out) as out:
            run.deliver(out)
        newest = checkpoints.files()[0]
        saved = load_checkpoint(newest)
        outcomes = _race(run, saved["learner"], order)
    scores = score_races(outcomes, params.race_end.max_race_s)
    finished_s = outcomes.time_ms[outcomes.finished] / 1000.0
    return Result(
        order=order,
        env_steps=saved["run"]["env_steps"],
        checkpoint=Path(os.path.relpath(newest, here)).as_posix(),
        scores=tuple(map(float, scores)),
        finish_rate=float(outcomes.finished.mean()),
        mean_time_s=float(finished_s.mean()) if len(finished_s) else None,
    )


def take_over(checkpoint: Path, folder: Path, *, is_copied: bool) -> None:
    """Initialises a run from the checkpoint of another one.

    The run's own checkpoint is written last: a run that has one is complete, and one killed before that starts over.
    The other run's best weights and log are not copied. A replaced member starts new races from its own seed; one that
    continues resumes in the middle of its races.

    Args:
        checkpoint: last checkpoint of a finished turn, with its experience files next to it.
        folder: folder of the new run.
        is_copied: True if the checkpoint is another member's.

    Raises:
        CheckpointError: if it is missing or damaged. There is no fallback to an older one, which would be from the
            middle of a turn.
    """
    state = load_checkpoint(checkpoint)
    for rank, own in enumerate((state, *state["others"])):
        if own["experience"] is not None:
            theirs, ours = (rank_folder(each, rank) for each in (checkpoint.parent, folder))
            _copy_experience(theirs, ours, own["experience"]["names"])
        if is_copied:
            own["collectors"] = {}
    state |= {"best": [], "metrics_bytes": 0, "learning": {}, "checked": {}}
    state["run"] |= {"checked_version": -1}
    Checkpoints(folder).save(state["run"]["env_steps"], state)


def _copy_experience(theirs: Path, ours: Path, names: Mapping[int, str]) -> None:
    """Hard-links experience files, which never change; copies them if the file system cannot link."""
    source, target = ExperienceFiles(theirs, 0).folder, ExperienceFiles(ours, 0).folder
    target.mkdir(parents=True, exist_ok=True)
    for name in names.values():
        (target / name).unlink(missing_ok=True)
        try:
            os.link(source / name, target / name)
        except FileNotFoundError as error:
            message = f"{(source / name).as_posix()} is missing"
            raise CheckpointError(message, hint="It is experience that a finished turn ended with.") from error
        except OSError:
            shutil.copyfile(source / name, target / name)


def score_races(outcomes: RaceOutcomes, max_race_s: float) -> NDArray[np.float64]:
    """Returns [R] the mean speed of each race in m/s.

    An unfinished race counts as having taken `max_race_s`: it scores far below a finished one, and higher the further
    it got.
    """
    return outcomes.progress_m / np.where(outcomes.finished, outcomes.time_ms / 1000.0, max_race_s)


def _race(run: AgentRun, learned: Mapping[str, Any], order: Order) -> RaceOutcomes:
    """Runs greedy races with the weights of a learner's saved state."""
    spec = run.spec()
    learner = spec.make_learner()
    learner.load_state_dict(learned)
    actor, block = spec.make_actor(spec.train.seed, spec.device), replace(spec.block, num_cars=order.races)
    with closing(spec.make_cars(order.races, at_line=True)) as cars:
        check = GreedyCheck(cars, actor, block, lambda: None)
        return check.race(weights_on_host(learner.racer), order.seed, order.races)


def main() -> None:
    """Runs the turn of the current folder."""
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    order = read_record(Path(ORDER_FILE), Order)
    folders = Folders(agent_init=AGENT_INIT, races=RACES, frames=FRAMES, runs=TRAINING_RUNS, out=AGENT)
    result = do_turn(order, read_params(), folders, use_device())
    Path(RESULT_FILE).write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_stage(main, after_interrupt="The turn goes on from its last checkpoint.")
