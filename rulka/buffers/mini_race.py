"""Mini-races: every transition is seen as part of a short race that began some random time before it.

Each sample draws a clock, the number of decisions since the mini-race began, which the network sees as float 0. The
mini-race ends after `iqn.mini_race_ms`, whatever happens on the track, so a Q-value is the best return in
the time that is left and gamma may be 1. The rules are those of Linesight's collate function.

A race that ends by finishing *or by leaving the track* is over: no value and no potential follow. A race cut by a
limit (too long, no progress) is not: its last observation still has a value.
Dimensions: B transitions, L most decisions in a transition.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.buffers.transitions import Transitions


class ClockRule(NamedTuple):
    """How clocks are drawn: x uniform on the integers [max_term - long_term, horizon + max_term), then
    max(0, |x| - max_term). With 140, 40 and 5: P(0) = 11 / 180, P(1 to 30) = 2 / 180 each, P(31 to 139) = 1 / 180 each.
    """  # noqa: D205

    horizon: int
    long_term: int
    max_term: int


class MiniRace(NamedTuple):
    """Learning targets of transitions.

    Attributes:
        reward: [B] float32 discounted reward within the mini-race, with shaping.
        discount: [B] float32 factor of the value that follows; 0 where nothing does.
        clock: [B] float32 decisions since the mini-race began, before the transition.
        next_clock: [B] float32 the same after it.
    """

    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    clock: NDArray[np.float32]
    next_clock: NDArray[np.float32]


def draw_clocks(uniform: NDArray[np.float64], rule: ClockRule) -> NDArray[np.int64]:
    """Turns uniform numbers [B] in [0, 1) into clocks [B] in [0, horizon)."""
    first, last = rule.max_term - rule.long_term, rule.horizon + rule.max_term
    x = first + np.floor(uniform * (last - first)).astype(np.int64)
    return np.maximum(0, np.abs(x) - rule.max_term)


def place_in_mini_races(transitions: Transitions, clock: NDArray[np.int64], gamma: float, horizon: int) -> MiniRace:
    """Cuts transitions at the end of their mini-race and adds potential-based shaping.

    Ng et al. 1999: adding gamma phi(s') - phi(s), with phi = 0 where nothing follows, leaves the best policy as it is.

    Args:
        transitions: B transitions of up to L decisions.
        clock: [B] decisions since each mini-race began; 0 to horizon - 1.
        gamma: discount of one decision, in [0, 1].
        horizon: decisions in a mini-race.
    """
    batch, max_steps = transitions.reward.shape
    result = MiniRace(*(np.empty(batch, np.float32) for _ in MiniRace._fields))
    powers = gamma ** np.arange(max_steps + 1, dtype=np.float64)
    _place(transitions, clock, powers, horizon, result)
    return result


@njit(cache=True, nogil=True)
def _place(
    transitions: Transitions, clock: NDArray[np.int64], powers: NDArray[np.float64], horizon: int, result: MiniRace
) -> None:
    for b in range(clock.shape[0]):
        num_steps = transitions.num_steps[b]
        num_counted = min(num_steps, horizon - clock[b])
        is_over = clock[b] + num_steps >= horizon
        has_ended = transitions.is_terminal[b] and num_counted == num_steps
        discount = 0.0 if is_over or has_ended else powers[num_counted]
        reward = 0.0
        for k in range(num_counted):
            reward += transitions.reward[b, k] * powers[k]
        reward += discount * transitions.next_potential[b] - transitions.potential[b]
        result.reward[b] = reward
        result.discount[b] = discount
        result.clock[b] = clock[b]
        result.next_clock[b] = clock[b] + num_steps
