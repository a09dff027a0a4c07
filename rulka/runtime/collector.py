"""A collector: a batch of cars, who drives them, blocks of experience. Knows nothing of processes.

Dimensions: T decisions, N cars, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.spec import Actor, Decision
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.runtime.messages import BlockFilled, CollectorTimes, RaceEnd
from rulka.runtime.shared import NO_VERSION
from rulka.schedule import Moment
from rulka.step_results import StepResult


class CarBatch(Protocol):
    """An environment that steps a batch of cars and writes what they see where it is told to."""

    def reset_into(
        self,
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
        seed: int,
    ) -> None:
        """Starts all races anew and writes images [N, L, H, W], floats [N, F] and potentials [N]."""
        ...

    def step_into(
        self,
        actions: NDArray[np.int64],
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
    ) -> StepResult:
        """Takes one decision for every car; a car whose race has ended is reset by the next one instead."""
        ...

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the run has come, for rewards whose weights follow schedules."""
        ...

    def cars(self) -> NDArray[np.float32] | None:
        """Where cars are, [N, 4]: world metres, and speed in m/s; None where they are nowhere, without a track."""
        ...

    def state_dict(self) -> dict[str, Any] | None:
        """All that its future depends on, arrays and numbers by name; None where that cannot be had, as of a game."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on, bit for bit, from what `state_dict` returned."""
        ...

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


class ActingPolicy(Protocol):
    """Chooses actions: an actor of the agent, or somebody who asks one elsewhere; see `rulka.runtime.central`."""

    @property
    def version(self) -> int:
        """Version of the weights that act; the oldest one where they changed in the middle of a block."""
        ...

    def ask(self, image: Tensor, floats: Tensor) -> None:
        """Asks what N cars should do that see this; `answer` has to follow before the next question."""
        ...

    def answer(self) -> Decision:
        """Returns the decision, waiting if it must; exploring, as all collecting does."""
        ...

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the run has come, for schedules."""
        ...


class LocalActor:
    """An actor, and the version of the weights that it acts with."""

    def __init__(self, actor: Actor) -> None:
        self.version = NO_VERSION
        self.set_moment = actor.set_moment
        self.state_dict, self.load_state_dict = actor.state_dict, actor.load_state_dict
        self._actor = actor

    def ask(self, image: Tensor, floats: Tensor) -> None:
        """Decides at once, exploring: image [N, L, H, W] uint8, floats [N, F] float32."""
        self._decision = self._actor.act(image, floats, explore=True)

    def answer(self) -> Decision:
        """Returns the decision."""
        return self._decision

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights into the actor."""
        self._actor.load_network(tensors)
        self.version = version


class CarGroup(NamedTuple):
    """Cars that are stepped together, and who drives them.

    Attributes:
        environment: of the cars.
        policy: who drives.
        seed: of the environment.
    """

    environment: CarBatch
    policy: ActingPolicy
    seed: int


def _nothing() -> None:
    pass


