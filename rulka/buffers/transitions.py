"""Transitions of several decisions, read from stored blocks by compiled loops.

Rows and observation indices are those of `rulka.buffers.ring`.
Dimensions: B transitions, L most decisions in a transition, K actions of a decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.buffers.ring import NO_SLOT, RingArrays, observation_index
from rulka.machine.kernels import cached_njit


class Transitions(NamedTuple):
    """Start, end, rewards and first action of transitions: what the compiled loops find in a ring.

    Attributes:
        row: [B] int64 of the first decision.
        importance: [B] float32 importance weight.
        reward: [B, L] float32 reward of each decision, 0 after the last one.
        num_steps: [B] int64 decisions in the transition, 1 to L.
        is_terminal: [B] the last decision was terminal.
        observation: [B] int64 index of the observation before the first decision.
        next_observation: [B] int64 index of the observation after the last one.
        potential: [B] float32 of the observation.
        next_potential: [B] float32 of the next observation.
        action: [B, K] int64 first actions; float32 if decisions are continuous.
    """

    row: NDArray[np.int64]
    importance: NDArray[np.float32]
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
    decision that was not greedy: rewards after exploring are not the policy's. It always holds at least its own
    decision, even the finishing one. A truncated race is not terminal.

    Args:
        ring: the blocks.
        rows: [B] of decisions that are not resets.
        max_steps: L, most decisions in a transition; positive.
        past_exploring: continues past decisions that were not greedy, for policies with noise in every decision.
    """
    batch = len(rows)
    first = ring.action.reshape(-1, ring.action.shape[-1])[rows]
    transitions = Transitions(
        row=rows,
        importance=np.ones(batch, np.float32),
        reward=np.zeros((batch, max_steps), np.float32),
        num_steps=np.zeros(batch, np.int64),
        is_terminal=np.zeros(batch, np.bool_),
        observation=observation_index(ring, rows),
        next_observation=np.zeros(batch, np.int64),
        potential=np.zeros(batch, np.float32),
        next_potential=np.zeros(batch, np.float32),
        action=first if first.dtype == np.float32 else first.astype(np.int64),
    )
    _follow_rows(ring, max_steps, past_exploring, transitions)
    return transitions


@cached_njit
def _follow_rows(ring: RingArrays, max_steps: int, past_exploring: bool, out: Transitions) -> None:
    rows, block_steps, num_cars = out.row, ring.reward.shape[1], ring.reward.shape[2]
    for b in range(rows.shape[0]):
        car = rows[b] % num_cars
        step = (rows[b] // num_cars) % block_steps
        slot = rows[b] // (num_cars * block_steps)
        out.potential[b] = ring.potential[slot, step, car]
        count = 0
        while True:
            out.reward[b, count] = ring.reward[slot, step, car]
            count += 1
            is_terminal = ring.terminated[slot, step, car]
            has_ended = is_terminal or ring.truncated[slot, step, car]
            step += 1
            if has_ended or count == max_steps:
                break
            if step == block_steps:
                if ring.next_slot[slot] == NO_SLOT:
                    break
                slot, step = ring.next_slot[slot], 0
            if ring.is_reset[slot, step, car] or not (past_exploring or ring.is_greedy[slot, step, car]):
                break
        out.num_steps[b] = count
        out.is_terminal[b] = is_terminal
        out.next_observation[b] = (slot * (block_steps + 1) + step) * num_cars + car
        out.next_potential[b] = ring.potential[slot, step, car]


def shaped_rewards(
    transitions: Transitions, num_counted: NDArray[np.int64], has_ended: NDArray[np.bool_], gamma: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns discounted rewards [B] with potential-based shaping, and the factors [B] of the next values.

    Ng et al. 1999: adding gamma phi(s') - phi(s), with phi = 0 if nothing follows, keeps the optimal policy unchanged.

    Args:
        transitions: B of them.
        num_counted: [B] number of first decisions whose rewards count, 1 to L.
        has_ended: [B] True if no value follows.
        gamma: discount of one decision, in [0, 1].
    """
    powers = gamma ** np.arange(transitions.reward.shape[1] + 1, dtype=np.float64)
    discount = np.where(has_ended, 0.0, powers[num_counted])
    paid = np.zeros(len(num_counted))
    for step, power in enumerate(powers[:-1]):
        paid += np.where(step < num_counted, transitions.reward[:, step] * power, 0.0)
    reward = paid + (discount * transitions.next_potential - transitions.potential)
    return reward.astype(np.float32), discount.astype(np.float32)
