"""Data classes of driven races, by an agent or in a demonstration, and of all races of one evaluation.

Dimensions: T samples of the state, one before every decision and one at the end; G gates, the finish last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import CAR, NUM_CAR_FIELDS, centres_of_mass
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

MPS_TO_KMH = 3.6
NO_SEED = -1
"""Seed of races whose start comes from no seed: demonstrations, recordings, the reference lap."""
FINISHED, OFF_TRACK, TOO_LONG, STUCK = "finished", "left the track", "took too long", "stood still"
NOT_FINISHED = "did not finish"
"""The end of an unfinished recorded race, which no rule has cut."""


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """Trajectory and outcome of one race.

    Attributes:
        track: track of the race.
        end: how the race ended, in words; `FINISHED` if and only if there is a time.
        time_ms: race time in milliseconds, None if the car did not finish.
        gate_times_ms: [G] int64 race time at each gate, 0 if it was not passed.
        sample_ms: [T] int64 race time of each sample, ascending.
        cars: [T, NUM_CAR_FIELDS] float32 `CAR` rows.
        along_m: [T] float64 distance along the track's line.
        controls: [T, 3] float32 steering in [-1, 1] (positive right), gas and brake in [0, 1], held from each sample.
        seed: seed of the start.
        chunk_controls: [T, K, 3] controls of all K actions if decisions are chunks, of which `controls` has the first;
            None if decisions are single actions.
        held_ticks: [K] ticks for which each action of a decision is held; empty for a recorded race.
    """

    track: Track
    end: str
    time_ms: int | None
    gate_times_ms: NDArray[np.int64]
    sample_ms: NDArray[np.int64]
    cars: NDArray[np.float32]
    along_m: NDArray[np.float64]
    controls: NDArray[np.float32]
    seed: int = NO_SEED
    chunk_controls: NDArray[np.float32] | None = None
    held_ticks: tuple[int, ...] = ()

    @classmethod
    def recorded(
        cls,
        track: Track,
        time_ms: int | None,
        gate_times_ms: NDArray[np.int64],
        sample_ms: NDArray[np.int64],
        cars: NDArray[np.float32],
        controls: NDArray[np.float32],
    ) -> RaceResult:
        """Builds the result of a recorded race, which no rule has ended; derives progress from its samples."""
        return cls(
            track=track,
            end=NOT_FINISHED if time_ms is None else FINISHED,
            time_ms=time_ms,
            gate_times_ms=gate_times_ms,
            sample_ms=sample_ms,
            cars=cars,
            along_m=progress_along(track, centres_of_mass(cars))[1],
            controls=controls,
        )

    def __post_init__(self) -> None:
        num_samples = len(self.sample_ms)
        shapes = (self.cars.shape, self.along_m.shape, self.controls.shape)
        if shapes != ((num_samples, NUM_CAR_FIELDS), (num_samples,), (num_samples, 3)):
            raise ValueError(f"a race of {num_samples} samples cannot hold cars, progress and controls of {shapes}")
        if (self.time_ms is not None) != (self.end == FINISHED):
            message = f"a race has a time exactly when it was finished; this one {self.end!r} with {self.time_ms} ms"
            raise ValueError(message)

    @property
    def is_finished(self) -> bool:
        """True if the finish was crossed."""
        return self.time_ms is not None

    @property
    def pace_mps(self) -> float:
        """The track's length over the race time; 0 if it was not finished."""
        return 0.0 if self.time_ms is None else 1000.0 * self.track.length_m / self.time_ms

    @property
    def progress_m(self) -> float:
        """Furthest point reached along the track's line."""
        return self.track.length_m if self.is_finished else float(self.along_m.max())

    @property
    def position_m(self) -> NDArray[np.float32]:
        """[T, 3] world position."""
        return self.cars[:, CAR["position"]]

    @property
    def speed_mps(self) -> NDArray[np.float32]:
        """[T] speed over ground."""
        return np.linalg.norm(self.cars[:, CAR["velocity"]], axis=1).astype(np.float32)

    @property
    def time_s(self) -> float | None:
        """Race time in seconds, None if the car did not finish."""
        return None if self.time_ms is None else self.time_ms / 1000.0

    @property
    def duration_ms(self) -> int:
        """Race time, or the driven time of an unfinished race."""
        return int(self.sample_ms[-1]) if self.time_ms is None else self.time_ms

    def to_json(self) -> dict[str, object]:
        """Returns plain JSON, without the trajectory."""
        return {
            "seed": self.seed,
            "is_finished": self.is_finished,
            "end": self.end,
            "time_s": self.time_s,
            "progress_m": round(self.progress_m, 2),
            "gate_times_s": [round(int(ms) / 1000.0, 3) if ms else None for ms in self.gate_times_ms],
        }


