"""Where races begin: given places, saved states, masks, rolling starts; wrong ones are refused by name."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from rulka.machine.errors import UserError
from rulka.simulator.simulator import SimulatorError

GAS = 0


def test_a_place_is_where_it_begins(make_env) -> None:
    env = make_env()
    place = {"along_m": 30.0, "lateral_m": -2.0, "heading_rad": 0.1, "speed_mps": 20.0}
    observation, info = env.reset(seed=0, options=place)
    simulator = env.batch.simulator
    assert (simulator.along_m[0], simulator.lateral_m[0], info["progress_m"]) == (30.0, -2.0, 30.0)
    assert observation in env.observation_space
    assert np.linalg.norm(simulator.cars[0, 12:15]) == pytest.approx(20.0)
    assert np.arctan2(simulator.cars[0, 12], simulator.cars[0, 14]) == pytest.approx(0.1)


def test_what_is_left_open_is_drawn_as_ever(make_vector) -> None:
    env, twin = (make_vector(3, start_lateral_m=3.0) for _ in range(2))
    env.reset(seed=1, options={"along_m": np.array([10.0, 20.0, 30.0])})
    twin.reset(seed=1)
    assert env.batch.simulator.along_m.tolist() == [10.0, 20.0, 30.0]
    assert env.batch.simulator.lateral_m.tolist() == twin.batch.simulator.lateral_m.tolist()
    assert np.unique(env.batch.simulator.lateral_m).size == 3


def test_a_state_goes_on_where_it_was_saved(make_env, make_vector) -> None:
    env, other = make_env(start_anywhere=0.5), make_env(start_anywhere=0.5)
    env.reset(seed=2)
    for _ in range(10):
        env.step(GAS)
    saved = env.batch.state_dict()
    expected = [env.step(GAS)[0]["floats"], env.reset()[0]["floats"]]
    other.reset(seed=77, options=None)
    other.reset(options={"state": saved})
    assert np.array_equal([other.step(GAS)[0]["floats"], other.reset()[0]["floats"]], expected)
    other.reset(seed=5, options={"state": saved})
    assert np.array_equal(other.step(GAS)[0]["floats"], expected[0])
    many, twins = make_vector(2), make_vector(2)
    many.reset(seed=2)
    twins.reset(options={"state": many.batch.state_dict()})
    assert np.array_equal(twins.step(np.zeros(2, int))[0]["floats"], many.step(np.zeros(2, int))[0]["floats"])


def test_a_mask_leaves_the_others_alone(make_vector) -> None:
    env = make_vector(3, start_lateral_m=3.0, autoreset_mode="DISABLED", max_race_s=0.2)
    env.reset(seed=0)
    for _ in range(4):
        *_, truncated, info = env.step(np.zeros(3, np.int64))
    assert truncated.all()
    before = env.batch.simulator.save()
    observation, info = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert info["time_ms"].tolist() == [200, 0, 200]
    assert np.array_equal(env.batch.simulator.save()[[0, 2]], before[[0, 2]])
    with pytest.raises(ResetNeeded, match="has ended"):
        env.step(np.zeros(3, np.int64))
    env.reset(options={"reset_mask": np.array([True, False, True])})
    assert env.step(np.zeros(3, np.int64))[-1]["time_ms"].tolist() == [50, 50, 50]
    assert observation in env.observation_space


def test_wrong_options_are_named(make_vector) -> None:
    env = make_vector(3)
    env.reset(seed=0)
    for options, message in (
        ({"along": 3.0}, r"unknown reset options \['along'\]"),
        ({"along_m": "far"}, "'along_m' is a finite number"),
        ({"lateral_m": np.nan}, "'lateral_m' is a finite number or 3"),
        ({"speed_mps": [1.0, 2.0]}, "'speed_mps' is a finite number or 3"),
        ({"state": b"pickle"}, "'state' is what RaceBatch.state_dict returned"),
        ({"state": {"cars": 1}}, "'state' is what RaceBatch.state_dict returned"),
        ({"state": 1, "along_m": 3.0}, r"excludes \['along_m'\]"),
        ({"reset_mask": [True, False, False]}, "'reset_mask' is a bool array of 3"),
        ({"reset_mask": np.zeros(3, bool)}, "at least one True"),
        ({"reset_mask": np.ones(2, bool)}, "'reset_mask' is a bool array of 3"),
    ):
        with pytest.raises(UserError, match=message):
            env.reset(options=options)


def test_places_off_the_track_and_early_masks_are_refused(make_env, make_vector) -> None:
    env = make_env()
    with pytest.raises(SimulatorError, match="placed"):
        env.reset(seed=0, options={"along_m": 80.0})
    with pytest.raises(UserError, match="unknown reset options \\['reset_mask'\\]"):
        env.reset(options={"reset_mask": np.ones(1, bool)})
    with pytest.raises(UserError, match="the first reset is of all cars"):
        make_vector(2).reset(options={"reset_mask": np.array([True, False])})
