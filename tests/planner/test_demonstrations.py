import numpy as np
import pytest

from rulka.contracts.observation import CAR
from rulka.planner.demonstrations import DrivenRace, record_demonstrations
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track


@pytest.fixture(scope="module")
def track(params):
    return generate_track(**params.track.model_copy(update={"length_m": 300.0}).model_dump())


def field(track, params, num_races: int, seed: int, **changes) -> list[DrivenRace]:
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    driver = params.races.driver.model_copy(update={"num_plans": 12} | changes)
    return record_demonstrations(track, settings, driver, num_races, seed)


def test_a_field_finishes_at_different_paces(track, params) -> None:
    races = field(track, params, 12, params.races.seed)
    assert all(race.is_finished for race in races)
    times = np.array([race.race_time_ms for race in races])
    assert 1.08 * times.min() < times.max()
    slow, fast = (field(track, params, 3, 1, pace_low=pace, pace=pace) for pace in (0.6, 0.9))
    assert min(race.race_time_ms or 0 for race in slow) > 1.15 * max(race.race_time_ms or 0 for race in fast)
    rows = np.concatenate([race.car_rows for race in races])
    assert rows[:, CAR["is_sliding"]].any()
    assert len(np.unique(np.concatenate([race.actions for race in races]))) >= 6


def test_a_driver_depends_on_the_seed_and_not_on_the_field(track, params) -> None:
    few, many, other = field(track, params, 2, 3), field(track, params, 4, 3), field(track, params, 1, 4)
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
