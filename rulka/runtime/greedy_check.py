"""The best weights and the best race so far, measured in short greedy races from the start line.

Training races explore and often begin down the track, so they do not measure the weights. The initial weights
compete too: an agent that drives worse than the policy it began with is never the result.

The fastest race is the record of the run, if it can be reproduced. Training races
explore, so they set no record.
"""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.shared.acting import NetworkActor
from rulka.buffers.experience import BlockSpec
from rulka.runtime.checkpoint import CheckpointError, write_file
from rulka.runtime.collector import CarBatch

RECORD_FILE = "record.npz"
"""Plain arrays: `env_steps`, `seed`, `car`, `time_ms`; for each decision `image` [T, L, H, W] uint8, `floats` [T, F]
float32 and `action` [T] uint8; and the agent's rating of every action, [T, A] float32: IQN's mean Q-values as
`q_value`, PPO's policy as `probability`. The rating of the action taken is the largest. Decisions of K actions have
`action` [T, K] and `q_value` [T, K, A]; continuous ones of K numbers have `action` [T, K] float32."""
MOST_DECISIONS = 30_000
"""Length limit of greedy episodes, which have no `race_end` as races do; Gymnasium's longest have 27,000."""
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RaceKey:
    """Identifies a greedy race, which the same weights reproduce.

    Attributes:
        seed: of the batch of cars.
        car: index within the batch.
        time_ms: race time at the finish.
    """

    seed: int
    car: int
    time_ms: int


@dataclass(frozen=True)
class CheckResult:
    """Results of greedy races.

    Attributes:
        num_races: number of races.
        finish_rate: share that finished.
        mean_time_s: of finished races; None if none finished.
        mean_pace_mps: length over time, 0 for an unfinished race, mean over all races.
        mean_progress_m: furthest progress, mean over all races.
        fastest: the finished race with the best time; None if none finished.
        mean_return: mean undiscounted return of all episodes if it is their score, as without a track, where
            nothing of the above exists; None for races.
    """

    num_races: int
    finish_rate: float
    mean_time_s: float | None
    mean_pace_mps: float
    mean_progress_m: float
    fastest: RaceKey | None
    mean_return: float | None = None

    @property
    def score(self) -> tuple[float, float]:
        """Sort key, larger is better: the mean pace, then the progress, which decides if none finished.

        Like the lap share it weighs one unfinished race in a hundred as one per cent of time: a chance difference in
        finish rates does not make a much slower driver win.
        """
        return (self.mean_pace_mps, self.mean_progress_m) if self.mean_return is None else (self.mean_return, 0.0)


@dataclass(frozen=True)
class Candidate:
    """Weights that may become the result.

    Attributes:
        env_steps: at which they were taken.
        result: of their last check.
        tensors: a copy of the weights.
    """

    env_steps: int
    result: CheckResult
    tensors: dict[str, Tensor]


