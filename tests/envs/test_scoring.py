"""The kernels that score steps against a slow twin in numpy; the formulas by hand are in `test_rewards`."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from rulka.contracts.observation import CAR
from rulka.contracts.schedule import Moment
from rulka.envs.batch import RaceBatch, car_generators
from rulka.envs.rewards import NUM_RULES, driving_reward, set_engineered, set_rewards
from rulka.params import reference_params
from rulka.simulator.race_params import RewardParams
from rulka.simulator.race_settings import RaceSettings, read_settings
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
        self.speed_mps, self.rules = np.zeros(num_cars), rules_of(settings.rewards)
        self.manners: list[np.ndarray] = []
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
            self.speed_mps[k] = np.linalg.norm(self.simulator.cars[k, CAR["velocity"]].astype(float))

    def driving_style_reward(self, actions: np.ndarray, goes_on: np.ndarray) -> np.ndarray:
        """What each car's manner of driving is worth after a decision."""
        cars = self.simulator.cars.astype(float)
        rotation, velocity = cars[:, CAR["rotation"]].reshape(-1, 3, 3), cars[:, CAR["velocity"]]
        left_mps, _, forward_mps = np.einsum("nij,ni->jn", rotation, velocity)
        speed_mps = np.linalg.norm(velocity, axis=1)
        gained_mps = np.where(goes_on & (forward_mps > 0), speed_mps - self.speed_mps, 0.0)
        self.speed_mps = speed_mps
        num_wheels, is_full_gas = cars[:, CAR["has_contact"]].sum(axis=1), actions <= 2
        distance_m = np.linalg.norm(cars[:, CAR["position"]] - self.track.zones[self.simulator.zone_index], axis=1)
        manner = np.stack([gained_mps, left_mps, forward_mps, num_wheels, is_full_gas, distance_m])
        self.manners.append(manner)
        return np.array([driving_reward(*each, self.rules) for each in manner.T])

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
        reward += self.driving_style_reward(actions, ~terminated & ~truncated)
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
        """By the distance to the line, and by the direction: the straight runs along +z."""
        cars = self.simulator.cars
        offset = cars[:, CAR["position"]] - self.track.zones[self.simulator.zone_index]
        near = np.clip(np.sqrt((offset * offset).sum(axis=1)), 2.0, 25.0)
        along = self.weights.direction_potential * (cars[:, CAR["rotation"]][:, 8] - 1.0)
        return (-self.weights.line_distance_potential * near).astype(np.float32) + along.astype(np.float32)


def rules_of(rewards: RewardParams) -> np.ndarray:
    rules = np.zeros(NUM_RULES)
    set_rewards(rules, rewards)
    set_engineered(rules, rewards, Moment(NUM_STEPS))
    return rules


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


def askew_options() -> dict[str, Any]:
    """Fast and turned, so that cars slide, fly and leave the track; every manner of driving is paid."""
    weights = {"speed_slide": 0.5, "neo_slide": 0.01, "kamikaze": -0.02, "line_distance": -0.03}
    rising = {name: {"interpolation": "linear", "points": [[0, 0.0], [NUM_STEPS, x]]} for name, x in weights.items()}
    changes = {"line_distance_potential": 0.2, "direction_potential": 0.4, "speed_as_seconds": 1.0}
    rewards = RewardParams.model_validate(reference_params().rewards.model_dump() | changes | {"engineered": rising})
    start = {"start_lateral_m": 7.0, "start_heading_deg": 75.0, "start_speed_mps": 35.0}
    return some_options() | start | {"rewards": rewards}


def some_actions(num_cars: int, forward_share: float) -> np.ndarray:
    """Often forward, so that some races are finished, some are left and some are cut."""
    rng = np.random.default_rng(num_cars)
    held = rng.integers(0, 12, (NUM_STEPS // 10, num_cars)).repeat(10, axis=0)
    return np.where(rng.random((NUM_STEPS, num_cars)) < forward_share, 0, held)


@pytest.mark.parametrize(("num_cars", "is_askew"), [(1, False), (17, False), (17, True)])
def test_the_kernel_scores_as_its_slow_twin(straight, num_cars: int, is_askew: bool) -> None:
    """To the bit; where the manner of driving is paid, rewards and potentials but for rounding."""
    settings = read_settings(None, askew_options() if is_askew else some_options())
    batch, slow = RaceBatch(straight, settings, num_cars), SlowRaces(straight, settings, num_cars, seed=4)
    batch.scores.set_moment(Moment(NUM_STEPS))
    batch.reset(car_generators(4, num_cars))
    counts = dict.fromkeys(("is_finished", "is_off_track", "truncated"), 0)
    for chosen in some_actions(num_cars, 0.2 if is_askew else 0.6):
        result, expected = batch.step(chosen), slow.step(chosen)
        for field in dataclasses.fields(result):
            ours, theirs = getattr(result, field.name), expected[field.name]
            assert ours.dtype == theirs.dtype
            if is_askew and field.name == "reward":
                np.testing.assert_allclose(ours, theirs, atol=3e-6)
            else:
                assert ours.tobytes() == theirs.tobytes(), field.name
        np.testing.assert_allclose(
            batch.look()[1]["potential"], slow.potential(), atol=1e-6 if is_askew else 0.0, rtol=0.0
        )
        assert batch.scores.num_over == expected["terminated"].sum() + expected["truncated"].sum()
        for name in counts:
            counts[name] += int(expected[name].sum())
    assert num_cars < 17 or min(counts.values()) >= 2, "every kind of end was seen"
    if is_askew:
        gained_mps, left_mps, _, _, is_full_gas, distance_m = np.concatenate(slow.manners, axis=1)
        seen = [gained_mps < 0, abs(left_mps) > 4, abs(left_mps) < 2, is_full_gas == 0, distance_m > 5]
        assert min(map(np.count_nonzero, seen)) > 20, "every term was paid, and was not"
