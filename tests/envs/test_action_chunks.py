"""Environments whose decisions are chunks of actions."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.error import InvalidAction
from gymnasium.utils.env_checker import check_env

from rulka.envs.race import RaceEnv
from rulka.envs.settings import SettingsError


def test_a_block_of_equal_actions_is_one_action(make_vector) -> None:
    options = {"start_anywhere": 0.5, "max_race_s": 3.0}
    held, blocks = make_vector(4, **options), make_vector(4, actions_per_decision=5, **options)
    seen, wide = held.reset(seed=3)[0], blocks.reset(seed=3)[0]
    assert (seen["floats"].shape, wide["floats"].shape) == ((4, 184), (4, 264))
    for action in np.random.default_rng(0).integers(0, 12, (150, 4)):
        one, other = held.step(action), blocks.step(np.repeat(action[:, None], 5, axis=1))
        np.testing.assert_array_equal(one[0]["image"], other[0]["image"])
        np.testing.assert_array_equal(one[0]["floats"][:, 21:], other[0]["floats"][:, 101:])
        for ours, theirs in zip(one[1:4], other[1:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_one_car_is_one_of_many(make_env, make_vector) -> None:
    env, vector = make_env(actions_per_decision=5), make_vector(2, actions_per_decision=5)
    assert env.reset(seed=5)[0]["floats"].tobytes() == vector.reset(seed=5)[0]["floats"][0].tobytes()
    for block in np.random.default_rng(1).integers(0, 12, (20, 5)):
        seen, reward, *_ = env.step(block)
        others, rewards, *_ = vector.step(np.stack([block, block]))
        assert seen["floats"].tobytes() == others["floats"][0].tobytes()
        assert reward == rewards[0]


def test_gymnasium_finds_nothing_wrong(straight) -> None:
    check_env(RaceEnv(straight, actions_per_decision=5), skip_render_check=True)


@pytest.mark.parametrize("action", [3, [0, 1, 2, 3], [0, 0, 0, 0, 12], [0.5] * 5, None])
def test_what_is_no_block_is_refused(make_env, action) -> None:
    env = make_env(actions_per_decision=5)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="1 x 5 whole numbers from 0 to 11"):
        env.step(action)


def test_settings_that_make_no_sense_are_refused(make_env) -> None:
    with pytest.raises(SettingsError, match="5 ticks cannot be shared evenly by 3 actions"):
        make_env(actions_per_decision=3)
    with pytest.raises(SettingsError, match="held for a whole decision"):
        make_env(actions_per_decision=5, continuous=True)