def finish_times_s(results: Sequence[RaceResult]) -> list[float]:
    """Returns the times of the finished races in seconds, in the order of the races."""
    return [result.time_s for result in results if result.time_s is not None]


def best_race(results: list[RaceResult]) -> RaceResult | None:
    """Returns the fastest finished race, else the one that got furthest; None without races."""
    if not results:
        return None
    finished = [result for result in results if result.time_ms is not None]
    if finished:
        return min(finished, key=lambda result: result.time_ms or 0)
    return max(results, key=lambda result: result.progress_m)


def median_race(results: list[RaceResult]) -> RaceResult | None:
    """Returns the finished race with the median time (the faster of two), None if none finished."""
    finished = sorted((r for r in results if r.time_ms is not None), key=lambda result: result.time_ms or 0)
    return finished[(len(finished) - 1) // 2] if finished else None


def time_at_distance_s(result: RaceResult, distance_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns when the car first reached each distance along the track.

    Args:
        result: a race that started at the start line.
        distance_m: [D] distances along the line, ascending.

    Returns:
        [D] seconds; NaN beyond the furthest point reached. The finish is at the race time, exact to the millisecond.
    """
    along_m, sample_s = result.along_m, result.sample_ms / 1000.0
    first = np.searchsorted(np.maximum.accumulate(along_m), distance_m)  # first sample that far along
    is_reached = first < len(along_m)
    after = np.clip(first, 1, len(along_m) - 1)
    gained_m = along_m[after] - along_m[after - 1]
    share = np.clip((distance_m - along_m[after - 1]) / np.where(gained_m > 0, gained_m, 1.0), 0.0, 1.0)
    times_s = sample_s[after - 1] + share * (sample_s[after] - sample_s[after - 1])
    times_s = np.where(is_reached, times_s, np.nan)
    if result.time_s is not None:
        times_s = np.where(np.isnan(times_s) | (times_s > result.time_s), result.time_s, times_s)
    return times_s


@dataclass(frozen=True)
class Contestant:
    """One driver with its races.

    Attributes:
        key: its name in `metrics.json`, for example "agent" or "iqn".
        label: its display name.
        races: at least one race.
    """

    key: str
    label: str
    races: list[RaceResult]


@dataclass(frozen=True)
class Evaluation:
    """All races of one evaluation.

    Attributes:
        track: track of the races.
        contestants: the agent first, then other algorithms, the cloned policy and random actions, if present.
        demonstrations: the races that were learned from; may be empty.
        reference: a lap near the fastest possible, if there is one.
    """

    track: Track
    contestants: list[Contestant]
    demonstrations: list[RaceResult]
    reference: RaceResult | None = None

    def ratio_to_reference(self, time_s: float | None) -> float | None:
        """Returns a time as a multiple of the reference lap's, None if either is missing."""
        reference_s = self.reference.time_s if self.reference else None
        return time_s / reference_s if time_s is not None and reference_s is not None else None

    @property
    def best_demonstration(self) -> RaceResult | None:
        """The fastest finished demonstration."""
        return best_race([race for race in self.demonstrations if race.is_finished])
