"""Rewards for gained speed and for how cars drive, as environments pay them, against a naive twin."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from rulka.envs import rewards as formulas
from rulka.envs.batch import RaceBatch, car_generators
from rulka.envs.scoring import score_captured
from rulka.envs.settings import read_settings
from rulka.observation import CAR, FLOATS
from rulka.params import reference_params
from rulka.race_params import EngineeredRewardParams, RewardParams
from rulka.schedule import Moment
from rulka.tracks.track import Track

NUM_CARS, NUM_STEPS = 9, 400
ENGINEERED = ("speed_slide", "neo_slide", "kamikaze", "line_distance")


def weights(**changes: float) -> RewardParams:
    """The reference rewards with other weights, and nothing for the finish.

    Engineered ones rise from 0 to their weight at step 100.
    """
    base = reference_params().rewards.model_copy(update={"finish_as_seconds": 0.0})
    rising = {
        name: {"interpolation": "linear", "points": [[0, 0.0], [100, value]]}
        for name, value in changes.items()
        if name in ENGINEERED
    }
    engineered = EngineeredRewardParams.model_validate(base.engineered.model_dump() | rising)
    plain = {name: value for name, value in changes.items() if name not in ENGINEERED}
    return base.model_copy(update={"engineered": engineered, **plain})


class Seen(NamedTuple):
    """What happened in many decisions of many cars: arrays [T, N, ...]."""

    reward: np.ndarray
    potential: np.ndarray
    rest: dict[str, np.ndarray]
    cars: np.ndarray
    floats: np.ndarray
    zone: np.ndarray
    first_cars: np.ndarray


def fast_and_askew(rewards: RewardParams) -> dict[str, Any]:
    """Races from anywhere, fast and turned, so that cars slide, fly off and finish within a second or two."""
    return {
        "start_anywhere": 0.7,
        "start_lateral_m": 7.0,
        "start_heading_deg": 75.0,
        "start_speed_mps": 35.0,
        "max_race_s": 2.0,
        "rewards": rewards,
    }


def some_actions() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 12, (NUM_STEPS // 5, NUM_CARS)).repeat(5, axis=0)


def drive(track: Track, rewards: RewardParams, env_steps: int = 100) -> Seen:
    batch = RaceBatch(track, read_settings(None, fast_and_askew(rewards)), NUM_CARS)
    batch.scores.set_moment(Moment(env_steps))
    batch.reset(car_generators(4, NUM_CARS))
    first, rows = batch.simulator.cars.copy(), []
    for chosen in some_actions():
        facts = dataclasses.asdict(batch.step(chosen))
        seen, potential = batch.look()
        own = {"potential": potential, "cars": batch.simulator.cars.copy(), "floats": seen["floats"]}
        rows.append(facts | own | {"zone": batch.simulator.zone_index.copy()})
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    own = {name: stacked.pop(name) for name in ("reward", "potential", "cars", "zone")}
    return Seen(rest=stacked, first_cars=first, floats=stacked["floats"], **own)


def speeds(car: np.ndarray) -> tuple[float, float, float]:
    """Speed of a car to its left, up and forward."""
    rotation, velocity = car[CAR["rotation"]].astype(float), car[CAR["velocity"]].astype(float)
    left, up, forward = (sum(rotation[3 * row + axis] * velocity[row] for row in range(3)) for axis in range(3))
    return left, up, forward


def table(kmh: float) -> float:
    """80 to 100 km/h, 75 at 200, 67 at 300, 60 at 400, 55 from 500 on."""
    points = [(0, 80), (100, 80), (200, 75), (300, 67), (400, 60), (500, 55)]
    if kmh <= 0:
        return 80
    for (x0, y0), (x1, y1) in pairwise(points):
        if kmh <= x1:
            return y0 + (y1 - y0) * (kmh - x0) / (x1 - x0)
    return 55


def naive_terms(seen: Seen, track: Track) -> dict[str, np.ndarray]:
    """What each weight of 1 pays [T, N], one car and decision after another, by Linesight's formulas."""
    terms = {name: np.zeros((NUM_STEPS, NUM_CARS)) for name in ("gained_mps", *ENGINEERED)}
    before = [math.sqrt(sum(v * v for v in speeds(car))) for car in seen.first_cars]
    actions, rest = some_actions(), seen.rest
    for t in range(NUM_STEPS):
        for n in range(NUM_CARS):
            car = seen.cars[t, n]
            left, up, forward = speeds(car)
            speed = math.sqrt(left * left + up * up + forward * forward)
            if not rest["is_reset"][t, n]:
                has_ended = rest["terminated"][t, n] or rest["truncated"][t, n]
                if forward > 0 and not has_ended:
                    terms["gained_mps"][t, n] = speed - before[n]
                wheels = car[CAR["has_contact"]].sum()
                if wheels == 4 and 20 * abs(left) > table(3.6 * forward):
                    q = (20 * abs(left) - table(3.6 * forward)) / table(3.6 * forward)
                    terms["speed_slide"][t, n] = max(0.0, 1.0 - abs(q - 1.0))
                terms["neo_slide"][t, n] = abs(left) >= 2.0
                terms["kamikaze"][t, n] = actions[t, n] <= 2 or wheels <= 1
                distance = math.dist(car[CAR["position"]].tolist(), track.zones[seen.zone[t, n]].tolist())
                terms["line_distance"][t, n] = min(max(distance, 5.0), 25.0)
            before[n] = speed
    return terms


