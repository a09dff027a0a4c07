"""Decisions that are chunks of actions, taken several times, or numbers; and what is none."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction
from gymnasium.utils.env_checker import check_env


def test_full_controls_are_the_keys(make_env) -> None:
    """Gas and full lock to the left, analog and by key: the same race to the bit, keys in the floats included."""
    keys, analog = make_env(), make_env(continuous=True)
    assert analog.action_space == gymnasium.spaces.Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32))
    keys.reset(seed=1)
    analog.reset(seed=1)
    for _ in range(15):
        one, other = keys.step(1), analog.step(np.array([-1.0, 1.0, 0.0], np.float32))
        assert np.array_equal(one[0]["floats"], other[0]["floats"])
        assert one[1:] == other[1:]


@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_passes_without_a_warning() -> None:
    for options in (
        {},
        {"actions_per_decision": 5},
        {"actions_per_decision": [0, 20]},
        {"action_repeat": 2},
        {"continuous": True},
    ):
        env = gymnasium.make("rulka/Race-v0", disable_env_checker=True, **options).unwrapped
        assert env.metadata["render_fps"] == 20 // options.get("action_repeat", 1)
        check_env(env, skip_render_check=bool(options))


def test_what_is_no_decision_is_refused_and_nothing_moves(make_env, make_vector) -> None:
    """What else is none is held by the simulator's tests."""
    for options, wrong, said in (
        ({}, (12, 0.5, np.array([1, 2]), "left", None, 10**30), "1 whole number from 0 to 11"),
        ({"actions_per_decision": 5}, (3, [0, 0, 0, 0, 12], None), "1 x 5 whole numbers from 0 to 11"),
        ({"continuous": True}, ([np.nan, 0, 0], [0, 0], "left", [[0], 0]), r"1 rows of steer in \[-1, 1\]"),
    ):
        env = make_env(**options)
        env.reset(seed=0)
        before = env.batch.simulator.save()
        for action in wrong:
            with pytest.raises(InvalidAction, match=said):
                env.step(action)
        assert np.array_equal(env.batch.simulator.save(), before)
    vector = make_vector(3)
    vector.reset(seed=0)
    for wrong in (np.zeros(2, np.int64), np.zeros(3), np.array([0, 12, 0])):
        with pytest.raises(InvalidAction, match="3 whole numbers from 0 to 11"):
            vector.step(wrong)
    assert (vector.batch.simulator.time_ms == 0).all(), "no car has moved"
