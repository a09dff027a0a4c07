"""The races that were learned from, in the same form as the races of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.datasets.races import Race
from rulka.evaluation.race import FINISHED
from rulka.evaluation.results import RaceResult
from rulka.observation import CAR
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

DEMONSTRATION_SEED = -1
NOT_FINISHED = "did not finish"


def demonstration_results(races: Sequence[Race], track: Track) -> list[RaceResult]:
    """Turns recorded or demonstrated races on a track into race results, with their own recorded times."""
    return [_result(race, track) for race in races]


def _result(race: Race, track: Track) -> RaceResult:
    num_samples = _samples_until_finish(race)
    cars, sample_ms = race.state[:num_samples], race.state_time_ms[:num_samples]
    _, along_m, _ = progress_along(track, cars[:, CAR["position"]])
    return RaceResult(
        seed=DEMONSTRATION_SEED,
        is_finished=race.is_finished,
        end=FINISHED if race.is_finished else NOT_FINISHED,
        time_ms=race.race_time_ms if race.is_finished else None,
        progress_m=track.length_m if race.is_finished else float(along_m.max()),
        gate_times_ms=_gate_times_ms(race, len(track.gate_m)),
        sample_ms=sample_ms,
        cars=cars,
        along_m=along_m.astype(np.float32),
        controls=_controls_at(race, sample_ms),
    )


def _samples_until_finish(race: Race) -> int:
    """Returns how many samples lie before the finish, plus the first one behind it."""
    if race.race_time_ms is None:
        return len(race.state_time_ms)
    return min(len(race.state_time_ms), int(np.searchsorted(race.state_time_ms, race.race_time_ms)) + 1)


def _gate_times_ms(race: Race, num_gates: int) -> NDArray[np.int64]:
    """Returns [G] times at the gates, 0 where a gate was not passed; the finish is always the last one."""
    times_ms = np.zeros(num_gates, np.int64)
    before_finish = race.checkpoint_times_ms[:-1] if race.is_finished else race.checkpoint_times_ms
    passed = np.array(before_finish[: num_gates - 1], dtype=np.int64)
    times_ms[: len(passed)] = passed
    if race.is_finished and race.race_time_ms is not None:
        times_ms[-1] = race.race_time_ms
    return times_ms


def _controls_at(race: Race, sample_ms: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the inputs held at every sample; the last known ones behind the last tick."""
    if race.num_ticks == 0:
        return np.zeros((len(sample_ms), 3), np.float32)
    tick = np.clip(sample_ms // TICK_MS, 0, race.num_ticks - 1)
    return race.controls[tick]
