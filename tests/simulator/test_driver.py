import numpy as np
import pytest
from numba import njit

from rulka.contracts.observation import CAR
from rulka.simulator import car as columns
from rulka.simulator.constants import road_array
from rulka.simulator.demonstrations import record_demonstrations
from rulka.simulator.driver import BRAKE_SHARE, LOCK_SHARE, PurePursuitDriver, Skills, bends, sample_skills, speed_plan
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track
from rulka.tracks.progress import locate, zone_frames


@pytest.fixture(scope="module")
def track(params):
    return generate_track(**params.track.model_dump())


def skilled(pace: float, num: int = 1) -> Skills:
    return Skills(np.full(num, pace), np.full(num, 0.42), np.zeros(num), np.zeros(num))


def race_time_s(track, params, table, skills: Skills) -> np.ndarray:
    num = len(skills.pace)
    simulator = Simulator(track, num, params.simulator, table)
    driver = PurePursuitDriver(track, params.simulator.physics, skills, seed=0)
    for _ in range(900):
        simulator.step(driver.actions(simulator))
    assert simulator.is_finished.all()
    return simulator.gate_time_ms[:, -1] / 1000.0


def test_bends_of_a_circle_and_a_hill(make_track) -> None:
    turn, rise = bends(make_track(200.0, curvature=lambda s: np.full_like(s, -1 / 50)))
    np.testing.assert_allclose(turn[20:380], -1 / 50, rtol=2e-3)  # to the right
    np.testing.assert_allclose(rise, 0.0, atol=1e-9)
    _turn, rise = bends(make_track(100.0, slope=lambda s: 0.002 * s))
    np.testing.assert_allclose(rise[20:150], 0.002, rtol=0.03)


def test_speed_plan_by_hand(make_track, params) -> None:
    """Straight, then a circle of 53 m from 300 m on, in a car that turns at 1.1 rad/s at any speed.

    With 0.88 of the lock the circle is 46.64 m at the limit, which is driven at 1.1 * 46.64 = 51.3 m/s.
    """
    assert LOCK_SHARE == 0.88
    changes = {"turn_rate_rps": ((0.0, 1.1), (255.0, 1.1)), "engine_brake_per_s": 0.3, "locked_brake_mps2": 30.0}
    physics = params.simulator.physics.model_copy(update=changes)
    track = make_track(600.0, curvature=lambda s: np.where((s > 300.0) & (s < 480.0), 1 / 53, 0.0))
    plan = speed_plan(track, physics, 1.0)
    assert plan[800] == pytest.approx(51.3, abs=0.3)
    # 10 m earlier on the straight it may be faster by what 10 m of 0.75 * 30 m/s2 and of the engine brake take away
    assert BRAKE_SHARE == 0.75
    gained = 2 * 10 * (22.5 + 0.3 * plan[550])
    assert plan[540] ** 2 - plan[560] ** 2 == pytest.approx(gained, rel=0.01)
    assert speed_plan(track, physics, 0.7)[800] == pytest.approx(0.7 * 51.3, abs=0.3)


def test_more_pace_is_faster_and_steadier_hands_too(track, params, table) -> None:
    slow, middle, fast = (race_time_s(track, params, table, skilled(pace))[0] for pace in (0.65, 0.8, 0.95))
    assert slow > 1.05 * middle > 1.05 * 1.05 * fast


def field(track, params, num_races: int, seed: int) -> list:
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    return record_demonstrations(track, settings, params.races.driver, num_races, seed)


def test_demonstrations_finish_and_are_beatable(track, params) -> None:
    """At least 95 % of a field finish, and the best is a tenth faster than the median."""
    races = field(track, params, 40, params.races.seed)
    times = np.array([race.race_time_ms for race in races if race.is_finished])
    assert len(times) >= 38
    assert 1.08 * times.min() < np.median(times)
    rows = np.concatenate([race.car_rows for race in races])
    speed = np.linalg.norm(rows[:, CAR["velocity"]], axis=1)
    assert speed.max() > 50.0
    assert rows[:, CAR["is_sliding"]].any()
    assert len(np.unique(np.concatenate([race.actions for race in races]))) >= 9