class RaceOutcomes(NamedTuple):
    """Outcomes of R greedy races or episodes.

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
    """Evaluates weights by one greedy race per car; the same seed gives the same starts."""

    def __init__(
        self,
        environment: CarBatch,
        actor: NetworkActor,
        spec: BlockSpec,
        on_step: Callable[[], None],
        *,
        is_by_return: bool = False,
    ) -> None:
        """Prepares.

        Args:
            environment: of `spec.num_cars` cars that all begin at the start line.
            actor: its weights are overwritten.
            spec: for the shapes.
            on_step: called after every decision; may raise to abort.
            is_by_return: True scores results by their return.
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
        pace_mps = np.where(finished, 1000.0 * progress_m / np.maximum(time_ms, 1), 0.0)
        return CheckResult(
            num_races=len(finished),
            finish_rate=float(finished.mean()),
            mean_time_s=float(time_ms[finished].mean()) / 1000.0 if finished.any() else None,
            mean_pace_mps=float(pace_mps.mean()),
            mean_progress_m=float(progress_m.mean()),
            fastest=self._fastest(self._seeds(seed, num_races), finished, time_ms),
            mean_return=float(total_reward.mean()) if self._is_by_return else None,
        )

    def race(self, tensors: Mapping[str, Tensor], seed: int, num_races: int) -> RaceOutcomes:
        """Races at least `num_races` times, in batches of all cars, each batch from its own starts."""
        self._actor.load_network(tensors)
        rounds = [self._race(int(each)) for each in self._seeds(seed, num_races)]
        return RaceOutcomes(*(np.concatenate(values) for values in zip(*rounds, strict=True)))

    def drive_again(self, tensors: Mapping[str, Tensor], key: RaceKey) -> dict[str, NDArray] | None:
        """Repeats one race of a check; returns its arrays by their names in `RECORD_FILE`.

        None if the car does not finish this time.
        """
        self._actor.load_network(tensors)
        seen: list[tuple[NDArray, NDArray, NDArray]] = []
        values: dict[str, list[NDArray]] = {}

        def keep(decided: NDArray) -> None:
            # All cars, as for the decision: another batch size may round differently.
            thought = self._actor.action_values(torch.from_numpy(self._image), torch.from_numpy(self._floats))
            if thought is not None:
                values.setdefault(thought.name, []).append(thought.value[key.car].copy())
            seen.append((self._image[key.car].copy(), self._floats[key.car].copy(), decided[key.car].copy()))

        finished, time_ms, *_ = self._race(key.seed, only=key.car, on_decided=keep)
        if not finished[key.car]:
            return None
        image, floats, action = (np.stack(column) for column in zip(*seen, strict=True))
        stored = action if action.dtype.kind == "f" else action.astype(np.uint8)
        race = {"time_ms": time_ms[key.car], "image": image, "floats": floats, "action": stored}
        return race | {name: np.stack(rows) for name, rows in values.items()}

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
        """Drives until all races have ended, or that of car `only`."""
        self._environment.reset_into(self._image, self._floats, self._potential, seed)
        is_racing = np.ones(self._num_cars, bool)
        finished, time_ms = np.zeros(self._num_cars, bool), np.zeros(self._num_cars, np.int64)
        progress_m, total_reward = np.zeros(self._num_cars), np.zeros(self._num_cars)
        for _ in range(MOST_DECISIONS) if self._is_by_return else itertools.count():
            image, floats = torch.from_numpy(self._image), torch.from_numpy(self._floats)
            decided = self._actor.act(image, floats, explore=False).for_environment
            if on_decided:
                on_decided(decided)
            result = self._environment.step_into(decided, self._image, self._floats, self._potential)
            total_reward[is_racing] += result.reward[is_racing]
            ended = is_racing & (result.terminated | result.truncated)
            finished[ended] = result.is_finished[ended]
            time_ms[ended], progress_m[ended] = result.race_time_ms[ended], result.progress_m[ended]
            is_racing &= ~ended
            self._on_step()
            if not (is_racing.any() if only is None else is_racing[only]):
                break
        else:
            _LOGGER.warning("%d greedy episodes are cut after %d decisions", is_racing.sum(), MOST_DECISIONS)
        return RaceOutcomes(finished, time_ms, progress_m, total_reward)


