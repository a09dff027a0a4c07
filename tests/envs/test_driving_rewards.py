"""Rewards for gained speed and for how cars drive, as environments pay them, against a naive twin."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit

from rulka.agents.iqn import mini_race_returns
from rulka.buffers.experience import BlockSpec, new_block
from rulka.buffers.ring import BlockRing, find_transitions
from rulka.envs import rewards as formulas
from rulka.envs.batch import RaceBatch, car_generators
from rulka.envs.race import RaceEnv
from rulka.envs.rewards import SLIDE_START
from rulka.envs.scoring import score_captured
from rulka.envs.settings import read_settings
from rulka.envs.vector import RaceVectorEnv
from rulka.observation import CAR, FLOATS, NUM_FLOATS
from rulka.params import reference_params
from rulka.race_params import EngineeredRewardParams, RewardParams
from rulka.schedule import Moment
from rulka.tracks.track import Track

NUM_CARS, NUM_STEPS = 9, 400
ENGINEERED = ("speed_slide", "neo_slide", "kamikaze", "line_distance")


@njit
def slide_start(forward_mps: float) -> float:
    return formulas.slide_start(forward_mps)


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
    batch = RaceBatch(track, read_settings(None, fast_and_askew(rewards), ()), NUM_CARS)
    batch.scores.set_moment(Moment(env_steps))
    batch.reset(car_generators(4, NUM_CARS))
    first, rows = batch.simulator.cars.copy(), []
    image, floats = np.empty((NUM_CARS, 1, 64, 64), np.uint8), np.empty((NUM_CARS, NUM_FLOATS), np.float32)
    potential = np.empty(NUM_CARS, np.float32)
    for chosen in some_actions():
        result = batch.step(chosen)
        batch.observe(image, floats, potential)
        facts = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        own = {"potential": potential.copy(), "cars": batch.simulator.cars.copy(), "floats": floats.copy()}
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


def check_same_races(found: Seen, expected: Seen) -> None:
    for name, values in expected.rest.items():
        assert found.rest[name].tobytes() == values.tobytes(), name
    assert found.cars.tobytes() == expected.cars.tobytes()


def test_the_races_show_everything(terms: dict[str, np.ndarray], plain: Seen) -> None:
    assert plain.rest["is_finished"].sum() > 5
    assert plain.rest["is_off_track"].sum() > 5
    assert plain.rest["truncated"].sum() > 5
    for name, values in terms.items():
        assert np.count_nonzero(values) > 20, name
    assert (terms["gained_mps"] < 0).any()
    assert (terms["line_distance"] > 5.0).any()


@pytest.mark.parametrize("name", ENGINEERED)
def test_an_engineered_weight_pays_its_term_and_nothing_else(straight, plain: Seen, terms, name: str) -> None:
    found = drive(straight, weights(**{name: -0.3}))
    check_same_races(found, plain)
    assert found.potential.tobytes() == plain.potential.tobytes()
    np.testing.assert_allclose(found.reward, plain.reward - 0.3 * terms[name], atol=2e-6)


def test_gained_speed_counts_as_metres_and_nothing_else_changes(straight, plain: Seen, terms) -> None:
    found = drive(straight, weights(speed_as_seconds=2.0))
    check_same_races(found, plain)
    assert found.potential.tobytes() == plain.potential.tobytes()
    per_mps = 2.0 * reference_params().rewards.per_metre
    np.testing.assert_allclose(found.reward, plain.reward + per_mps * terms["gained_mps"], atol=2e-6)


def test_the_finish_counts_like_going_on_and_nothing_else_changes(straight, plain: Seen) -> None:
    found, rewards = drive(straight, weights(finish_as_seconds=4.0)), reference_params().rewards
    check_same_races(found, plain)
    assert found.potential.tobytes() == plain.potential.tobytes()
    speed_mps = np.linalg.norm(plain.cars[:, :, CAR["velocity"]].astype(float), axis=2)
    a_second = rewards.per_metre * speed_mps + rewards.per_second
    is_paid = plain.rest["is_finished"] & ~plain.rest["is_reset"]
    np.testing.assert_allclose(found.reward, plain.reward + is_paid * 4.0 * a_second, atol=2e-6)


def test_the_direction_changes_the_potential_and_nothing_else(straight, plain: Seen) -> None:
    """The straight runs along +z: the potential is 0.4 times forward's z, minus 0.4."""
    found = drive(straight, weights(direction_potential=0.4))
    check_same_races(found, plain)
    assert found.reward.tobytes() == plain.reward.tobytes()
    forward_z = found.cars[:, :, CAR["rotation"]][:, :, 8].astype(float)
    np.testing.assert_allclose(found.potential, 0.4 * (forward_z - 1.0), atol=1e-6)
    assert found.potential.min() < -0.3


@pytest.mark.parametrize("change", [{"line_distance_potential": 0.2}, {"direction_potential": 0.4}])
def test_potentials_follow_the_floats(straight, change: dict[str, float]) -> None:
    """What is told of a car by its row is told by what it sees: captured races have nothing else."""
    found = drive(straight, weights(**change))
    for car in range(NUM_CARS):
        _, potential = captured(found, car, weights(**change))
        np.testing.assert_allclose(potential, found.potential[:, car], atol=2e-5)


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
    """Within a race; where one ends and the next begins there is no captured race."""
    chosen = {"speed_slide": 0.5, "neo_slide": 0.01, "kamikaze": -0.02, "line_distance": -0.03}
    rewards = weights(speed_as_seconds=1.0, **chosen)
    found = drive(straight, rewards)
    is_within = ~(found.rest["is_reset"] | found.rest["terminated"] | found.rest["truncated"])[1:]
    is_within[-1] = False  # taken for the end of the race
    assert is_within.sum() > 2000
    for car in range(NUM_CARS):
        reward, _ = captured(found, car, rewards)
        expected = (found.reward - plain.reward)[1:, car]
        np.testing.assert_allclose(reward[is_within[:, car]], expected[is_within[:, car]], atol=2e-5)


