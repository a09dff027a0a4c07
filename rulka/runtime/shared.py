"""Memory that the processes of a run share: blocks of experience from collectors, and weights to them.

It is torch's, which has no name: the system takes it back when the last process that has it is gone, however that
ended. The environment of a collector writes blocks where the learner reads them. Who may touch a slot is settled by
messages: `Fill` hands it to the collector, `BlockFilled` hands it back. A slot is poisoned before it is given out, so
that a block which was not written whole is noticed and never learned from.

Of the weights there are several copies. The learner writes the oldest one that nobody needs any more and then points to
it, so a reader hardly ever meets the writer, and nobody waits for a lock that a killed process might hold. Each copy
carries a checksum over version and bytes: a reader that was overtaken sees that it does not fit and reads again. Torn
weights are never used.
"""

from __future__ import annotations

import shutil
import sys
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing  # lets tensors be pickled for a process that is being started
from numpy.typing import NDArray
from torch import Tensor

from rulka.buffers.experience import BlockSpec, ExperienceBlock, block_in
from rulka.errors import UserError

MEMORY_FOLDER = Path("/dev/shm")
"""Where Linux keeps it: a file system of limited size."""
POISON = 0xFF
"""Byte of memory that nobody has written: NaN as float32, no action as uint8, no truth value as bool."""
ALIGNMENT = 64
NO_VERSION = -1
READ_TIMEOUT_S = 10.0
RETRY_S = 0.001

_NUMBERS = ("potential", "reward", "log_prob", "floats")
_TRUTHS = ("terminated", "truncated", "is_reset", "is_greedy")
NUM_COPIES = 2
"""Of weights, where readers want the newest: one that they read, one that is written."""


class SharedMemoryError(UserError):
    """There is not enough shared memory for what collectors and learner share."""


class IncompleteBlockError(RuntimeError):
    """A block was handed over with parts that its collector never wrote."""


class WeightsError(RuntimeError):
    """Published weights could not be read, or do not fit what was agreed."""


# Memory -----------------------------------------------------------------------------------------------------------


def check_room(num_bytes: int) -> None:
    """Makes sure that there is room for all the shared memory of a run, where that can be known before.

    Args:
        num_bytes: that the run is going to reserve.

    Raises:
        SharedMemoryError: if there is less; the message holds both figures.
    """
    if sys.platform != "linux":
        return
    room = shutil.disk_usage(MEMORY_FOLDER).free
    if room < num_bytes:
        raise _too_small(num_bytes, f"{room >> 20} MiB are free")


def new_memory(num_bytes: int) -> Tensor:
    """Reserves shared memory, [num_bytes] uint8; torch makes sure that all of it is there.

    Raises:
        SharedMemoryError: if there is not enough.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8).share_memory_()
    except RuntimeError as error:
        if "No space left on device" not in str(error):
            raise
        raise _too_small(num_bytes, "others have taken it meanwhile") from error


def _too_small(num_bytes: int, why: str) -> SharedMemoryError:
    needed_mib = -(-num_bytes // (1 << 20))
    message = f"shared memory ({MEMORY_FOLDER}) is too small: training needs {needed_mib} MiB more, and {why}"
    hint = (
        "In Docker start the container with --shm-size=1g (its default is 64 MiB); elsewhere enlarge it with"
        " `mount -o remount,size=1G /dev/shm`. Or lower train.num_collectors, cars_per_collector or block_steps."
    )
    return SharedMemoryError(message, hint=hint)


# Blocks -----------------------------------------------------------------------------------------------------------


class SharedBlocks:
    """Slots of one collector, each for a block of experience. Another process that gets them shares their memory."""

    def __init__(self, spec: BlockSpec, num_slots: int, memory: Tensor | None = None) -> None:
        """Reserves and poisons memory, or takes over that of another process.

        Args:
            spec: shape of the block in every slot.
            num_slots: how many there are.
            memory: of another process.
        """
        if memory is None:
            memory = new_memory(spec.num_bytes * num_slots).fill_(POISON)
        self.spec, self._memory = spec, memory
        self._blocks = [block_in(memory.numpy().data[k * spec.num_bytes :], spec) for k in range(num_slots)]

    def __reduce__(self) -> tuple[Callable[..., SharedBlocks], tuple[Any, ...]]:
        """Lets another process, which this is pickled for, have the same memory."""
        return SharedBlocks, (self.spec, len(self._blocks), self._memory)

    def __getitem__(self, slot: int) -> ExperienceBlock:
        """Returns the block in a slot; its arrays are the shared memory itself."""
        return self._blocks[slot]

    def poison(self, slot: int) -> None:
        """Marks a slot as unwritten, all but its images, which are too large for it."""
        block = self._blocks[slot]
        for name in (*_NUMBERS, *_TRUTHS, "action", "number"):
            getattr(block, name).reshape(-1).view(np.uint8).fill(POISON)


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
    if block.number < 0:
        _refuse(block, "number", 1)
    if not block.spec.continuous and (block.action == POISON).any():
        _refuse(block, "action", int((block.action == POISON).sum()))


def _refuse(block: ExperienceBlock, name: str, count: int) -> None:
    message = f"{count} of {getattr(block, name).size} numbers of {name!r} in a block were never written, or are NaN"
    raise IncompleteBlockError(message)


# Weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorPlace:
    """Where one tensor lies in the bytes of a copy."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int


