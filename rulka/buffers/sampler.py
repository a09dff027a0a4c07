"""Batches for replay learning: uniform rows, read as transitions, placed in mini-races.

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
from rulka.buffers.storage import BlockBuffer
from rulka.buffers.transitions import find_transitions, gather_observations
from rulka.observation import FLOATS

_CLOCK = FLOATS["clock"].start


class Batch(NamedTuple):
    """Transitions to learn from; memory that the next batch overwrites.

    Attributes:
        image: [B, 1, H, W] uint8.
        floats: [B, F] float32, raw, with the clock of the mini-race.
        action: [B] int64.
        reward: [B] float32, discounted over the decisions of the transition, with shaping.
        discount: [B] float32 factor of the value of the next observation; 0 where nothing follows.
        next_image: [B, 1, H, W] uint8.
        next_floats: [B, F] float32, raw, with the clock.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_image: Tensor
    next_floats: Tensor


class Portion(NamedTuple):
    """How many transitions of a batch come from which buffer."""

    buffer: BlockBuffer
    num_transitions: int


def draw_rows(buffer: BlockBuffer, num_rows: int, generator: torch.Generator) -> NDArray[np.int64]:
    """Draws rows [B] that are transitions, all equally likely, with repetition.

    Raises:
        ValueError: if the buffer holds no transition.
    """
    is_reset = buffer.arrays.is_reset[: buffer.num_blocks].reshape(-1)
    if is_reset.all():
        message = "the buffer holds no transition to draw"
        raise ValueError(message)
    drawn = np.empty(0, np.int64)
    while len(drawn) < num_rows:
        candidates = torch.randint(len(is_reset), (num_rows + num_rows // 8 + 8,), generator=generator).numpy()
        drawn = np.concatenate([drawn, candidates[~is_reset[candidates]]])
    return drawn[:num_rows]


class MiniRaceSampler:
    """Fills one batch after another in the same memory."""

    def __init__(self, image_size: tuple[int, int], num_floats: int, batch_size: int, rule: ClockRule) -> None:
        self.rule = rule
        shape = (batch_size, 1, *image_size)
        self.batch = Batch(
            image=torch.empty(shape, dtype=torch.uint8),
            floats=torch.empty(batch_size, num_floats),
            action=torch.empty(batch_size, dtype=torch.int64),
            reward=torch.empty(batch_size),
            discount=torch.empty(batch_size),
            next_image=torch.empty(shape, dtype=torch.uint8),
            next_floats=torch.empty(batch_size, num_floats),
        )

    def sample(self, portions: Sequence[Portion], max_steps: int, discount: float, generator: torch.Generator) -> Batch:
        """Draws a batch.

        Args:
            portions: where the transitions come from; their numbers add up to the batch size.
            max_steps: K.
            discount: gamma of one decision.
            generator: source of randomness.

        Raises:
            ValueError: if the numbers do not add up.
        """
        if sum(portion.num_transitions for portion in portions) != len(self.batch.action):
            message = f"portions must add up to {len(self.batch.action)} transitions"
            raise ValueError(message)
        start = 0
        for buffer, count in portions:
            rows = draw_rows(buffer, count, generator)
            uniform = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
            part = Batch(*(tensor[start : start + count] for tensor in self.batch))
            self._fill(part, buffer, rows, draw_clocks(uniform, self.rule), max_steps, discount)
            start += count
        return self.batch

    def _fill(
        self,
        part: Batch,
        buffer: BlockBuffer,
        rows: NDArray[np.int64],
        clock: NDArray[np.int64],
        max_steps: int,
        discount: float,
    ) -> None:
        found = find_transitions(buffer.arrays, rows, max_steps)
        race = place_in_mini_races(found, clock, discount, self.rule.horizon)
        image, floats = part.image.flatten(1).numpy(), part.floats.numpy()
        next_image, next_floats = part.next_image.flatten(1).numpy(), part.next_floats.numpy()
        gather_observations(buffer.arrays, found.observation, image, floats)
        gather_observations(buffer.arrays, found.next_observation, next_image, next_floats)
        floats[:, _CLOCK] = race.clock
        next_floats[:, _CLOCK] = race.next_clock
        part.action.numpy()[:] = found.action
        part.reward.numpy()[:] = race.reward
        part.discount.numpy()[:] = race.discount
