"""Specifications of a run: picklable factories, so that every process builds its own parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from rulka.agents.learner import Learner
from rulka.agents.spec import Actor
from rulka.buffers.experience import BlockSpec
from rulka.device import CPU, devices_of_learners
from rulka.runtime.collector import ActingPolicy, CarBatch, Collector, LocalActor
from rulka.runtime.params import RuntimeParams

RANKS_FOLDER = "ranks"
"""Folders of the further learners, in that of a run: `1`, `2` and so on."""


class MakeCars(Protocol):
    """Builds an environment; a module-level function, or a `functools.partial` of one."""

    def __call__(self, num_cars: int, *, at_line: bool) -> CarBatch:
        """Builds it.

        Args:
            num_cars: cars that race side by side, without seeing each other.
            at_line: whether all races begin at the start line, as in greedy checks, or as training has them.
        """
        ...


class MakeActor(Protocol):
    """Builds an actor; a module-level function, or a `functools.partial` of one."""

    def __call__(self, seed: int, device: torch.device = CPU) -> Actor:
        """Builds it; `seed` decides how it explores, `device` where its network is."""
        ...


class BuildLearner(Protocol):
    """Builds a learner, with its initial weights and demonstrations; picklable, as `MakeCars` is."""

    def __call__(self, num_learners: int, device: torch.device) -> Learner:
        """Builds the only one, or one of several, on a device."""
        ...


@dataclass(frozen=True)
class RunSpec:
    """One training run, or what one of its learners has of it.

    Attributes:
        make_cars: builds the environment of a greedy check.
        cars_of: returns what builds the environment of the collector of a number in all of the run.
        make_actor: builds an actor that takes the learner's own weights, for greedy checks.
        collecting_actor: builds the actor of collectors and policy workers, which takes versions as
            `train.acting_precision` has them published.
        build_learner: builds the learner, or one of several.
        block: shape of the blocks of experience.
        train: how to run.
        folder: where live checkpoints and metrics go.
        label: for the progress display.
        keeps_record: whether the fastest greedy race is kept; where races are of several tracks, it says little.
        final_check_cars: that race side by side in the last choice; None lets all `train.final_check_races` do.
        is_by_return: whether weights are chosen by the return of their greedy episodes, where there is no finish.
        device: where the learner, central inference and the greedy checks run; collectors that choose actions
            themselves stay on the CPU.
        rank: which of the learners this is.
        num_ranks: how many share the run.
        first_collector: the number, in all of the run, of the first collector here.
    """

    make_cars: MakeCars
    cars_of: Callable[[int], MakeCars]
    make_actor: MakeActor
    collecting_actor: MakeActor
    build_learner: BuildLearner
    block: BlockSpec
    train: RuntimeParams
    folder: Path
    label: str
    keeps_record: bool = True
    final_check_cars: int | None = None
    is_by_return: bool = False
    device: torch.device = CPU
    rank: int = 0
    num_ranks: int = 1
    first_collector: int = 0

    def make_learner(self) -> Learner:
        """Builds the learner, or the one of this rank."""
        return self.build_learner(self.num_ranks, self.device)

    def of_rank(self, rank: int) -> RunSpec:
        """Returns the part of one of several learners: a share, a folder and a device of its own.

        Args:
            rank: which one.

        Raises:
            DeviceError: if there are more learners than devices.
        """
        count = self.train.learners
        if count == 1:
            return self
        return replace(
            self,
            train=self.train.share_of_learner,
            folder=rank_folder(self.folder, rank),
            device=devices_of_learners(self.device, count)[rank],
            rank=rank,
            num_ranks=count,
            first_collector=rank * (self.train.num_batches // count),
        )


def rank_folder(folder: Path, rank: int) -> Path:
    """Returns where experience and shared memory of one of several learners are noted, in the folder of a run."""
    return folder / RANKS_FOLDER / str(rank) if rank else folder


def rank_folders(folder: Path) -> list[Path]:
    """Returns those of all learners that ever were."""
    return [folder, *sorted(path for path in (folder / RANKS_FOLDER).glob("*") if path.is_dir())]


@dataclass(frozen=True)
class CollectorSpec:
    """One collector, wherever it runs; picklable.

    Attributes:
        index: which one.
        seed: of its environment and of its actor.
        make_cars: see `RunSpec`.
        make_actor: builds its actor.
        block: shape of the blocks it fills.
    """

    index: int
    seed: int
    make_cars: MakeCars
    make_actor: MakeActor
    block: BlockSpec

    def build(self) -> tuple[LocalActor, Collector]:
        """Builds the collector with an actor of its own."""
        actor = LocalActor(self.make_actor(self.seed))
        return actor, self.build_with(actor)

    def build_with(self, policy: ActingPolicy) -> Collector:
        """Builds the collector, which a policy drives."""
        cars = self.make_cars(self.block.num_cars, at_line=False)
        return Collector(self.index, cars, policy, self.seed, self.block)
