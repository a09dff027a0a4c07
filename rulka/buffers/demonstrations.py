"""Demonstrations as replay experience: races of any length, cut into short blocks of one car.

Dimensions: T decisions, N cars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.storage import BlockBuffer, place_of_ring
from rulka.device import CPU

PIECE_STEPS = 64
"""Decisions in one stored piece of a race; the unused rest of a race's last piece is marked as reset."""


def demonstration_buffer(blocks: Sequence[ExperienceBlock], device: torch.device = CPU) -> BlockBuffer:
    """Stores demonstrations so that they can be drawn from like any other experience.

    Args:
        blocks: at least one; lengths and numbers of cars may differ, image shape and floats may not.
        device: of the network that learns from them, which they lie on where they fit.

    Raises:
        ValueError: if there are no blocks or no transition in them, or their image shapes differ.
    """
    if not any(block.num_transitions for block in blocks):
        message = "there are no demonstrations to store"
        raise ValueError(message)
    spec = replace(blocks[0].spec, num_steps=PIECE_STEPS, num_cars=1)
    num_pieces = sum(block.spec.num_cars * -(-block.spec.num_steps // PIECE_STEPS) for block in blocks)
    num_slots = max(2, num_pieces)
    place, _ = place_of_ring(spec, num_slots, device)
    buffer = BlockBuffer(spec, num_slots, place)
    stream = 0
    for block in blocks:
        for car in range(block.spec.num_cars):
            for piece in _pieces(block, car, spec):
                buffer.insert(piece, stream)
            stream += 1
    return buffer


def _pieces(block: ExperienceBlock, car: int, spec: BlockSpec) -> Iterator[ExperienceBlock]:
    for start in range(0, block.spec.num_steps, PIECE_STEPS):
        piece = new_block(spec)
        length = min(PIECE_STEPS, block.spec.num_steps - start)
        for name, (shape, _) in spec.layout().items():
            extra = shape[0] - PIECE_STEPS  # observations have one row more
            getattr(piece, name)[: length + extra, 0] = getattr(block, name)[start : start + length + extra, car]
        piece.is_reset[length:] = True
        yield piece


def as_block(observations: dict[str, np.ndarray], decisions: dict[str, np.ndarray]) -> ExperienceBlock:
    """Makes a block of one car out of plain arrays, for whoever reads demonstrations from files.

    Args:
        observations: `image` [T + 1, L, H, W], `floats` [T + 1, F], `potential` [T + 1] (optional, 0).
        decisions: `action` [T] or, of K each, [T, K], `reward` [T], `terminated` [T], `truncated` [T] (optional,
            false).

    Returns:
        A block whose decisions all count as greedy, so that transitions run over several of them.
    """
    num_steps = len(decisions["action"])
    frames, height, width = observations["image"].shape[-3:]
    places = decisions["action"].size // num_steps
    shape = () if places == 1 else (places,)
    floats = observations["floats"].shape[-1]
    block = new_block(BlockSpec(num_steps, 1, height, width, floats, decision_shape=shape, frames=frames))
    for name, values in {**observations, **decisions}.items():
        target = getattr(block, name)
        target[...] = values.reshape(target.shape)
    block.is_greedy[...] = True
    return block
