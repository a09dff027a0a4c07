from __future__ import annotations

import numpy as np

from rulka.actions import action_table
from rulka.params import Params
from rulka.race_settings import RaceSettings
from rulka.simulator.demonstrations import record_demonstrations
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track

TABLE = action_table(5)


def field(params: Params, num_races: int, seed: int) -> list:
    track = generate_track(**params.track.model_dump())
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    return record_demonstrations(track, settings, params.races.driver, num_races, seed)


def test_the_field_finishes_and_spreads(params: Params) -> None:
    races = field(params, 24, seed=5)
    times = np.array([race.race_time_ms for race in races if race.is_finished])
    assert len(times) >= 23
    assert times.max() > 1.1 * times.min()


def test_equal_seeds_drive_equal_races(params: Params) -> None:
    one, other = field(params, 4, seed=9), field(params, 4, seed=9)
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a.car_rows, b.car_rows)
    assert not np.array_equal(one[0].actions, field(params, 4, seed=10)[0].actions)


def test_a_race_holds_what_was_driven(params: Params) -> None:
    race = field(params, 2, seed=5)[0]
    assert len(race.car_rows) == len(race.time_ms) == len(race.actions) + 1
    assert race.race_time_ms == race.gate_times_ms[-1]
    assert list(race.gate_times_ms) == sorted(race.gate_times_ms)
    track = generate_track(**params.track.model_dump())
    simulator = Simulator(track, 1, params.simulator, TABLE)
    simulator.reset(np.ones(1, bool), lateral_m=race.car_rows[0, 0] - track.centre_m[0, 0])  # the track starts along z
    for action in race.actions:
        simulator.step(np.array([action]))
    np.testing.assert_allclose(simulator.cars[0], race.car_rows[-1], rtol=1e-4, atol=1e-3)
