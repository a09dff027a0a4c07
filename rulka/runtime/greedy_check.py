"""Which weights are the best so far: short greedy races from the start line, and the choice among the best.

Training races explore and often begin down the track, so they do not say how good the weights are. The initial
weights take part too: an agent that learns to drive worse than the policy it began with is never the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rulka.agents.spec import Actor
from rulka.buffers.experience import BlockSpec
from rulka.runtime.collector import CarBatch, StepResult


@dataclass(frozen=True)
class CheckResult:
    """How some greedy races went.

    Attributes:
        num_races: how many.
        finish_rate: share that finished.
        mean_time_s: of those that finished; None where none did.
        mean_progress_m: furthest progress of all.
    """

    num_races: int
    finish_rate: float
    mean_time_s: float | None
    mean_progress_m: float

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better: first the finish rate, then the mean time, or the progress where nobody finished."""
        return self.finish_rate, self.mean_progress_m if self.mean_time_s is None else -self.mean_time_s


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


class GreedyCheck:
    """Lets weights drive one greedy race in each car, always from the same starts for the same seed."""

    def __init__(self, environment: CarBatch, actor: Actor, spec: BlockSpec, on_step: Callable[[], None]) -> None:
        """Prepares.

        Args:
            environment: of `spec.num_cars` cars that all begin at the start line.
            actor: whose weights are overwritten.
            spec: for the sizes.
            on_step: called after every decision; may raise to break off.
        """
        self._environment, self._actor, self._on_step = environment, actor, on_step
        self._num_cars = spec.num_cars
        self._image = np.zeros((spec.num_cars, 1, spec.height, spec.width), np.uint8)
        self._floats = np.zeros((spec.num_cars, spec.num_floats), np.float32)
        self._potential = np.zeros(spec.num_cars, np.float32)

    def run(self, tensors: Mapping[str, Tensor], seed: int, num_races: int) -> CheckResult:
        """Races at least `num_races` times, in batches of all cars, each from starts of its own."""
        self._actor.network.load_state_dict(dict(tensors))
        num_rounds = -(-num_races // self._num_cars)
        seeds = np.random.SeedSequence(seed).generate_state(num_rounds)
        finished, time_s, progress_m = (np.concatenate(x) for x in zip(*map(self._race, seeds), strict=True))
        return CheckResult(
            num_races=len(finished),
            finish_rate=float(finished.mean()),
            mean_time_s=float(time_s[finished].mean()) if finished.any() else None,
            mean_progress_m=float(progress_m.mean()),
        )

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()

    def _race(self, seed: np.uint32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns whether each car finished, its time in seconds, and its progress in metres."""
        self._environment.reset_into(self._image, self._floats, self._potential, int(seed))
        is_racing = np.ones(self._num_cars, bool)
        finished, time_s, progress_m = np.zeros(self._num_cars, bool), *np.zeros((2, self._num_cars))
        while is_racing.any():
            result = self._step()
            ended = is_racing & (result.terminated | result.truncated)
            finished[ended] = result.is_finished[ended]
            time_s[ended], progress_m[ended] = result.race_time_ms[ended] / 1000.0, result.progress_m[ended]
            is_racing &= ~ended
            self._on_step()
        return finished, time_s, progress_m

    def _step(self) -> StepResult:
        image, floats = torch.from_numpy(self._image), torch.from_numpy(self._floats)
        decision = self._actor.act(image, floats, explore=False)
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
            Candidate(entry["env_steps"], CheckResult(**entry["result"]), entry["tensors"]) for entry in state
        ]
