"""Demonstrations: races of any length, in a ring that is sampled like other experience."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.buffers.ring import BlockRing, Derive, place_of_ring
from rulka.machine.device import CPU

PIECE_STEPS = 64
"""Decisions in one stored piece of a demonstration; the unused rest of a race's last piece is marked as reset."""


def demonstration_ring(
    blocks: Sequence[ExperienceBlock], device: torch.device = CPU, derived: Mapping[str, Derive] | None = None
) -> BlockRing:
    """Stores demonstrations, races of any length, in a ring that is sampled like other experience.

    Args:
        blocks: at least one; lengths and numbers of cars may differ, image shape and floats may not.
        device: of the network that learns from them; it holds the demonstrations if they fit.
        derived: see `BlockRing`.

    Raises:
        ValueError: if there are no blocks or no transition in them, or their image shapes differ.
    """
    if not any(block.num_transitions for block in blocks):
        raise ValueError("there are no demonstrations to store")
    spec = replace(blocks[0].spec, num_steps=PIECE_STEPS, num_cars=1)
    num_pieces = sum(block.spec.num_cars * -(-block.spec.num_steps // PIECE_STEPS) for block in blocks)
    num_slots = max(2, num_pieces)
    place, _ = place_of_ring(spec, num_slots, device)
    ring = BlockRing(spec, num_slots, place, derived=derived)
    races = [(block, car) for block in blocks for car in range(block.spec.num_cars)]
    for stream, (block, car) in enumerate(races):
        for piece in _pieces(block, car, spec):
            ring.insert(piece, stream)
    return ring


def _pieces(block: ExperienceBlock, car: int, spec: BlockSpec) -> Iterator[ExperienceBlock]:
    for number, start in enumerate(range(0, block.spec.num_steps, PIECE_STEPS)):
        piece = new_block(spec)
        length = min(PIECE_STEPS, block.spec.num_steps - start)
        for name, (shape, _) in spec.layout().items():
            if shape:
                extra = shape[0] - PIECE_STEPS  # observations have one row more
                getattr(piece, name)[: length + extra, 0] = getattr(block, name)[start : start + length + extra, car]
        piece.is_reset[length:] = True
        piece.number[...] = number
        yield piece
