"""Blocks of experience in shared memory: the environment of a collector writes where the learner reads.

Each collector has a few slots of its own. Who may touch a slot is settled by messages: `Fill` hands it to the
collector, `BlockFilled` hands it back. A slot is poisoned before it is given out, so that a block which was not
written whole is noticed and never learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from rulka.buffers.experience import BlockSpec, ExperienceBlock, block_in
from rulka.runtime.shared_memory import new_memory

POISON = 0xFF
"""Byte of memory that nobody has written: NaN as float32, no action as uint8, no truth value as bool."""

_NUMBERS = ("potential", "reward", "log_prob", "floats")
_TRUTHS = ("terminated", "truncated", "is_reset", "is_greedy")


class IncompleteBlockError(RuntimeError):
    """A block was handed over with parts that its collector never wrote."""


class SharedBlocks:
    """Slots of one collector.

    Attributes:
        name: of the shared memory, for `attach`.
        spec: shape of the block in every slot.
        num_slots: how many there are.
    """

    def __init__(self, memory: SharedMemory, spec: BlockSpec, num_slots: int, *, is_owner: bool) -> None:
        self._memory, self._is_owner = memory, is_owner
        self.name, self.spec, self.num_slots = memory.name, spec, num_slots
        assert memory.buf is not None  # only after `close`
        self._blocks = [block_in(memory.buf[k * spec.num_bytes :], spec) for k in range(num_slots)]

    @classmethod
    def create(cls, spec: BlockSpec, num_slots: int) -> SharedBlocks:
        """Reserves and poisons memory; the creator has to call `unlink`."""
        memory = new_memory(spec.num_bytes * num_slots)
        assert memory.buf is not None
        memory.buf[:] = bytes([POISON]) * memory.size
        return cls(memory, spec, num_slots, is_owner=True)

    @classmethod
    def attach(cls, name: str, spec: BlockSpec, num_slots: int) -> SharedBlocks:
        """Opens what another process created."""
        return cls(SharedMemory(name), spec, num_slots, is_owner=False)

    def __reduce__(self) -> tuple[Callable[..., SharedBlocks], tuple[Any, ...]]:
        """Lets another process, which this is pickled for, open the same memory."""
        return SharedBlocks.attach, (self.name, self.spec, self.num_slots)

    def __getitem__(self, slot: int) -> ExperienceBlock:
        """Returns the block in a slot; its arrays are the shared memory itself."""
        return self._blocks[slot]

    def poison(self, slot: int) -> None:
        """Marks a slot as unwritten, all but its images, which are too large for it."""
        block = self._blocks[slot]
        for name in (*_NUMBERS, *_TRUTHS, "action"):
            getattr(block, name).view(np.uint8).fill(POISON)

    def close(self) -> None:
        """Lets go of the memory; the creator also removes it. Blocks got from here must not be used any more."""
        self._blocks.clear()
        with suppress(BufferError):  # somebody still holds a view; the mapping then ends with the process
            self._memory.close()
        if self._is_owner:
            self._is_owner = False
            self._memory.unlink()


def check_written(block: ExperienceBlock) -> None:
    """Makes sure that everything in a block was written.

    Raises:
        IncompleteBlockError: naming the array that holds poison or a NaN.
    """
    for name in (*_NUMBERS, "action") if block.spec.continuous else _NUMBERS:
        if np.isnan(np.sum(getattr(block, name))):
            _refuse(block, name, int(np.isnan(getattr(block, name)).sum()))
    for name in _TRUTHS:
        if (getattr(block, name).view(np.uint8) > 1).any():
            _refuse(block, name, int((getattr(block, name).view(np.uint8) > 1).sum()))
    if not block.spec.continuous and (block.action == POISON).any():
        _refuse(block, "action", int((block.action == POISON).sum()))


def _refuse(block: ExperienceBlock, name: str, count: int) -> None:
    message = f"{count} of {getattr(block, name).size} numbers of {name!r} in a block were never written, or are NaN"
    raise IncompleteBlockError(message)
