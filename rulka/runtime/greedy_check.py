"""Which weights are the best so far: short greedy races from the start line, and the choice among the best.

Training races explore and often begin down the track, so they do not say how good the weights are. The initial
weights take part too: an agent that learns to drive worse than the policy it began with is never the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.spec import Actor
from rulka.buffers.experience import BlockSpec
from rulka.runtime.collector import CarBatch
from rulka.step_results import StepResult, rank_of_races


@dataclass(frozen=True)
class RaceKey:
    """One greedy race: with the same weights it can be driven again, and goes the same way.

    Attributes:
        seed: of the batch of cars.
        car: which of them.
        time_ms: race time at the finish.
    """

    seed: int
    car: int
    time_ms: int


@dataclass(frozen=True)
class CheckResult:
    """How some greedy races went.

    Attributes:
        num_races: how many.
        finish_rate: share that finished.
        mean_time_s: of those that finished; None where none did.
        mean_pace: seconds for each metre of the same; on one track, in the order of the mean times.
        mean_progress_m: furthest progress of all.
        fastest: the finished race with the best time; None where none finished.
        mean_return: undiscounted, of all, where they are ranked by it, as episodes without a track are, which have
            nothing of the above; None for races.
    """

    num_races: int
    finish_rate: float
    mean_time_s: float | None
    mean_pace: float | None
    mean_progress_m: float
    fastest: RaceKey | None
    mean_return: float | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better: first the finish rate, then the mean pace, or the progress where nobody finished."""
        if self.mean_return is not None:
            return self.mean_return, 0.0
        return rank_of_races(self.finish_rate, self.mean_pace, self.mean_progress_m)


@dataclass(frozen=True)
class Candidate:
    """Weights that may become the result.

    Attributes:
        env_steps: when they were taken.
        result: of their last check.
        tensors: the weights, a copy of their own.
    """

    env_steps: int
    result: CheckResult
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class DrivenRace:
    """All of one greedy race.

    Attributes:
        key: which race; its time is the one measured now.
        image: [T, L, H, W] uint8 before each decision.
        floats: [T, F] float32.
        action: [T] uint8; [T, K] chunks of actions; [T, K] float32 where decisions are numbers.
        action_values: what the actor thought of every action before each decision, [T, A] float32 by name, see
            `rulka.agents.spec.ActionValues`; empty in records of older versions.
    """

    key: RaceKey
    image: NDArray[np.uint8]
    floats: NDArray[np.float32]
    action: NDArray
    action_values: Mapping[str, NDArray[np.float32]]


class RaceOutcomes(NamedTuple):
    """How each of some greedy races, or episodes, went.

    Attributes:
        finished: [R] bool.
        time_ms: [R] int64 race time.
        progress_m: [R] furthest progress.
        total_reward: [R] undiscounted sum of rewards.
    """

    finished: NDArray[np.bool_]
    time_ms: NDArray[np.int64]
    progress_m: NDArray[np.float64]
    total_reward: NDArray[np.float64]


