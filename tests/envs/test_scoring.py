"""The kernels that score steps against a slow twin in numpy, to the bit."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from rulka.envs.batch import RaceBatch, car_generators
from rulka.envs.settings import read_settings
from rulka.observation import CAR
from rulka.params import reference_params
from rulka.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track

NUM_STEPS = 250


class SlowRaces:
    """What `RaceBatch` does, in numpy and for one car after another where that is plainer."""

    def __init__(self, track: Track, settings: RaceSettings, num_cars: int, seed: int) -> None:
        self.settings, self.track = settings, track
        assert settings.rewards is not None
        self.weights = settings.rewards
        self.simulator = Simulator(track, num_cars, settings.simulator, settings.table)
        self.generators = car_generators(seed, num_cars)
        self.is_over, self.is_full = np.zeros(num_cars, bool), np.zeros(num_cars, bool)
        self.furthest_m, self.start_m = np.zeros(num_cars), np.zeros(num_cars)
        self.milestone_m, self.milestone_ms = np.zeros(num_cars), np.zeros(num_cars, np.int64)
        self.begin(np.ones(num_cars, bool))

    def along_m(self) -> np.ndarray:
        return np.minimum(self.simulator.along_m, self.track.length_m)

    def now_ms(self) -> np.ndarray:
        simulator = self.simulator
        return np.where(simulator.is_finished, simulator.gate_time_ms[:, -1], simulator.time_ms)

    def begin(self, which: np.ndarray) -> None:
        settings, length_m = self.settings, self.track.length_m
        for k in np.flatnonzero(which):
            share, along, side, turn = self.generators[k].random(4)
            is_anywhere = share < settings.start_anywhere
            self.simulator.reset(
                np.arange(len(which)) == k,
                is_anywhere * along * max(length_m - 20.0, 0.0),
                (2.0 * side - 1.0) * settings.start_lateral_m,
                (2.0 * turn - 1.0) * math.radians(settings.start_heading_deg),
                is_anywhere * settings.start_speed_mps,
            )
            self.is_full[k], self.is_over[k], self.milestone_ms[k] = not is_anywhere, False, 0
            self.furthest_m[k] = self.milestone_m[k] = self.start_m[k] = self.along_m()[k]

    def step(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        simulator, settings = self.simulator, self.settings
        is_reset = self.is_over.copy()
        before_m, before_ms = self.along_m().copy(), simulator.time_ms.copy()
        simulator.step(actions)
        self.begin(is_reset)
        along_m, now_ms = self.along_m(), self.now_ms()
        self.furthest_m = np.maximum(self.furthest_m, along_m)
        is_further = along_m >= self.milestone_m + settings.min_gain_m
        self.milestone_m[is_further], self.milestone_ms[is_further] = along_m[is_further], now_ms[is_further]
        is_off_track = simulator.is_off_track & ~simulator.is_finished
        terminated = simulator.is_finished | is_off_track
        is_stuck = now_ms - self.milestone_ms >= settings.no_progress_s * 1000.0
        truncated = ~terminated & ~is_reset & ((now_ms >= settings.max_race_s * 1000.0) | is_stuck)
        weights = self.weights
        reward = weights.per_metre * (along_m - before_m) + weights.per_second * ((now_ms - before_ms) / 1000.0)
        x, y, z = simulator.cars[:, CAR["velocity"]].astype(np.float64).T
        going_on = weights.finish_as_seconds * (weights.per_metre * np.sqrt(x * x + y * y + z * z) + weights.per_second)
        reward = reward + weights.off_track * is_off_track + np.where(simulator.is_finished, going_on, 0.0)
        reward = reward.astype(np.float32)
        self.is_over = terminated | truncated
        return {
            "reward": np.where(is_reset, np.float32(0.0), reward),
            "terminated": terminated,
            "truncated": truncated,
            "is_reset": is_reset,
            "progress_m": self.furthest_m.astype(np.float32),
            "start_m": self.start_m.astype(np.float32),
            "race_time_ms": now_ms,
            "is_finished": simulator.is_finished.copy(),
            "is_off_track": is_off_track,
            "is_full_race": self.is_full.copy(),
        }

    def potential(self) -> np.ndarray:
        offset = self.simulator.cars[:, CAR["position"]] - self.track.zones[self.simulator.zone_index]
        near = np.clip(np.sqrt((offset * offset).sum(axis=1)), 2.0, 25.0)
        return (-self.weights.line_distance_potential * near).astype(np.float32)


def some_options() -> dict[str, Any]:
    return {
        "start_anywhere": 0.6,
        "start_lateral_m": 3.0,
        "start_heading_deg": 8.0,
        "start_speed_mps": 12.5,
        "max_race_s": 3.0,
        "no_progress_s": 0.5,
        "min_gain_m": 2.0,
        "rewards": reference_params().rewards.model_copy(update={"line_distance_potential": 0.07}),
    }


def some_actions(num_cars: int) -> np.ndarray:
    """Mostly forward, so that some races are finished, some are left and some are cut."""
    rng = np.random.default_rng(num_cars)
    held = rng.integers(0, 12, (NUM_STEPS // 10, num_cars)).repeat(10, axis=0)
    return np.where(rng.random((NUM_STEPS, num_cars)) < 0.6, 0, held)


@pytest.mark.parametrize("num_cars", [1, 17])
def test_the_kernel_scores_as_its_slow_twin(straight, num_cars: int) -> None:
    settings = read_settings(None, some_options())
    batch, slow = RaceBatch(straight, settings, num_cars), SlowRaces(straight, settings, num_cars, seed=4)
    batch.reset(car_generators(4, num_cars))
    counts = dict.fromkeys(("is_finished", "is_off_track", "truncated"), 0)
    for chosen in some_actions(num_cars):
        result, expected = batch.step(chosen), slow.step(chosen)
        for field in dataclasses.fields(result):
            ours, theirs = getattr(result, field.name), expected[field.name]
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), field.name
        assert batch.look()[1].tobytes() == slow.potential().tobytes()
        assert batch.scores.num_over == expected["terminated"].sum() + expected["truncated"].sum()
        for name in counts:
            counts[name] += int(expected[name].sum())
    assert num_cars < 17 or min(counts.values()) >= 2, "every kind of end was seen"
