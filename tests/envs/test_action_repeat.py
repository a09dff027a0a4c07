"""Environments that take every decision twice."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rulka.envs.race import RaceEnv


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


def test_gymnasium_finds_nothing_wrong(straight) -> None:
    env = RaceEnv(straight, action_repeat=2, render_mode="rgb_array")
    check_env(env, skip_render_check=True)
    assert env.metadata["render_fps"] == 10
    assert RaceEnv(straight).metadata["render_fps"] == 20


def test_a_race_that_ends_in_the_middle_ends_the_decision(make_env) -> None:
    env = make_env(action_repeat=4)
    env.reset(seed=1)
    num_decisions, has_ended = 0, False
    while not has_ended:
        *_, has_ended, _, info = env.step(1)
        num_decisions += 1
    assert info["is_off_track"]
    assert 200 * (num_decisions - 1) < info["time_ms"] < 200 * num_decisions


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_repeats_are_whole_and_positive(make_env, wrong) -> None:
    with pytest.raises(ValueError, match="action_repeat"):
        make_env(action_repeat=wrong)
