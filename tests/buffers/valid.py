"""What must hold of the ring's links and of the sum tree at all times."""

from __future__ import annotations

import numpy as np

from rulka.buffers.priorities import SumTree
from rulka.buffers.ring import NO_SLOT, BlockRing


def check_links(ring: BlockRing) -> None:
    """A block is followed by a newer one, which begins with the observation that ended it."""
    for slot in range(ring.num_blocks):
        following = int(ring.arrays.next_slot[slot])
        if following != NO_SLOT:
            ages = [(ring.num_inserted - 1 - each) % ring.num_slots for each in (slot, following)]
            assert ages[1] < ages[0], "a block is followed by an older one"
            assert ring.seen["floats"][slot, -1].equal(ring.seen["floats"][following, 0])


def check_sums(tree: SumTree) -> None:
    """Every inner node is exactly the sum of its children."""
    half = len(tree.nodes) // 2
    inner = np.arange(1, half)
    assert np.array_equal(tree.nodes[inner], tree.nodes[2 * inner] + tree.nodes[2 * inner + 1])
    assert not tree.nodes[half + tree.num_entries :].any()