@pytest.fixture(scope="module")
def plain(straight) -> Seen:
    return drive(straight, weights())


@pytest.fixture(scope="module")
def terms(straight, plain: Seen) -> dict[str, np.ndarray]:
    return naive_terms(plain, straight)


def test_the_races_show_everything(terms: dict[str, np.ndarray], plain: Seen) -> None:
    assert plain.rest["is_finished"].sum() > 5
    assert plain.rest["is_off_track"].sum() > 5
    assert plain.rest["truncated"].sum() > 5
    for name, values in terms.items():
        assert np.count_nonzero(values) > 20, name
    assert (terms["gained_mps"] < 0).any()
    assert (terms["line_distance"] > 5.0).any()


def drive_alike(track: Track, plain: Seen, rewards: RewardParams, env_steps: int = 100) -> Seen:
    """Drives with other weights, which change nothing but what is paid."""
    found = drive(track, rewards, env_steps)
    for name, values in plain.rest.items():
        assert found.rest[name].tobytes() == values.tobytes(), name
    assert found.cars.tobytes() == plain.cars.tobytes()
    return found


def test_every_weight_pays_its_term_and_nothing_else(straight, plain: Seen, terms) -> None:
    """The finish counts like going on for 4 s at the speed over it."""
    reference = reference_params().rewards
    speed_mps = np.linalg.norm(plain.cars[:, :, CAR["velocity"]].astype(float), axis=2)
    is_paid = plain.rest["is_finished"] & ~plain.rest["is_reset"]
    going_on = is_paid * (reference.per_metre * speed_mps + reference.per_second)
    cases = [({name: -0.3}, -0.3 * terms[name]) for name in ENGINEERED]
    cases += [({"speed_as_seconds": 2.0}, 2.0 * reference.per_metre * terms["gained_mps"])]
    cases += [({"finish_as_seconds": 4.0}, 4.0 * going_on)]
    together = {"speed_slide": 0.5, "neo_slide": 0.01, "kamikaze": -0.02, "line_distance": -0.03}
    paid = reference.per_metre * terms["gained_mps"] + sum(weight * terms[name] for name, weight in together.items())
    cases += [({"speed_as_seconds": 1.0, **together}, paid)]
    for changes, expected in cases:
        found = drive_alike(straight, plain, weights(**changes))
        assert found.potential.tobytes() == plain.potential.tobytes()
        np.testing.assert_allclose(found.reward, plain.reward + expected, atol=3e-6, err_msg=str(changes))


def test_the_direction_changes_the_potential_and_nothing_else(straight, plain: Seen) -> None:
    """The straight runs along +z: the potential is 0.4 times forward's z, minus 0.4."""
    found = drive_alike(straight, plain, weights(direction_potential=0.4))
    assert found.reward.tobytes() == plain.reward.tobytes()
    forward_z = found.cars[:, :, CAR["rotation"]][:, :, 8].astype(float)
    np.testing.assert_allclose(found.potential, 0.4 * (forward_z - 1.0), atol=1e-6)
    assert found.potential.min() < -0.3


def captured(seen: Seen, car: int, rewards: RewardParams) -> tuple[np.ndarray, np.ndarray]:
    """Rewards [T - 1] without progress and time, and potentials [T], from the floats that a car has seen."""
    floats, array = seen.floats[:, car], np.zeros(formulas.NUM_RULES)
    formulas.set_rewards(array, rewards)
    formulas.set_engineered(array, rewards, Moment(100))
    ways = FLOATS["waypoints"]
    parts = [FLOATS["velocity"], FLOATS["has_contact"], slice(ways.start, ways.start + 6)]
    views = [np.ascontiguousarray(floats[:, part]) for part in parts]
    nothing, is_full_gas = np.zeros(NUM_STEPS - 1), some_actions()[1:, car] <= 2
    reward, potential = np.empty(NUM_STEPS - 1, np.float32), np.empty(NUM_STEPS, np.float32)
    score_captured(nothing, nothing, is_full_gas, *views, False, array, reward, potential)
    return reward, potential


def test_captured_races_are_paid_as_in_the_environment(straight, plain: Seen) -> None:
    """Within a race; where one ends and the next begins there is no captured race. Potentials follow the floats."""
    chosen = {"speed_slide": 0.5, "neo_slide": 0.01, "kamikaze": -0.02, "line_distance": -0.03}
    rewards = weights(speed_as_seconds=1.0, line_distance_potential=0.2, direction_potential=0.4, **chosen)
    found = drive(straight, rewards)
    is_within = ~(found.rest["is_reset"] | found.rest["terminated"] | found.rest["truncated"])[1:]
    is_within[-1] = False  # taken for the end of the race
    assert is_within.sum() > 2000
    for car in range(NUM_CARS):
        reward, potential = captured(found, car, rewards)
        expected = (found.reward - plain.reward)[1:, car]
        np.testing.assert_allclose(reward[is_within[:, car]], expected[is_within[:, car]], atol=2e-5)
        np.testing.assert_allclose(potential, found.potential[:, car], atol=4e-5)
