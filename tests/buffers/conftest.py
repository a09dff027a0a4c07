"""Fixtures of the buffers' tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.ring import NO_SLOT, BlockRing


def check_links(ring: BlockRing) -> None:
    """Checks that each block's successor is newer and begins with the block's last observation."""
    for slot in range(ring.num_blocks):
        following = int(ring.arrays.next_slot[slot])
        if following != NO_SLOT:
            ages = [(ring.num_inserted - 1 - each) % ring.num_slots for each in (slot, following)]
            assert ages[1] < ages[0], "a block is followed by an older one"
            assert ring.observations["floats"][slot, -1].equal(ring.observations["floats"][following, 0])


@pytest.fixture
def make_stream() -> Callable[..., list[ExperienceBlock]]:
    """Returns a function that makes random consecutive blocks of one collector, with race ends followed by resets.

    Every observation is unique: float 1 is `1000 * stream + decision + car / 100`, and so is the image's first pixel.
    """

    def make(spec: BlockSpec, num_blocks: int, stream: int = 0, end_share: float = 0.1) -> list[ExperienceBlock]:
        rng = np.random.default_rng(stream)
        blocks: list[ExperienceBlock] = []
        was_over = np.zeros(spec.num_cars, np.bool_)
        for number in range(num_blocks):
            block = new_block(spec)
            block.number[...] = 1000 * stream + number
            decision = number * spec.num_steps + np.arange(spec.num_steps + 1)[:, None]
            block.floats[..., 1] = 1000 * stream + decision + np.arange(spec.num_cars) / 100
            block.image[:, :, 0, 0, 0] = decision % 256
            block.potential[...] = rng.normal(size=block.potential.shape)
            block.reward[...] = rng.normal(size=block.reward.shape)
            block.action[...] = rng.integers(0, 12, block.action.shape)
            block.is_greedy[...] = rng.random(block.is_greedy.shape) < 0.8
            for step in range(spec.num_steps):
                ends = rng.random(spec.num_cars)
                block.is_reset[step] = was_over
                block.terminated[step] = (ends < end_share) & ~was_over
                block.truncated[step] = (ends >= end_share) & (ends < 2 * end_share) & ~was_over
                was_over = block.terminated[step] | block.truncated[step]
            if blocks:
                block.potential[0] = blocks[-1].potential[-1]
            blocks.append(block)
        return blocks

    return make
