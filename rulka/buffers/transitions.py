"""Transitions of several decisions, read out of stored blocks by compiled loops, and their returns.

Dimensions: B transitions, L most decisions in a transition, K actions of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.buffers.ring import NO_SLOT, RingArrays


class Transitions(NamedTuple):
    """Where transitions start and end and what happened between.

    Attributes:
        reward: [B, L] float32 reward of each decision, 0 after the last one.
        num_steps: [B] int64 decisions in the transition, 1 to L.
        is_terminal: [B] the race ended for good with the last decision.
        observation: [B] int64 flat index of the observation before the first decision.
        next_observation: [B] int64 flat index of the observation after the last one.
        potential: [B] float32 of the observation.
        next_potential: [B] float32 of the next observation.
        action: [B] int64 first action; [B, K] first chunk of actions, or float32 numbers.
    """

    reward: NDArray[np.float32]
    num_steps: NDArray[np.int64]
    is_terminal: NDArray[np.bool_]
    observation: NDArray[np.int64]
    next_observation: NDArray[np.int64]
    potential: NDArray[np.float32]
    next_potential: NDArray[np.float32]
    action: NDArray


def find_transitions(
    ring: RingArrays, rows: NDArray[np.int64], max_steps: int, *, past_exploring: bool = False
) -> Transitions:
    """Follows each row for up to `max_steps` decisions.

    A transition ends early with its race, with the newest observation of its stream, and before the first later
    decision that was not greedy: what came of exploring is not what the policy would have earned. It always holds at
    least its own decision, the finishing one included. A race cut by a limit is no end for good.

    Args:
        ring: the blocks.
        rows: [B] flat indices of decisions that are no resets.
        max_steps: L, most decisions in a transition; positive.
        past_exploring: goes on past decisions that were not greedy, for policies all of whose decisions are noisy.
    """
    batch = len(rows)
    first = ring.action.reshape(-1, *ring.action.shape[3:])[rows]
    found = Transitions(
        reward=np.zeros((batch, max_steps), np.float32),
        num_steps=np.zeros(batch, np.int64),
        is_terminal=np.zeros(batch, np.bool_),
        observation=np.zeros(batch, np.int64),
        next_observation=np.zeros(batch, np.int64),
        potential=np.zeros(batch, np.float32),
        next_potential=np.zeros(batch, np.float32),
        action=first if first.dtype == np.float32 else first.astype(np.int64),
    )
    _follow_rows(ring, rows, max_steps, past_exploring, found)
    return found


@njit(cache=True, nogil=True)
def _follow_rows(
    ring: RingArrays, rows: NDArray[np.int64], max_steps: int, past_exploring: bool, found: Transitions
) -> None:
    num_steps, num_cars = ring.reward.shape[1], ring.reward.shape[2]
    for b in range(rows.shape[0]):
        car = rows[b] % num_cars
        step = (rows[b] // num_cars) % num_steps
        slot = rows[b] // (num_cars * num_steps)
        found.observation[b] = (slot * (num_steps + 1) + step) * num_cars + car
        found.potential[b] = ring.potential[slot, step, car]
        count = 0
        while True:
            found.reward[b, count] = ring.reward[slot, step, car]
            count += 1
            is_terminal = ring.terminated[slot, step, car]
            has_ended = is_terminal or ring.truncated[slot, step, car]
            step += 1
            if has_ended or count == max_steps:
                break
            if step == num_steps:
                if ring.next_slot[slot] == NO_SLOT:
                    break
                slot, step = ring.next_slot[slot], 0
            if ring.is_reset[slot, step, car] or not (past_exploring or ring.is_greedy[slot, step, car]):
                break
        found.num_steps[b] = count
        found.is_terminal[b] = is_terminal
        found.next_observation[b] = (slot * (num_steps + 1) + step) * num_cars + car
        found.next_potential[b] = ring.potential[slot, step, car]


class Returns(NamedTuple):
    """Discounted rewards of transitions, and the factor of the value that follows them; both [B] float32."""

    reward: NDArray[np.float32]
    discount: NDArray[np.float32]


def shaped_returns(
    found: Transitions, num_counted: NDArray[np.int64], has_ended: NDArray[np.bool_], gamma: float
) -> Returns:
    """Discounts rewards and adds potential-based shaping.

    Ng et al. 1999: adding gamma phi(s') - phi(s), with phi = 0 where nothing follows, leaves the best policy as it is.

    Args:
        found: B transitions.
        num_counted: [B] their first decisions whose rewards count, 1 to L.
        has_ended: [B] whether no value follows.
        gamma: discount of one decision, in [0, 1].
    """
    powers = gamma ** np.arange(found.reward.shape[1] + 1, dtype=np.float64)
    discount = np.where(has_ended, 0.0, powers[num_counted])
    paid = np.zeros(len(num_counted))
    for step, power in enumerate(powers[:-1]):
        paid += np.where(step < num_counted, found.reward[:, step] * power, 0.0)
    reward = paid + (discount * found.next_potential - found.potential)
    return Returns(reward.astype(np.float32), discount.astype(np.float32))