def test_a_driver_depends_on_the_seed_and_not_on_the_field(track, params) -> None:
    few, many, other = field(track, params, 2, 3), field(track, params, 5, 3), field(track, params, 1, 4)
    for k in range(2):
        assert np.array_equal(few[k].actions, many[k].actions)
        assert few[k].car_rows.tobytes() == many[k].car_rows.tobytes()
    assert not np.array_equal(few[0].actions, other[0].actions)


def test_a_race_holds_what_was_driven(track, params, table) -> None:
    race = field(track, params, 2, 5)[0]
    assert len(race.car_rows) == len(race.time_ms) == len(race.actions) + 1
    assert race.race_time_ms == race.gate_times_ms[-1]
    assert list(race.gate_times_ms) == sorted(race.gate_times_ms)
    simulator = Simulator(track, 1, params.simulator, table)
    simulator.reset(np.ones(1, bool), lateral_m=race.car_rows[0, 0] - track.centre_m[0, 0])  # the track starts along z
    for action in race.actions:
        simulator.step(np.array([action]))
    np.testing.assert_allclose(simulator.cars[0], race.car_rows[-1], rtol=1e-4, atol=1e-3)


def test_skills_spread_and_belong_to_the_seed(params) -> None:
    driver = params.races.driver
    skills = sample_skills(200, driver, 4)
    assert skills.pace.min() < driver.pace_low + 0.05
    assert skills.pace.max() > driver.pace_high - 0.05
    assert (np.abs(skills.line_m) <= driver.line_m).all()
    assert (skills.slip_chance <= driver.slip_chance).all()
    assert not np.array_equal(skills.pace, sample_skills(200, driver, 5).pace)


find_ground = njit(columns.find_ground)


def test_kernels_and_tracks_locate_alike(track) -> None:
    """The search in the physics kernels is that of `rulka.tracks.progress`, held together by this test."""
    rng, zones, frames, road = np.random.default_rng(0), track.exact_zones, zone_frames(track), road_array(track)
    car, below, c = np.zeros(columns.NUM_STATE), np.zeros(columns.NUM_SCRATCH), np.zeros(columns.NUM_CONSTANTS)
    c[columns.SPACING_M] = 0.5
    for zone in range(5, track.num_zones - 5, 7):
        position = zones[zone] + rng.uniform(-3, 3, 3)
        car[columns.X : columns.X + 3], car[columns.ZONE] = position, max(zone - 20, 0)
        find_ground(car, road, c, below)
        index, along, lateral, height = locate(position, zones, frames, max(zone - 20, 0), 64, 0.5)
        assert car[columns.ZONE] == index
        found = car[[columns.ALONG, columns.LATERAL, columns.HEIGHT]]
        np.testing.assert_allclose(found, [along, lateral, height], atol=1e-3)


def test_advice_is_what_the_keys_amount_to_and_remembers_nothing(track, params, table) -> None:
    """Whole key presses never differ by more than half a decision from the shares that were advised up to then."""
    simulator = Simulator(track, 3, params.simulator, table)
    driver = PurePursuitDriver(track, params.simulator.physics, skilled(0.9, 3), seed=0)
    other = PurePursuitDriver(track, params.simulator.physics, skilled(0.9, 3), seed=0)
    keys, ahead = table.keys(), np.zeros(3)
    differences = []
    for _ in range(250):
        advice = driver.advice(simulator)
        assert np.array_equal(advice, driver.advice(simulator)), "asking changes nothing"
        assert np.array_equal(advice, other.advice(simulator)), "nor does what was driven before"
        np.testing.assert_allclose(advice.sum(axis=1), 1.0, atol=1e-6)
        assert (np.count_nonzero(advice, axis=1) <= 2).all()
        taken = driver.actions(simulator)
        assert (advice @ keys[:, :2] > 0.5).tolist() == (keys[taken, :2] > 0.5).tolist(), "gas and brake are the same"
        ahead += (keys[taken] - advice @ keys) @ np.array([0.0, 0.0, -1.0, 1.0])
        differences.append(ahead.copy())
        simulator.step(taken)
    assert np.abs(differences).max() <= 0.5 + 1e-5
    assert np.ptp(differences) > 0.5, "keys are whole, shares are not"