class BestWeights:
    """The best candidates so far; a final round of races picks the winner.

    A few races rank weights only roughly, and the luckiest of many is not the best, so the final round has more races,
    from other starts. The initial weights always take part, however many lucky checks came after theirs: the winner is
    never worse there than the weights that the run began with.
    """

    def __init__(self, num_kept: int) -> None:
        self._num_kept = num_kept
        self._candidates: list[Candidate] = []

    def offer(self, env_steps: int, result: CheckResult, tensors: Mapping[str, Tensor]) -> None:
        """Keeps a copy of the first weights, and of others if their check is among the best.

        Ties go to the newer weights.
        """
        copied = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        offered = [*self._candidates, Candidate(env_steps, result, copied)]
        initial = min(offered, key=lambda candidate: candidate.env_steps)
        offered.sort(key=lambda candidate: (candidate.result.score, candidate.env_steps), reverse=True)
        self._candidates = [each for place, each in enumerate(offered) if place < self._num_kept or each is initial]

    def choose(self, check: GreedyCheck, seed: int, num_races: int) -> Candidate:
        """Races the candidates from the same new starts and returns the best with its new result."""
        raced = [replace(each, result=check.run(each.tensors, seed, num_races)) for each in self._candidates]
        return max(raced, key=lambda candidate: (candidate.result.score, candidate.env_steps))

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns all candidates for a checkpoint."""
        return [vars(each) | {"result": asdict(each.result)} for each in self._candidates]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Resumes from a `state_dict`."""
        self._candidates = [Candidate(e["env_steps"], _check_result(e["result"]), e["tensors"]) for e in state]


def _check_result(fields: Mapping[str, Any]) -> CheckResult:
    fastest = fields["fastest"]
    return CheckResult(**{**fields, "fastest": RaceKey(**fastest) if fastest else None})


class Records:
    """The record race of a run, and its file.

    Attributes:
        time_ms: race time; None while there is no record.
    """

    def __init__(self, folder: Path) -> None:
        """Begins without a record; the file of an earlier start stays until `load_state_dict` or `clear`."""
        self._path = folder / RECORD_FILE
        self.time_ms: int | None = None

    @property
    def time_s(self) -> float | None:
        """Race time in seconds; None if there is no record."""
        return None if self.time_ms is None else self.time_ms / 1000.0

    def offer(self, check: GreedyCheck, tensors: Mapping[str, Tensor], env_steps: int, result: CheckResult) -> None:
        """Checks whether a result beats the record; repeats that race, and keeps it if its time is reproduced.

        Args:
            check: that drove the races.
            tensors: the weights that it drove with.
            env_steps: of the run.
            result: of the check.

        Raises:
            CheckpointError: if the file cannot be written.
        """
        fastest = result.fastest
        if fastest is None or (self.time_ms is not None and fastest.time_ms >= self.time_ms):
            return
        race = check.drive_again(tensors, fastest)
        if race is None or race["time_ms"] != fastest.time_ms:
            again = "it did not finish" if race is None else f"it took {race['time_ms'] / 1000.0:.3f} s"
            _LOGGER.warning("a record of %.3f s was not confirmed: %s", fastest.time_ms / 1000.0, again)
            return
        content = io.BytesIO()
        np.savez_compressed(
            content, allow_pickle=False, env_steps=env_steps, seed=fastest.seed, car=fastest.car, **race
        )
        self._write(content.getvalue())
        self.time_ms = fastest.time_ms

    def state_dict(self) -> dict[str, Any]:
        """Returns time and file content, so that a checkpoint is consistent; empty without a record."""
        if self.time_ms is None:
            return {}
        content = torch.frombuffer(bytearray(self._path.read_bytes()), dtype=torch.uint8)
        return {"time_ms": self.time_ms, "file": content}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`; discards a record driven after it.

        Raises:
            CheckpointError: if the record's file has to be rewritten and cannot be.
        """
        self.time_ms = state.get("time_ms")
        if self.time_ms is None:
            self.clear()
            return
        content = state["file"].numpy().tobytes()
        if not self._path.exists() or self._path.read_bytes() != content:
            self._write(content)

    def clear(self) -> None:
        """Discards the record and removes its file."""
        self._path.unlink(missing_ok=True)
        self.time_ms = None

    def _write(self, content: bytes) -> None:
        try:
            with write_file(self._path) as file:
                file.write(content)
        except OSError as error:
            raise CheckpointError(f"cannot write {self._path.as_posix()}: {error.strerror}") from error
