"""Decisions that are chunks of actions, taken several times, or numbers; and what is none."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction
from gymnasium.utils.env_checker import check_env


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


def test_a_repeated_decision_is_seen_and_paid_as_two(make_vector) -> None:
    """Of every car until its first race has ended, with the first or the second of two single decisions."""
    options = {"start_anywhere": 0.5, "max_race_s": 3.0}
    repeated, single = make_vector(4, action_repeat=2, **options), make_vector(4, **options)
    seen, alike = repeated.reset(seed=3)[0], single.reset(seed=3)[0]
    is_racing, num_early = np.ones(4, bool), 0
    for action in np.random.default_rng(0).integers(0, 12, (40, 4)):
        np.testing.assert_array_equal(seen["image"][is_racing], alike["image"][is_racing])
        np.testing.assert_array_equal(seen["floats"][is_racing], alike["floats"][is_racing])
        seen, reward, terminated, truncated, _ = repeated.step(action)
        _, first, *ends, _ = single.step(action)
        is_early = ends[0] | ends[1]
        alike, second, *later_ends, _ = single.step(action)
        paid = np.where(is_early, first, first + second)
        np.testing.assert_allclose(reward[is_racing], paid[is_racing], rtol=1e-5, atol=1e-6)
        expected = [np.where(is_early, early, late) for early, late in zip(ends, later_ends, strict=True)]
        np.testing.assert_array_equal(np.array([terminated, truncated])[:, is_racing], np.array(expected)[:, is_racing])
        num_early += int((is_early & is_racing).sum())
        is_racing &= ~(terminated | truncated)
    assert num_early
    assert not is_racing.any()


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
    for options in ({}, {"actions_per_decision": 5}, {"action_repeat": 2}, {"continuous": True}):
        env = gymnasium.make("rulka/Race-v0", disable_env_checker=True, **options).unwrapped
        assert env.metadata["render_fps"] == 20 // options.get("action_repeat", 1)
        check_env(env, skip_render_check=bool(options))


def test_what_is_no_decision_is_refused_and_nothing_moves(make_env, make_vector) -> None:
    controls = (
        [np.nan, 0, 0],
        [0, np.nan, 0],
        [1.01, 0, 0],
        [0, -0.1, 0],
        [0, 0, 1.5],
        [0, 0],
        3,
        "left",
        None,
        [[0], 0],
    )
    actions = (12, -1, 0.5, np.nan, np.array([1, 2]), "left", None, 10**30)
    chunks = (3, [0, 1, 2, 3], [0, 0, 0, 0, 12], [0.5] * 5, None)
    for options, wrong, said in (
        ({}, actions, "1 whole numbers from 0 to 11"),
        ({"actions_per_decision": 5}, chunks, "1 x 5 whole numbers from 0 to 11"),
        ({"continuous": True}, controls, r"1 rows of steer in \[-1, 1\]"),
    ):
        env = make_env(**options)
        env.reset(seed=0)
        before = env.batch.simulator.save()
        for action in wrong:
            with pytest.raises(InvalidAction, match=said):
                env.step(action)
        assert np.array_equal(env.batch.simulator.save(), before)
    vector, analog = make_vector(3), make_vector(2, continuous=True)
    vector.reset(seed=0)
    analog.reset(seed=0)
    for wrong in (np.zeros(2, np.int64), np.zeros(3), np.array([0, 12, 0]), np.array([0, -1, 0]), np.full(3, np.nan)):
        with pytest.raises(InvalidAction, match="3 whole numbers from 0 to 11"):
            vector.step(wrong)
    with pytest.raises(InvalidAction, match="2 rows of steer"):
        analog.step(np.array([[0.0, 1.0, 0.0], [0.0, 0.0, np.inf]]))
    assert (analog.batch.simulator.time_ms == 0).all(), "no car has moved"