class WeightsLayout(NamedTuple):
    """Places of all tensors and the size of a copy in bytes. Picklable."""

    places: tuple[TensorPlace, ...]
    num_bytes: int


class Weights(NamedTuple):
    """A version and its tensors, private to the reader until it reads again."""

    version: int
    tensors: dict[str, Tensor]


def layout_of(tensors: Mapping[str, Tensor]) -> WeightsLayout:
    """Lays out tensors of any dtypes one after the other, each aligned."""
    places, offset = [], 0
    for name, tensor in tensors.items():
        places.append(TensorPlace(name, tuple(tensor.shape), tensor.dtype, offset))
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return WeightsLayout(tuple(places), max(offset, ALIGNMENT))


def memory_bytes(layout: WeightsLayout, num_copies: int = NUM_COPIES) -> int:
    """Returns how much shared memory weights of a layout take."""
    return _header_bytes(num_copies) + num_copies * layout.num_bytes


def _header_bytes(num_copies: int) -> int:
    """Bytes of int64: which copy is the newest; version of each; checksum of each."""
    return -(-8 * (1 + 2 * num_copies) // ALIGNMENT) * ALIGNMENT


class SharedWeights:
    """Copies of the weights in shared memory, for one writer and any number of readers.

    Whoever makes it may publish; another process that gets it shares its memory, and reads.
    """

    def __init__(self, layout: WeightsLayout, num_copies: int = NUM_COPIES, memory: Tensor | None = None) -> None:
        """Reserves memory that holds no version yet, or takes over that of another process.

        Args:
            layout: of each copy.
            num_copies: the newest, one that is written, and as many as are to be kept beside these.
            memory: of another process.
        """
        is_new = memory is None
        memory = new_memory(memory_bytes(layout, num_copies)) if memory is None else memory
        self._layout, self._memory, self._num_copies = layout, memory, num_copies
        content, header_bytes = memory.numpy(), _header_bytes(num_copies)
        header = content[:header_bytes].view(np.int64)
        self._newest, self._versions, self._checksums, _ = np.split(header, np.cumsum([1, num_copies, num_copies]))
        self._copies = content[header_bytes:].reshape(num_copies, layout.num_bytes)
        self._private = np.zeros(layout.num_bytes, np.uint8)
        self._views = views(self._private, layout)
        if is_new:
            header[:] = 0
            self._versions[:] = NO_VERSION

    def __reduce__(self) -> tuple[Callable[..., SharedWeights], tuple[Any, ...]]:
        """Lets another process, which this is pickled for, have the same memory."""
        return SharedWeights, (self._layout, self._num_copies, self._memory)

    @property
    def version(self) -> int:
        """The newest version, or `NO_VERSION` before the first."""
        return int(self._versions[self._newest[0]])

    def publish(self, version: int, tensors: Mapping[str, Tensor], kept: Collection[int] = ()) -> None:
        """Makes new weights visible to all readers, in place of the oldest that nobody needs.

        Args:
            version: rising.
            tensors: exactly those of the layout.
            kept: versions that stay, beside the newest.

        Raises:
            WeightsError: if a tensor is missing, unknown, or has another shape.
        """
        fill(self._views, tensors)
        newest = int(self._newest[0])
        free = [k for k in range(self._num_copies) if k != newest and int(self._versions[k]) not in kept]
        target = min(free, key=lambda k: int(self._versions[k]))
        self._checksums[target] = -1  # fits no bytes: a reader of this copy starts again
        self._copies[target] = self._private
        self._versions[target] = version
        self._checksums[target] = checksum(version, self._private)
        self._newest[0] = target

    def read(self, version: int | None = None) -> Weights:
        """Returns weights; the tensors are overwritten by the next call.

        Args:
            version: which; None for the newest.

        Raises:
            WeightsError: if nothing whole could be read within `READ_TIMEOUT_S`.
        """
        give_up_s = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < give_up_s:
            wanted = self.version if version is None else version
            for copy in np.flatnonzero(self._versions == wanted) if wanted != NO_VERSION else ():
                self._private[:] = self._copies[copy]
                if self._checksums[copy] == checksum(wanted, self._private):
                    return Weights(wanted, self._views)
            time.sleep(RETRY_S)
        which = "whole weights" if version is None else f"whole weights of version {version}"
        message = f"no {which} could be read within {READ_TIMEOUT_S:.0f} s; newest version: {self.version}"
        raise WeightsError(message)


def fill(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies a version to where it is published, see `views`.

    Raises:
        WeightsError: if a tensor is missing, unknown, or has another shape.
    """
    for name, view in target.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != tuple(view.shape):
            message = f"published tensor {name!r} has shape {found}, agreed was {tuple(view.shape)}"
            raise WeightsError(message)
    if len(tensors) != len(target):
        message = f"published tensors nobody agreed on: {sorted(set(tensors) - set(target))}"
        raise WeightsError(message)
    for name, view in target.items():
        view.copy_(tensors[name])


def views(memory: NDArray[np.uint8], layout: WeightsLayout) -> dict[str, Tensor]:
    """Returns the tensors of a layout, which are the memory itself."""
    return {
        place.name: torch.frombuffer(
            memory, dtype=place.dtype, count=int(np.prod(place.shape, dtype=np.int64)), offset=place.offset
        ).reshape(place.shape)
        for place in layout.places
    }


def checksum(version: int, content: NDArray[np.uint8]) -> int:
    """Returns the CRC-32 over a version's number and bytes."""
    return zlib.crc32(content.data, version & 0xFFFFFFFF)
