"""What a run is made of: picklable factories, so that every process builds its own parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from rulka.agents.spec import Actor, Learner
from rulka.buffers.experience import BlockSpec
from rulka.device import CPU
from rulka.params import TrainParams
from rulka.runtime.collector import CarBatch


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


@dataclass(frozen=True)
class RunSpec:
    """One training run.

    Attributes:
        make_cars: builds the environment of a collector, or of a greedy check.
        make_actor: builds an actor that takes the learner's own weights, for greedy checks.
        make_learner: builds the learner, with its initial weights and demonstrations.
        block: shape of the blocks of experience.
        train: how to run.
        folder: where live checkpoints and metrics go.
        label: for the progress display.
        make_collector_cars: returns what builds the environment of the collector of a number, where each has a place
            of its own, as in a game or on several tracks; None lets `make_cars` build them all.
        num_tracks: how many are raced on; the fastest race is kept where there is one.
        is_by_return: whether weights are chosen by the return of their greedy episodes, where there is no finish.
        device: where central inference and the greedy checks run; collectors that choose actions themselves stay on
            the CPU.
        make_collecting_actor: builds the actor of collectors and policy workers, which takes versions as
            `train.acting_precision` has them published; None lets `make_actor` build them all.
    """

    make_cars: MakeCars
    make_actor: MakeActor
    make_learner: Callable[[], Learner]
    block: BlockSpec
    train: TrainParams
    folder: Path
    label: str
    make_collector_cars: Callable[[int], MakeCars] | None = None
    num_tracks: int = 1
    is_by_return: bool = False
    device: torch.device = CPU
    make_collecting_actor: MakeActor | None = None

    @property
    def collecting_actor(self) -> MakeActor:
        """What builds the actor of collectors and policy workers."""
        return self.make_collecting_actor or self.make_actor

    def cars_of(self, collector: int) -> MakeCars:
        """Returns what builds the environment of a collector."""
        return self.make_cars if self.make_collector_cars is None else self.make_collector_cars(collector)


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
