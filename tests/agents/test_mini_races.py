"""The rules of mini-races: clock distribution, lengths, discounts, shaping."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.agents.iqn import draw_clocks, mini_race_returns
from rulka.buffers.ring import Transitions


def transitions(
    rewards: list[float], *, is_terminal: bool = False, potential: float = 0.0, next_potential: float = 0.0
) -> Transitions:
    one = np.zeros(1, np.int64)
    return Transitions(
        reward=np.array([[*rewards, *[0.0] * (3 - len(rewards))]], np.float32),
        num_steps=np.array([len(rewards)]),
        is_terminal=np.array([is_terminal]),
        observation=one,
        next_observation=one,
        potential=np.array([potential], np.float32),
        next_potential=np.array([next_potential], np.float32),
        action=one,
    )


def test_every_clock_has_its_exact_probability():
    """One uniform number from the middle of each of the 180 equal parts: 11, 30 times 2 and 109 times 1."""
    clocks = draw_clocks((np.arange(180) + 0.5) / 180, 140)
    counts = np.bincount(clocks, minlength=140)
    assert counts.tolist() == [11] + [2] * 30 + [1] * 109
    assert draw_clocks(np.array([0.0, np.nextafter(1.0, 0.0)]), 140).tolist() == [30, 139]


def test_a_mini_race_shorter_than_what_is_drawn_twice_as_often():
    """Twenty decisions: all of them are, but for the first."""
    counts = np.bincount(draw_clocks((np.arange(49) + 0.5) / 49, 20))
    assert counts.tolist() == [11] + [2] * 19


@pytest.mark.parametrize(
    ("clock", "is_terminal", "reward", "discount"),
    [
        (0, False, 1.75, 0.125),  # 1 + 0.5 + 0.25, then gamma^3
        (0, True, 1.75, 0.0),  # finished
        (136, False, 1.75, 0.125),  # ends at 139: still within
        (137, False, 1.75, 0.0),  # ends at 140 exactly: over
        (138, False, 1.5, 0.0),  # only two decisions left
        (139, True, 1.0, 0.0),
    ],
)
def test_three_decisions_by_hand(clock: int, is_terminal: bool, reward: float, discount: float):
    race = mini_race_returns(transitions([1, 1, 1], is_terminal=is_terminal), np.array([clock]), 0.5, 140)
    assert race.reward.tolist() == [reward]
    assert race.discount.tolist() == [discount]


def test_returns_are_the_formula_on_arrays():
    """Any transitions: rewards up to the end of the mini-race count, discounted, and nothing follows an end."""
    rng = np.random.default_rng(0)
    batch, max_steps, horizon, discount = 500, 4, 20, 0.9
    num_steps = rng.integers(1, max_steps + 1, batch)
    reward = rng.standard_normal((batch, max_steps)).astype(np.float32)
    reward[np.arange(max_steps) >= num_steps[:, None]] = 0.0
    potential, next_potential = rng.standard_normal((2, batch)).astype(np.float32)
    is_terminal = rng.random(batch) < 0.3
    nothing = np.zeros(batch, np.int64)
    found = Transitions(reward, num_steps, is_terminal, nothing, nothing, potential, next_potential, nothing)
    clock = rng.integers(0, horizon, batch)
    num_counted = num_steps - np.maximum(0, clock + num_steps - horizon)
    has_end = (clock + num_steps >= horizon) | (is_terminal & (num_counted == num_steps))
    steps = np.arange(max_steps)
    factor = np.where(has_end, 0.0, discount**num_counted)
    expected = (reward * discount**steps * (steps < num_counted[:, None])).sum(axis=1)
    expected += factor * next_potential - potential
    race = mini_race_returns(found, clock, discount, horizon)
    np.testing.assert_allclose(race.reward, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(race.discount, factor, rtol=1e-6)
    assert has_end.any()
    assert not has_end.all()
