"""Hand-made tracks and races."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.evaluation.results import RaceResult
from rulka.observation import CAR, NUM_CAR_FIELDS
from rulka.tracks.track import Track

STEP_MS = 50


def straight_track(length_m: float = 100.0) -> Track:
    """A road 10 m wide along +z with gates at 40 %, 80 % and the finish."""
    num_zones = int(length_m / 0.5) + 1
    centre_m = np.zeros((num_zones, 3))
    centre_m[:, 2] = np.arange(num_zones) * 0.5
    return Track(
        uid="straight",
        name="straight <b>road</b>",
        centre_m=centre_m,
        width_m=np.full(num_zones, 10.0),
        bank_rad=np.zeros(num_zones),
        material=np.full(num_zones, 16, np.uint8),
        edge=np.zeros(num_zones, np.uint8),
        gate_m=np.array([0.4 * length_m, 0.8 * length_m, length_m]),
        source="made by hand",
    )


def steady_race(track: Track, speed_mps: float, seed: int = 0, stop_m: float | None = None) -> RaceResult:
    """A race at constant speed along the line, to the finish or to where it leaves the track."""
    end_m = track.length_m if stop_m is None else stop_m
    num_samples = int(np.ceil(end_m / speed_mps * 1000 / STEP_MS)) + 1
    sample_ms = np.arange(num_samples, dtype=np.int64) * STEP_MS
    along_m = np.minimum(sample_ms / 1000 * speed_mps, end_m).astype(np.float32)
    cars = np.zeros((num_samples, NUM_CAR_FIELDS), np.float32)
    cars[:, CAR["position"]] = [0.0, 0.5, 0.0]
    cars[:, CAR["position"].stop - 1] = along_m
    cars[:, CAR["rotation"]] = np.eye(3).ravel()
    cars[:, CAR["velocity"].stop - 1] = speed_mps
    gates = np.where(track.gate_m <= end_m, np.round(track.gate_m / speed_mps * 1000), 0).astype(np.int64)
    return RaceResult(
        seed=seed,
        is_finished=stop_m is None,
        end="finished" if stop_m is None else "left the track",
        time_ms=int(gates[-1]) if stop_m is None else None,
        progress_m=end_m,
        gate_times_ms=gates,
        sample_ms=sample_ms,
        cars=cars,
        along_m=along_m,
        controls=np.tile(np.array([0.0, 1.0, 0.0], np.float32), (num_samples, 1)),
    )


@pytest.fixture
def track() -> Track:
    return straight_track()


@pytest.fixture
def make_race(track: Track) -> Callable[..., RaceResult]:
    def make(speed_mps: float, seed: int = 0, stop_m: float | None = None) -> RaceResult:
        return steady_race(track, speed_mps, seed, stop_m)

    return make
