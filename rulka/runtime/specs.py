"""Specifications of a run: picklable factories, so that every process builds its own parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.learner import Learner
from rulka.buffers.experience import BlockSpec
from rulka.machine.device import CPU, devices_of_learners
from rulka.runtime.collector import ActingPolicy, CarBatch, Collector, LocalActor
from rulka.runtime.params import RuntimeParams

RANKS_FOLDER = "ranks"
"""In a run's folder: the folders of the further learners, `1`, `2` and so on."""


class MakeCars(Protocol):
    """Builds an environment; a module-level function, or a `functools.partial` of one."""

    def __call__(self, num_cars: int, *, at_line: bool) -> CarBatch:
        """Builds it.

        Args:
            num_cars: cars that race side by side, without seeing each other.
            at_line: True starts all races at the start line, as greedy checks do; False starts them as in training.
        """
        ...


class MakeActor(Protocol):
    """Builds an actor; a module-level function, or a `functools.partial` of one."""

    def __call__(self, seed: int, device: torch.device = CPU) -> NetworkActor:
        """Builds it; `seed` is that of its exploration, `device` that of its network."""
        ...


class BuildLearner(Protocol):
    """Builds a learner, with its initial weights and demonstrations; picklable, as `MakeCars` is."""

    def __call__(self, num_learners: int, device: torch.device) -> Learner:
        """Builds the only learner, or one of several, on a device."""
        ...


@dataclass(frozen=True)
class RunSpec:
    """One training run, or one learner's part of it.

    Attributes:
        make_cars: builds the environment of a greedy check.
        cars_of: returns the environment factory of a collector, given its number in the whole run.
        make_actor: builds an actor that takes the learner's own weights, for greedy checks.
        collecting_actor: builds the actor of collectors and policy workers, which takes weights as published in
            `train.acting_precision`.
        build_learner: builds the learner, or one of several.
        block: shape of the blocks of experience.
        train: runtime parameters.
        folder: for live checkpoints and metrics.
        label: for the progress display.
        keeps_record: whether to keep the fastest greedy race; it means little if races are on several tracks.
        final_check_cars: number of parallel cars in the final choice; None takes `train.final_check_races`.
        is_by_return: whether the return of greedy episodes selects the weights, because there is no finish.
        device: of the learner, central inference and the greedy checks; collectors that choose actions
            themselves stay on the CPU.
        rank: index of this learner.
        num_ranks: number of learners in the run.
        first_collector: number of the first collector here, in the whole run.
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
        """Returns the spec of one of several learners, with its own share, folder and device.

        Args:
            rank: index of the learner.

        Raises:
            UserError: if there are more learners than devices.
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
    """Returns a learner's folder within a run's; the first learner uses the run's own."""
    return folder / RANKS_FOLDER / str(rank) if rank else folder


def rank_folders(folder: Path) -> list[Path]:
    """Returns the folders of all learners that the run ever had."""
    return [folder, *sorted(path for path in (folder / RANKS_FOLDER).glob("*") if path.is_dir())]


@dataclass(frozen=True)
class CollectorSpec:
    """One collector, wherever it runs; picklable.

    Attributes:
        index: of the collector.
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
        """Builds the collector with a given policy."""
        cars = self.make_cars(self.block.num_cars, at_line=False)
        return Collector(self.index, cars, policy, self.seed, self.block)