class GreedyCheck:
    """Lets weights drive one greedy race in each car, always from the same starts for the same seed."""

    def __init__(
        self,
        environment: CarBatch,
        actor: Actor,
        spec: BlockSpec,
        on_step: Callable[[], None],
        *,
        is_by_return: bool = False,
    ) -> None:
        """Prepares.

        Args:
            environment: of `spec.num_cars` cars that all begin at the start line.
            actor: whose weights are overwritten.
            spec: for the sizes.
            on_step: called after every decision; may raise to break off.
            is_by_return: whether results are ranked by their return.
        """
        self._environment, self._actor, self._on_step = environment, actor, on_step
        self._is_by_return = is_by_return
        self._num_cars = spec.num_cars
        self._image = np.zeros((spec.num_cars, *spec.image_shape), np.uint8)
        self._floats = np.zeros((spec.num_cars, spec.num_floats), np.float32)
        self._potential = np.zeros(spec.num_cars, np.float32)

    def run(self, tensors: Mapping[str, Tensor], seed: int, num_races: int) -> CheckResult:
        """Races at least `num_races` times and returns means; see `race`."""
        finished, time_ms, progress_m, total_reward = self.race(tensors, seed, num_races)
        return CheckResult(
            num_races=len(finished),
            finish_rate=float(finished.mean()),
            mean_time_s=float(time_ms[finished].mean()) / 1000.0 if finished.any() else None,
            mean_pace=float(time_ms[finished].sum() / progress_m[finished].sum()) / 1000.0 if finished.any() else None,
            mean_progress_m=float(progress_m.mean()),
            fastest=self._fastest(self._seeds(seed, num_races), finished, time_ms),
            mean_return=float(total_reward.mean()) if self._is_by_return else None,
        )

    def race(self, tensors: Mapping[str, Tensor], seed: int, num_races: int) -> RaceOutcomes:
        """Races at least `num_races` times, in batches of all cars, each from starts of its own."""
        self._actor.load_network(tensors)
        rounds = [self._race(int(each)) for each in self._seeds(seed, num_races)]
        return RaceOutcomes(*(np.concatenate(values) for values in zip(*rounds, strict=True)))

    def drive_again(self, tensors: Mapping[str, Tensor], key: RaceKey) -> DrivenRace | None:
        """Drives one race of a check once more and keeps all of it; None where the car does not finish this time."""
        self._actor.load_network(tensors)
        seen: list[tuple[NDArray, NDArray, NDArray]] = []
        values: dict[str, list[NDArray]] = {}

        def keep(decided: NDArray) -> None:
            # All cars, as the decision was made: another number of rows may round differently.
            thought = self._actor.action_values(torch.from_numpy(self._image), torch.from_numpy(self._floats))
            if thought is not None:
                values.setdefault(thought.name, []).append(thought.value[key.car].copy())
            seen.append((self._image[key.car].copy(), self._floats[key.car].copy(), decided[key.car].copy()))

        finished, time_ms, *_ = self._race(key.seed, only=key.car, on_decided=keep)
        if not finished[key.car]:
            return None
        image, floats, action = (np.stack(column) for column in zip(*seen, strict=True))
        driven = replace(key, time_ms=int(time_ms[key.car]))
        stored = action if action.dtype.kind == "f" else action.astype(np.uint8)
        return DrivenRace(driven, image, floats, stored, {name: np.stack(rows) for name, rows in values.items()})

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _seeds(self, seed: int, num_races: int) -> NDArray[np.unsignedinteger]:
        """Returns the seed of each batch."""
        return np.random.SeedSequence(seed).generate_state(-(-num_races // self._num_cars))

    def _fastest(self, seeds: NDArray[np.unsignedinteger], finished: NDArray, time_ms: NDArray) -> RaceKey | None:
        if not finished.any():
            return None
        race = int(np.where(finished, time_ms, np.inf).argmin())
        return RaceKey(int(seeds[race // self._num_cars]), race % self._num_cars, int(time_ms[race]))

    def _race(
        self, seed: int, only: int | None = None, on_decided: Callable[[NDArray[np.int64]], None] | None = None
    ) -> RaceOutcomes:
        """Drives until all cars have ended their races, or the `only` one that matters."""
        self._environment.reset_into(self._image, self._floats, self._potential, seed)
        is_racing = np.ones(self._num_cars, bool)
        finished, time_ms = np.zeros(self._num_cars, bool), np.zeros(self._num_cars, np.int64)
        progress_m, total_reward = np.zeros(self._num_cars), np.zeros(self._num_cars)
        while is_racing.any() if only is None else is_racing[only]:
            result = self._step(on_decided)
            total_reward[is_racing] += result.reward[is_racing]
            ended = is_racing & (result.terminated | result.truncated)
            finished[ended] = result.is_finished[ended]
            time_ms[ended], progress_m[ended] = result.race_time_ms[ended], result.progress_m[ended]
            is_racing &= ~ended
            self._on_step()
        return RaceOutcomes(finished, time_ms, progress_m, total_reward)

    def _step(self, on_decided: Callable[[NDArray[np.int64]], None] | None) -> StepResult:
        image, floats = torch.from_numpy(self._image), torch.from_numpy(self._floats)
        decision = self._actor.act(image, floats, explore=False)
        if on_decided:
            on_decided(decision.action)
        return self._environment.step_into(decision.action, self._image, self._floats, self._potential)


class BestWeights:
    """The best candidates so far; the winner is found by racing them against each other once more.

    A few races rank weights only roughly, and the best of many by luck is not the best, so the last round takes more
    races, from other starts.
    """

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._candidates: list[Candidate] = []

    def offer(self, env_steps: int, result: CheckResult, tensors: Mapping[str, Tensor]) -> None:
        """Remembers a copy of weights if their check was among the best; the newer ones of two equals."""
        copied = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._candidates.append(Candidate(env_steps, result, copied))
        self._candidates.sort(key=lambda candidate: (candidate.result.rank, candidate.env_steps), reverse=True)
        del self._candidates[self._num_kept :]

    def choose(self, check: GreedyCheck, seed: int, num_races: int) -> Candidate:
        """Lets the candidates race from the same new starts and returns the best with its new result."""
        raced = [
            Candidate(candidate.env_steps, check.run(candidate.tensors, seed, num_races), candidate.tensors)
            for candidate in self._candidates
        ]
        return max(raced, key=lambda candidate: (candidate.result.rank, candidate.env_steps))

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns all candidates for a checkpoint."""
        return [
            {"env_steps": candidate.env_steps, "result": asdict(candidate.result), "tensors": candidate.tensors}
            for candidate in self._candidates
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Goes on from what `state_dict` returned."""
        self._candidates = [
            Candidate(entry["env_steps"], _check_result(entry["result"]), entry["tensors"]) for entry in state
        ]


def _check_result(fields: Mapping[str, Any]) -> CheckResult:
    fastest = fields["fastest"]
    return CheckResult(**{**fields, "fastest": RaceKey(**fastest) if fastest else None})
