"""A collector: a batch of cars, the policy that drives them, blocks of experience. Knows nothing of processes.

Dimensions: T decisions, N cars, L stacked frames, H x W pixels, F floats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.spec import Decision
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.contracts.schedule import Moment
from rulka.contracts.step_results import StepResult
from rulka.runtime.messages import BlockFilled, CollectorTimes, RaceEnd
from rulka.runtime.shared import NO_VERSION


class CarBatch(Protocol):
    """An environment that steps a batch of cars and writes their observations into given arrays."""

    def reset_into(
        self,
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
        seed: int,
    ) -> None:
        """Restarts all races and writes images [N, L, H, W], floats [N, F] and potentials [N]."""

    def step_into(
        self,
        actions: NDArray[np.int64],
        image_out: NDArray[np.uint8],
        floats_out: NDArray[np.float32],
        potential_out: NDArray[np.float32],
    ) -> StepResult:
        """Steps every car by one decision; the step after the end of a race resets the car instead."""
        ...

    def set_moment(self, moment: Moment) -> None:
        """Sets the run's progress, for rewards whose weights follow schedules."""

    def cars(self) -> NDArray[np.float32] | None:
        """Positions [N, 4] in world metres, and speed in m/s; None in environments without a track."""
        ...

    def state_dict(self) -> dict[str, Any] | None:
        """The complete state, arrays and numbers by name; None if unavailable, as from a game."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`, bit for bit."""

    def close(self) -> None:
        """Releases its resources."""


class ActingPolicy(Protocol):
    """Chooses actions: a local actor, or a client of central inference; see `rulka.runtime.central`."""

    @property
    def version(self) -> int:
        """Version of the acting weights; the oldest one if they changed in the middle of a block."""
        ...

    def act(self, image: Tensor, floats: Tensor) -> Decision:
        """Chooses actions for N cars, always exploring: image [N, L, H, W] uint8, floats [N, F] float32."""
        ...

    def set_moment(self, moment: Moment) -> None:
        """Sets the run's progress, for schedules."""


class LocalActor:
    """An actor and the version of its weights."""

    def __init__(self, actor: NetworkActor) -> None:
        self.version = NO_VERSION
        self.set_moment = actor.set_moment
        self.state_dict, self.load_state_dict = actor.state_dict, actor.load_state_dict
        self._actor = actor

    def act(self, image: Tensor, floats: Tensor) -> Decision:
        """Chooses exploring actions."""
        return self._actor.act(image, floats, explore=True)

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights into the actor."""
        self._actor.load_network(tensors)
        self.version = version


class Collector:
    """Steps its cars with a policy and writes the rollout into blocks, each continuing the one before."""

    def __init__(self, index: int, environment: CarBatch, policy: ActingPolicy, seed: int, spec: BlockSpec) -> None:
        """Starts the races.

        Args:
            index: of this collector.
            environment: of `spec.num_cars` cars.
            policy: drives them.
            seed: of the environment.
            spec: shape of the blocks to fill.
        """
        self._index, self._environment, self._policy, self._spec = index, environment, policy, spec
        self._image = np.zeros((spec.num_cars, *spec.image_shape), np.uint8)
        self._floats = np.zeros((spec.num_cars, spec.num_floats), np.float32)
        self._potential = np.zeros(spec.num_cars, np.float32)
        self._total_reward = np.zeros(spec.num_cars, np.float64)
        self._cars = np.full((spec.num_cars, 4), np.nan, np.float32)
        # Number of the next block. A restarted collector has another seed, so it continues none of these blocks.
        self._number = np.array(seed << 31)
        environment.reset_into(self._image, self._floats, self._potential, seed)

    def fill(self, block: ExperienceBlock, moment: Moment, on_step: Callable[[], None] = lambda: None) -> BlockFilled:
        """Fills a whole block; the environment writes frames directly into it.

        Args:
            block: of this collector's shape; every array is overwritten.
            moment: the run's progress, for the schedules of policy and rewards.
            on_step: called after every decision of the batch.

        Returns:
            A summary; the caller sets the slot, and the times spent waiting and loading.
        """
        block.image[0], block.floats[0], block.potential[0] = self._image, self._floats, self._potential
        block.number[...] = self._number
        self._number += 1
        races: list[RaceEnd] = []
        acting_s = simulating_s = 0.0
        self._policy.set_moment(moment)
        self._environment.set_moment(moment)
        for t in range(self._spec.num_steps):
            began_s = time.perf_counter()
            decision = self._policy.act(torch.from_numpy(block.image[t]), torch.from_numpy(block.floats[t]))
            acted_s = time.perf_counter()
            result = self._environment.step_into(
                decision.for_environment, block.image[t + 1], block.floats[t + 1], block.potential[t + 1]
            )
            acting_s += acted_s - began_s
            simulating_s += time.perf_counter() - acted_s
            _write(block, t, decision, result)
            races += self._races_ended(result)
            on_step()
        if (cars := self._environment.cars()) is not None:
            self._cars[:] = cars
        # The block's memory is given away: keep the observation that begins the next one.
        self._image[:], self._floats[:], self._potential[:] = block.image[-1], block.floats[-1], block.potential[-1]
        spent = CollectorTimes(0.0, 0.0, acting_s, simulating_s)
        return BlockFilled(0, self._policy.version, tuple(races), self._cars.copy(), spent)

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the state of collector and environment; None if the environment has none to give."""
        cars = self._environment.state_dict()
        return None if cars is None else {"environment": _tensors(cars), "arrays": _tensors(self._arrays())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        saved = state["environment"].items()
        self._environment.load_state_dict({name: x.numpy() if torch.is_tensor(x) else x for name, x in saved})
        for name, array in self._arrays().items():
            array[...] = state["arrays"][name].numpy()

    def _arrays(self) -> dict[str, NDArray]:
        return {
            "image": self._image,
            "floats": self._floats,
            "potential": self._potential,
            "total_reward": self._total_reward,
            "cars": self._cars,
            "number": self._number,
        }

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _races_ended(self, result: StepResult) -> list[RaceEnd]:
        total = self._total_reward
        total[result.is_reset] = 0.0
        total += np.where(result.is_reset, 0.0, result.reward)
        return [
            RaceEnd(
                collector=self._index,
                version=self._policy.version,
                is_finished=bool(result.is_finished[car]),
                is_full_race=bool(result.is_full_race[car]),
                time_ms=int(result.race_time_ms[car]),
                progress_m=float(result.progress_m[car]),
                total_reward=float(total[car]),
            )
            for car in np.flatnonzero(result.terminated | result.truncated)
        ]


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays as tensors (copies), which checkpoints can hold, and everything else unchanged."""
    return {name: torch.tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _write(block: ExperienceBlock, t: int, decision: Decision, result: StepResult) -> None:
    block.action[t] = decision.action
    block.log_prob[t] = decision.log_prob
    block.is_greedy[t] = decision.is_greedy
    block.reward[t] = result.reward
    block.terminated[t] = result.terminated
    block.truncated[t] = result.truncated
    block.is_reset[t] = result.is_reset
