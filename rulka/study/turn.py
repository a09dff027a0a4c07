"""One turn of one member: `python -m rulka.study.turn` in a folder that looks like the project.

It is an ordinary run of the runtime that ends where the turn does. It begins as its order says: from the initial agent,
or from the checkpoint that a finished turn ended with, the member's own or another's. Then its newest weights race.

Reads  order.json    see `Order`
       params.yaml, data/    as stage `train` does
Writes runs/train/   as stage `train` does; what it ended with stays, for the turns after it
       data/agent/   likewise
       result.json   see `Result`
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from rulka.agents.precision import raise_malloc_thresholds
from rulka.device import use_device, weights_on_host
from rulka.errors import UserError
from rulka.folders import AGENT, AGENT_INIT, FRAMES, RACES, TRAINING_RUNS
from rulka.params import Params, read_params
from rulka.runtime.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from rulka.runtime.experience_files import ExperienceFiles
from rulka.runtime.greedy_check import GreedyCheck, RaceOutcomes
from rulka.runtime.ranks import DivergedError
from rulka.runtime.run_lock import locked
from rulka.runtime.specs import rank_folder
from rulka.section import Section
from rulka.stage import output_folder, run_stage
from rulka.stored import checked
from rulka.training.racing import AgentRun, Folders

ORDER_FILE, RESULT_FILE = "order.json", "result.json"
PATIENCE_S = 90.0
"""How long a turn waits for one that was interrupted, and that is still saving its work in the same folder."""
RecordT = TypeVar("RecordT", bound=Section)


class TurnFileError(UserError):
    """An order or a result cannot be read."""


class Order(Section):
    """What a turn is to do, beside its parameters."""

    member: int = Field(description="whose turn it is")
    turn: int = Field(description="which one")
    parent: int = Field(description="the member that it goes on from; itself, unless it was replaced")
    begin: str | None = Field(description="the checkpoint that it goes on from, seen from its folder; None: the first")
    values: dict[str, float] = Field(description="of the parameters that are searched")
    races: int = Field(description="greedy races at the end")
    seed: int = Field(description="of these races, the same for all members")

    @property
    def is_copied(self) -> bool:
        """Whether the member was replaced."""
        return self.parent != self.member


class Result(Section):
    """What a finished turn leaves.

    The mean of `scores` is what members are compared by; None where the weights are no numbers any more.
    """

    order: Order = Field(description="what it was to do")
    env_steps: int = Field(default=0, description="of all turns that led here; 0 where it diverged")
    checkpoint: str | None = Field(default=None, description="that it ended with, from the turn's folder")
    scores: tuple[float, ...] | None = Field(
        default=None, strict=False, description="of each greedy race; see `score_races`"
    )
    finish_rate: float = Field(default=0.0, description="of these races")
    mean_time_s: float | None = Field(default=None, description="of those that finished")
    diverged: str | None = Field(default=None, description="what was said of it where it did")

    @property
    def score(self) -> float | None:
        """The mean of its races, m/s; None where it diverged."""
        return None if self.scores is None else float(np.mean(self.scores))


def read_record(path: Path, kind: type[RecordT]) -> RecordT:
    """Reads an order or a result.

    Raises:
        TurnFileError: if it is damaged.
        FileNotFoundError: if it is not there.
    """
    hint = "Remove the folder that it is in: the turn is then done anew."
    return checked(path.read_bytes(), kind, path.as_posix(), TurnFileError, hint)


def do_turn(order: Order, params: Params, folders: Folders, device: torch.device, here: Path = Path()) -> Result:
    """Does a turn, or goes on with one that was killed, and returns what came of it.

    Args:
        order: what to do.
        params: of the turn.
        folders: where it reads and writes.
        device: where it learns.
        here: the turn's folder.

    Raises:
        CheckpointError: if what it is to begin from is damaged.
        UserError: see `AgentRun`.
    """
    run = AgentRun(params.train.algorithm, params, folders, device)
    checkpoints = Checkpoints(run.folder)
    with locked(run.folder, PATIENCE_S):
        if order.begin is not None and not checkpoints.files():
            take_over(here / order.begin, run.folder, is_copied=order.is_copied)
        try:
            run.finish()
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
    """Lets a run begin from the checkpoint of another one.

    Its own checkpoint comes last: a run that has one begins whole, and what was killed before that is done again.
    What the other run chose among its weights, and its log, stay there. A member that was replaced drives races of its
    own, by its own seed; one that goes on as it is goes on in the middle of its races.

    Args:
        checkpoint: that a finished turn ended with; its experience lies beside it.
        folder: of the run that begins.
        is_copied: whether the checkpoint is another member's.

    Raises:
        CheckpointError: if it is missing or damaged. No older one is taken in its place: that would be of the middle of
            a turn.
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
    """Copies pieces of experience, as further names of the same files where the disk can do that: they never change."""
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

    A race that did not finish counts as if it had taken the whole time that races may take: it is worth little beside
    one that did, and the more the further it came.
    """
    return outcomes.progress_m / np.where(outcomes.finished, outcomes.time_ms / 1000.0, max_race_s)


def _race(run: AgentRun, learned: Mapping[str, Any], order: Order) -> RaceOutcomes:
    """Lets the weights that a checkpoint holds race greedily."""
    spec = run.spec()
    learner = spec.make_learner()
    learner.load_state_dict(learned)
    check = GreedyCheck(
        spec.make_cars(order.races, at_line=True),
        spec.make_actor(spec.train.seed, spec.device),
        replace(spec.block, num_cars=order.races),
        lambda: None,
    )
    try:
        return check.race(weights_on_host(learner.racer), order.seed, order.races)
    finally:
        check.close()


def main() -> None:
    """Does the turn of the folder that this process works in."""
    torch.set_num_threads(1)
    raise_malloc_thresholds()
    order = read_record(Path(ORDER_FILE), Order)
    folders = Folders(agent_init=AGENT_INIT, races=RACES, frames=FRAMES, runs=TRAINING_RUNS, out=AGENT)
    result = do_turn(order, read_params(), folders, use_device())
    Path(RESULT_FILE).write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_stage(main, after_interrupt="The turn goes on from its last checkpoint.")