class Collector:
    """Lets policies drive its cars and writes what happens into blocks, each going on where the last one ended.

    The cars of a block may be several groups that take turns: while the policy of one is asked, others are stepped.

    """

    def __init__(self, index: int, groups: Sequence[CarGroup], spec: BlockSpec) -> None:
        """Starts the races.

        Args:
            index: which collector this is.
            groups: of equally many cars, `spec.num_cars` together.
            spec: shape of the blocks to fill.
        """
        self._index = index
        size = spec.num_cars // len(groups)
        self._groups = [(group, slice(k * size, (k + 1) * size)) for k, group in enumerate(groups)]
        self._spec = spec
        self._image = np.zeros((spec.num_cars, *spec.image_shape), np.uint8)
        self._floats = np.zeros((spec.num_cars, spec.num_floats), np.float32)
        self._potential = np.zeros(spec.num_cars, np.float32)
        self._total_reward = np.zeros(spec.num_cars, np.float64)
        self._cars = np.full((spec.num_cars, 4), np.nan, np.float32)
        for group, rows in self._groups:
            group.environment.reset_into(self._image[rows], self._floats[rows], self._potential[rows], group.seed)

    def fill(self, block: ExperienceBlock, moment: Moment, on_step: Callable[[], None] = _nothing) -> BlockFilled:
        """Fills a whole block; frames are written by the environment straight into it.

        Args:
            block: of this collector's shape; every array is overwritten.
            moment: how far the run has come, for the schedules of policy and rewards.
            on_step: called after every decision of the batch.

        Returns:
            How it went; whoever calls this fills in the slot, and what time it took beside.
        """
        block.image[0], block.floats[0], block.potential[0] = self._image, self._floats, self._potential
        races: list[RaceEnd] = []
        self._acting_s = simulating_s = 0.0
        for group, rows in self._groups:
            group.policy.set_moment(moment)
            group.environment.set_moment(moment)
            self._ask(group.policy, block, 0, rows)
        for t in range(self._spec.num_steps):
            for group, rows in self._groups:
                began_s = time.perf_counter()
                decision = group.policy.answer()
                acted_s = time.perf_counter()
                result = group.environment.step_into(
                    decision.action, block.image[t + 1, rows], block.floats[t + 1, rows], block.potential[t + 1, rows]
                )
                self._acting_s += acted_s - began_s
                simulating_s += time.perf_counter() - acted_s
                if t + 1 < self._spec.num_steps:  # what the next block begins with, that one asks
                    self._ask(group.policy, block, t + 1, rows)
                _write(block, t, rows, decision, result)
                races += self._races_ended(group.policy, rows, result)
            on_step()
        for group, rows in self._groups:
            if (cars := group.environment.cars()) is not None:
                self._cars[rows] = cars
        # The block's memory is given away: keep what the next one begins with.
        self._image[:], self._floats[:], self._potential[:] = block.image[-1], block.floats[-1], block.potential[-1]
        oldest = min(group.policy.version for group, _ in self._groups)
        spent = CollectorTimes(0.0, 0.0, self._acting_s, simulating_s)
        return BlockFilled(0, oldest, tuple(races), self._cars.copy(), spent)

    def state_dict(self) -> dict[str, Any] | None:
        """Returns its cars, and what they see and have earned; None where the environment cannot say."""
        environments = [group.environment.state_dict() for group, _ in self._groups]
        known = [_tensors(each) for each in environments if each is not None]
        return {"environments": known, "arrays": _tensors(self._arrays())} if len(known) == len(environments) else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        for (group, _), saved in zip(self._groups, state["environments"], strict=True):
            values = {name: x.numpy() if torch.is_tensor(x) else x for name, x in saved.items()}
            group.environment.load_state_dict(values)
        for name, array in self._arrays().items():
            array[...] = state["arrays"][name].numpy()

    def _arrays(self) -> dict[str, NDArray]:
        return {
            "image": self._image,
            "floats": self._floats,
            "potential": self._potential,
            "total_reward": self._total_reward,
            "cars": self._cars,
        }

    def close(self) -> None:
        """Closes the environments."""
        for group, _ in self._groups:
            group.environment.close()

    def _ask(self, policy: ActingPolicy, block: ExperienceBlock, t: int, rows: slice) -> None:
        began_s = time.perf_counter()
        policy.ask(torch.from_numpy(block.image[t, rows]), torch.from_numpy(block.floats[t, rows]))
        self._acting_s += time.perf_counter() - began_s

    def _races_ended(self, policy: ActingPolicy, rows: slice, result: StepResult) -> list[RaceEnd]:
        total = self._total_reward[rows]
        total[result.is_reset] = 0.0
        total += np.where(result.is_reset, 0.0, result.reward)
        return [
            RaceEnd(
                collector=self._index,
                version=policy.version,
                is_finished=bool(result.is_finished[car]),
                is_full_race=bool(result.is_full_race[car]),
                time_ms=int(result.race_time_ms[car]),
                progress_m=float(result.progress_m[car]),
                total_reward=float(total[car]),
            )
            for car in np.flatnonzero(result.terminated | result.truncated)
        ]


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns copies of arrays as tensors, which checkpoints hold, and everything else as it is."""
    return {name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _write(block: ExperienceBlock, t: int, rows: slice, decision: Decision, result: StepResult) -> None:
    block.action[t, rows] = decision.action
    block.log_prob[t, rows] = decision.log_prob
    block.is_greedy[t, rows] = decision.is_greedy
    block.reward[t, rows] = result.reward
    block.terminated[t, rows] = result.terminated
    block.truncated[t, rows] = result.truncated
    block.is_reset[t, rows] = result.is_reset