def test_everything_together(straight, plain: Seen, terms) -> None:
    chosen = {"speed_slide": 0.5, "neo_slide": 0.01, "kamikaze": -0.02, "line_distance": -0.03}
    found = drive(straight, weights(speed_as_seconds=1.0, direction_potential=0.2, **chosen))
    check_same_races(found, plain)
    expected = plain.reward + reference_params().rewards.per_metre * terms["gained_mps"]
    expected = expected + sum(weight * terms[name] for name, weight in chosen.items())
    np.testing.assert_allclose(found.reward, expected, atol=3e-6)


def test_weights_follow_the_run(straight, plain: Seen, terms) -> None:
    """Halfway up a linear schedule the weight is half; before any step it is 0, to the bit."""
    rewards = weights(kamikaze=0.4)
    assert drive(straight, rewards, env_steps=0).reward.tobytes() == plain.reward.tobytes()
    np.testing.assert_allclose(
        drive(straight, rewards, env_steps=50).reward, plain.reward + 0.2 * terms["kamikaze"], atol=2e-6
    )


def test_one_car_is_paid_as_among_others(straight) -> None:
    rewards = weights(speed_as_seconds=2.0, speed_slide=0.5, line_distance=-0.1, direction_potential=0.3)
    seen = drive(straight, rewards)
    for car in (0, 5):
        options: Any = fast_and_askew(rewards)
        env, vector = RaceEnv(straight, **options), RaceVectorEnv(2, straight, **options)
        env.set_moment(Moment(100))
        vector.set_moment(Moment(100))
        env.reset(seed=4 + car)
        vector.reset(seed=4 + car)
        has_ended = False
        for t, action in enumerate(some_actions()[:, car]):
            _, rewards_of_two, *_ = vector.step(np.array([action, 0]))
            assert rewards_of_two[0] == seen.reward[t, car]
            if has_ended:
                env.reset()
                has_ended = False
                continue
            _, reward, terminated, truncated, info = env.step(action)
            assert (reward, info["potential"]) == (seen.reward[t, car], seen.potential[t, car])
            has_ended = terminated or truncated


@pytest.mark.parametrize("kmh", [-50.0, 0.0, 50.0, 100.0, 149.0, 200.0, 333.0, 500.0, 900.0])
def test_the_table_of_slides(kmh: float) -> None:
    assert slide_start(kmh / 3.6) == pytest.approx(table(kmh))
    assert slide_start(kmh / 3.6) == pytest.approx(np.interp(kmh, 100.0 * np.arange(len(SLIDE_START)), SLIDE_START))


def test_the_weights_by_hand() -> None:
    """Half a schedule of 0.5 is 0.25; 0.05 for a metre and 2 s make 0.1 for each m/s gained."""
    rewards = weights(per_metre=0.05, speed_as_seconds=2.0, neo_slide=0.5)
    array = formulas.rule_array(read_settings(None, {"rewards": rewards}, ()), 100.0)
    assert (array[formulas.PER_GAINED_MPS], array[formulas.NEO_SLIDE], array[formulas.PAYS_DRIVING]) == (0.1, 0.0, 1.0)
    formulas.set_engineered(array, rewards, Moment(50))
    assert array[formulas.NEO_SLIDE] == 0.25
    assert formulas.rule_array(read_settings(None, {}, ()), 100.0)[formulas.PAYS_DRIVING] == 0.0


def test_transitions_are_shaped_by_the_direction_when_they_are_drawn(straight) -> None:
    """gamma^n phi(s') - phi(s), phi = 0.4 (forward's z - 1); nothing follows where a race or its mini-race is over."""
    seen = drive(straight, weights(direction_potential=0.4))
    block = new_block(BlockSpec(NUM_STEPS - 1, NUM_CARS, 2, 2, 1))
    block.potential[:] = seen.potential
    block.reward[:] = seen.reward[1:]
    block.is_greedy[:] = True
    for name in ("terminated", "truncated", "is_reset"):
        getattr(block, name)[:] = seen.rest[name][1:]
    buffer = BlockRing(block.spec, 2)
    buffer.insert(block, 0)
    rows = np.flatnonzero(buffer.is_trainable(0))
    found = find_transitions(buffer.arrays, rows, 3)
    phi = 0.4 * (seen.cars[:, :, CAR["rotation"]][:, :, 8].astype(float) - 1.0)
    for clock, gamma in ((0, 0.9), (139, 1.0)):
        race = mini_race_returns(found, np.full(len(rows), clock), gamma, 140)
        for k in range(0, len(rows), 11):
            t, car = divmod(int(rows[k]), NUM_CARS)
            steps = 1 if clock == 139 else int(found.num_steps[k])
            expected = sum(gamma**i * float(seen.reward[t + 1 + i, car]) for i in range(steps)) - phi[t, car]
            if clock == 0 and not found.is_terminal[k]:
                expected += gamma**steps * phi[t + steps, car]
            assert race.reward[k] == pytest.approx(expected, abs=1e-5)
    assert found.is_terminal.any()
