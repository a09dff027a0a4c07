"""Batches for replay learning: rows drawn alike or by priority, read as transitions, placed in mini-races.

Dimensions: B batch, H x W pixels, F floats, K most decisions in a transition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.buffers.mini_race import ClockRule, draw_clocks, place_in_mini_races
from rulka.buffers.prioritised import DrawnRows, Priorities
from rulka.buffers.storage import BlockBuffer
from rulka.buffers.transitions import find_transitions, gather_observations
from rulka.observation import FLOATS

_CLOCK = FLOATS["clock"].start


class Batch(NamedTuple):
    """Transitions to learn from; memory that the next batch overwrites.

    Attributes:
        image: [B, 1, H, W] uint8.
        floats: [B, F] float32, raw, with the clock of the mini-race.
        action: [B] int64; [B, K] blocks of actions.
        reward: [B] float32, discounted over the decisions of the transition, with shaping.
        discount: [B] float32 factor of the value of the next observation; 0 where nothing follows.
        next_image: [B, 1, H, W] uint8.
        next_floats: [B, F] float32, raw, with the clock.
        weight: [B] float32 importance of each transition; 1 where all are drawn alike.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_image: Tensor
    next_floats: Tensor
    weight: Tensor


class Portion(NamedTuple):
    """How many transitions of a batch come from which buffer.

    Attributes:
        buffer: where they lie.
        num_transitions: how many.
        priorities: of the buffer's rows; None draws all alike.
        beta: exponent of the importance weights, if there are priorities.
        from_held_out: draws from the races that are held out, and only from them; not with priorities.
    """

    buffer: BlockBuffer
    num_transitions: int
    priorities: Priorities | None = None
    beta: float = 1.0
    from_held_out: bool = False


def draw_rows(
    buffer: BlockBuffer, num_rows: int, generator: torch.Generator, *, from_held_out: bool = False
) -> NDArray[np.int64]:
    """Draws rows [B] that are transitions of one side of the split, all equally likely, with repetition.

    They come in rising order, in which memory is read a little faster; a batch has no order.

    Raises:
        ValueError: if the buffer holds no such transition.
    """
    is_reset = buffer.arrays.is_reset.reshape(-1)[: buffer.num_rows]
    is_held_out = buffer.arrays.is_held_out.reshape(-1)[: buffer.num_rows]
    drawn = np.empty(0, np.int64)
    while len(drawn) < num_rows:
        count = num_rows + num_rows // 8 + 8
        candidates = torch.randint(len(is_reset), (count,), generator=generator).numpy() if len(is_reset) else drawn
        accepted = candidates[~is_reset[candidates] & (is_held_out[candidates] == from_held_out)]
        if not len(accepted) and not (~is_reset & (is_held_out == from_held_out)).any():
            message = "the buffer holds no transition to draw"
            raise ValueError(message)
        drawn = np.concatenate([drawn, accepted])
    return np.sort(drawn[:num_rows])


class MiniRaceSampler:
    """Fills one batch after another in the same memory.

    Attributes:
        rule: how the clocks of mini-races are drawn.
        batch: the last batch.
        rows: the rows that each portion of it was drawn from.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        num_floats: int,
        batch_size: int,
        rule: ClockRule,
        block_shape: tuple[int, ...] = (),
    ) -> None:
        self.rule = rule
        self.batch = empty_batch(image_size, num_floats, batch_size, block_shape)
        self.rows: list[NDArray[np.int64]] = []

    def sample(self, portions: Sequence[Portion], max_steps: int, discount: float, generator: torch.Generator) -> Batch:
        """Draws a batch.

        Args:
            portions: where the transitions come from; their numbers add up to the batch size.
            max_steps: K.
            discount: gamma of one decision.
            generator: source of randomness.

        Raises:
            ValueError: if the numbers do not add up, or a buffer holds nothing to draw.
        """
        if sum(portion.num_transitions for portion in portions) != len(self.batch.action):
            message = f"portions must add up to {len(self.batch.action)} transitions"
            raise ValueError(message)
        self.rows = []
        start = 0
        for portion in portions:
            count = portion.num_transitions
            drawn = _draw(portion, generator)
            uniform = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
            part = Batch(*(tensor[start : start + count] for tensor in self.batch))
            part.weight.numpy()[:] = drawn.weight
            collate(
                part, portion.buffer, drawn.row, draw_clocks(uniform, self.rule), max_steps, discount, self.rule.horizon
            )
            self.rows.append(drawn.row)
            start += count
        return self.batch


def empty_batch(
    image_size: tuple[int, int], num_floats: int, batch_size: int, block_shape: tuple[int, ...] = ()
) -> Batch:
    """Reserves the memory of a batch; `block_shape` is [K] where decisions are blocks of K actions."""
    shape = (batch_size, 1, *image_size)
    return Batch(
        image=torch.empty(shape, dtype=torch.uint8),
        floats=torch.empty(batch_size, num_floats),
        action=torch.empty(batch_size, *block_shape, dtype=torch.int64),
        reward=torch.empty(batch_size),
        discount=torch.empty(batch_size),
        next_image=torch.empty(shape, dtype=torch.uint8),
        next_floats=torch.empty(batch_size, num_floats),
        weight=torch.ones(batch_size),
    )


def collate(
    part: Batch,
    buffer: BlockBuffer,
    rows: NDArray[np.int64],
    clock: NDArray[np.int64],
    max_steps: int,
    discount: float,
    horizon: int,
) -> None:
    """Fills all of a batch [B] but its weights.

    Args:
        part: overwritten.
        buffer: where the transitions lie.
        rows: [B] that are transitions.
        clock: [B] decisions since the mini-race of each began.
        max_steps: K.
        discount: gamma of one decision.
        horizon: decisions in a mini-race.
    """
    found = find_transitions(buffer.arrays, rows, max_steps)
    race = place_in_mini_races(found, clock, discount, horizon)
    image, floats = part.image.flatten(1).numpy(), part.floats.numpy()
    next_image, next_floats = part.next_image.flatten(1).numpy(), part.next_floats.numpy()
    gather_observations(buffer.arrays, found.observation, image, floats)
    gather_observations(buffer.arrays, found.next_observation, next_image, next_floats)
    floats[:, _CLOCK] = race.clock
    next_floats[:, _CLOCK] = race.next_clock
    part.action.numpy()[:] = found.action
    part.reward.numpy()[:] = race.reward
    part.discount.numpy()[:] = race.discount


def _draw(portion: Portion, generator: torch.Generator) -> DrawnRows:
    buffer, count = portion.buffer, portion.num_transitions
    if portion.priorities is not None:
        return portion.priorities.draw(count, portion.beta, generator)
    row = draw_rows(buffer, count, generator, from_held_out=portion.from_held_out)
    return DrawnRows(row, np.ones(count, np.float32))
