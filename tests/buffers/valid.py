"""What must hold of the ring's links at all times."""

from __future__ import annotations

from rulka.buffers.ring import NO_SLOT, BlockRing


def check_links(ring: BlockRing) -> None:
    """A block is followed by a newer one, which begins with the observation that ended it."""
    for slot in range(ring.num_blocks):
        following = int(ring.arrays.next_slot[slot])
        if following != NO_SLOT:
            ages = [(ring.num_inserted - 1 - each) % ring.num_slots for each in (slot, following)]
            assert ages[1] < ages[0], "a block is followed by an older one"
            assert ring.seen["floats"][slot, -1].equal(ring.seen["floats"][following, 0])
