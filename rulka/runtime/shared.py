"""Shared memory of a run's processes: blocks of experience from collectors, and weights to them.

It is torch's and has no name: the system frees it when the last process that maps it is gone, however that ended. A
collector's environment writes blocks where the learner reads them. Messages pass on the ownership of a slot: `Fill`
hands it to the collector, `BlockFilled` hands it back. A slot is poisoned before it is handed out, so that an
incomplete block is noticed and never learned from.

Weights have several copies. The learner overwrites the oldest one that is no longer needed and then points to it, so a
reader hardly ever meets the writer, and there is no lock that a killed process might hold. Each copy carries a checksum
over version and bytes: a reader that was overtaken sees a mismatch and reads again. Torn weights are never used.
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

from rulka.buffers.experience import ALIGNMENT, BlockSpec, ExperienceBlock, aligned, block_in
from rulka.machine.errors import UserError

MEMORY_FOLDER = Path("/dev/shm")
"""Linux's shared memory: a file system of limited size."""
POISON = 0xFF
"""Byte of unwritten memory: NaN as float32, no valid action as uint8, no valid bool."""
NO_VERSION = -1
READ_TIMEOUT_S = 10.0
RETRY_S = 0.001

_NUMBERS = ("potential", "reward", "log_prob", "floats")
_TRUTHS = ("terminated", "truncated", "is_reset", "is_greedy")
NUM_COPIES = 2
"""Copies of the weights if readers want the newest: one is read, one is written."""


# Memory -----------------------------------------------------------------------------------------------------------


def check_room(num_bytes: int) -> None:
    """Checks in advance that there is room for all the shared memory of a run; on Linux only.

    Args:
        num_bytes: that the run is going to reserve.

    Raises:
        UserError: if there is less; the message gives both sizes.
    """
    if sys.platform != "linux":
        return
    room = shutil.disk_usage(MEMORY_FOLDER).free
    if room < num_bytes:
        raise _too_small(num_bytes, f"{room >> 20} MiB are free")


def new_memory(num_bytes: int) -> Tensor:
    """Allocates shared memory, [num_bytes] uint8; torch makes sure that all of it exists.

    Raises:
        UserError: if there is not enough.
    """
    try:
        return torch.empty(num_bytes, dtype=torch.uint8).share_memory_()
    except RuntimeError as error:
        if "No space left on device" not in str(error):
            raise
        raise _too_small(num_bytes, "others have taken it meanwhile") from error


def _too_small(num_bytes: int, why: str) -> UserError:
    needed_mib = -(-num_bytes // (1 << 20))
    message = f"shared memory ({MEMORY_FOLDER}) is too small: training needs {needed_mib} MiB more, and {why}"
    hint = (
        "In Docker start the container with --shm-size=1g (its default is 64 MiB); elsewhere enlarge it with"
        " `mount -o remount,size=1G /dev/shm`. Or lower train.num_collectors, cars_per_collector or block_steps."
    )
    return UserError(message, hint=hint)


# Blocks -----------------------------------------------------------------------------------------------------------


class SharedBlocks:
    """Slots of one collector, each for a block of experience. Pickling shares them with another process."""

    def __init__(self, spec: BlockSpec, num_slots: int, memory: Tensor | None = None) -> None:
        """Allocates and poisons memory, or maps that of another process.

        Args:
            spec: shape of the block in every slot.
            num_slots: number of slots.
            memory: of another process; None allocates.
        """
        if memory is None:
            memory = new_memory(spec.num_bytes * num_slots).fill_(POISON)
        self.spec, self._memory = spec, memory
        self._blocks = [block_in(memory.numpy().data[k * spec.num_bytes :], spec) for k in range(num_slots)]

    def __reduce__(self) -> tuple[Callable[..., SharedBlocks], tuple[Any, ...]]:
        """Pickles a reference to the same memory, for another process."""
        return SharedBlocks, (self.spec, len(self._blocks), self._memory)

    def __getitem__(self, slot: int) -> ExperienceBlock:
        """Returns the block in a slot; its arrays are the shared memory itself."""
        return self._blocks[slot]

    def poison(self, slot: int) -> None:
        """Marks a slot as unwritten, except for its images, which are too large."""
        block = self._blocks[slot]
        for name in (*_NUMBERS, *_TRUTHS, "action", "number"):
            getattr(block, name).reshape(-1).view(np.uint8).fill(POISON)


def check_written(block: ExperienceBlock) -> None:
    """Checks that every array of a block was written, except for its images.

    Raises:
        RuntimeError: naming the array that holds poison or a NaN.
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
    raise RuntimeError(message)


# Weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorPlace:
    """Place of one tensor in the bytes of a copy."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int


class WeightsLayout(NamedTuple):
    """Places of all tensors and the size of a copy in bytes. Picklable."""

    places: tuple[TensorPlace, ...]
    num_bytes: int


class Weights(NamedTuple):
    """A version and its tensors, which are valid until the reader reads again."""

    version: int
    tensors: dict[str, Tensor]


def layout_of(tensors: Mapping[str, Tensor]) -> WeightsLayout:
    """Lays out tensors of any dtypes one after the other, each aligned."""
    places, offset = [], 0
    for name, tensor in tensors.items():
        places.append(TensorPlace(name, tuple(tensor.shape), tensor.dtype, offset))
        offset += aligned(tensor.nbytes)
    return WeightsLayout(tuple(places), max(offset, ALIGNMENT))


def memory_bytes(layout: WeightsLayout, num_copies: int = NUM_COPIES) -> int:
    """Returns the shared memory for weights of a layout, in bytes."""
    return _header_bytes(num_copies) + num_copies * layout.num_bytes


def _header_bytes(num_copies: int) -> int:
    """Size of the int64 header: index of the newest copy; version of each copy; checksum of each copy."""
    return aligned(8 * (1 + 2 * num_copies))


class SharedWeights:
    """Copies of the weights in shared memory, for one writer and any number of readers.

    The process that creates them may publish; processes that get them pickled share the memory and read.
    """

    def __init__(self, layout: WeightsLayout, num_copies: int = NUM_COPIES, memory: Tensor | None = None) -> None:
        """Allocates memory without a version, or maps that of another process.

        Args:
            layout: of each copy.
            num_copies: the newest, the one being written, and any older ones to keep.
            memory: of another process; None allocates.
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
        """Pickles a reference to the same memory, for another process."""
        return SharedWeights, (self._layout, self._num_copies, self._memory)

    @property
    def version(self) -> int:
        """The newest version, or `NO_VERSION` before the first."""
        return int(self._versions[self._newest[0]])

    def publish(self, version: int, tensors: Mapping[str, Tensor], kept: Collection[int] = ()) -> None:
        """Publishes new weights to all readers, in place of the oldest that are no longer needed.

        Args:
            version: rising.
            tensors: exactly those of the layout.
            kept: versions to keep, besides the newest.

        Raises:
            RuntimeError: if a tensor is missing, unknown, or has another shape.
        """
        fill(self._views, tensors)
        newest = int(self._newest[0])
        free = [k for k in range(self._num_copies) if k != newest and int(self._versions[k]) not in kept]
        target = min(free, key=lambda k: int(self._versions[k]))
        self._checksums[target] = -1  # matches no bytes: a reader of this copy tries again
        self._copies[target] = self._private
        self._versions[target] = version
        self._checksums[target] = checksum(version, self._private)
        self._newest[0] = target

    def read(self, version: int | None = None) -> Weights:
        """Returns weights; the next call overwrites the tensors.

        Args:
            version: to read; None for the newest.

        Raises:
            RuntimeError: if no intact copy could be read within `READ_TIMEOUT_S`.
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
        raise RuntimeError(f"no {which} could be read within {READ_TIMEOUT_S:.0f} s; newest version: {self.version}")


def fill(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copies weights into the tensors of `views`.

    Raises:
        RuntimeError: if a tensor is missing, unknown, or has another shape.
    """
    for name, view in target.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != tuple(view.shape):
            raise RuntimeError(f"published tensor {name!r} has shape {found}, agreed was {tuple(view.shape)}")
    if len(tensors) != len(target):
        raise RuntimeError(f"published tensors nobody agreed on: {sorted(set(tensors) - set(target))}")
    for name, view in target.items():
        view.copy_(tensors[name])


def views(memory: NDArray[np.uint8], layout: WeightsLayout) -> dict[str, Tensor]:
    """Returns the tensors of a layout, as views of the memory."""
    return {
        place.name: torch.frombuffer(
            memory, dtype=place.dtype, count=int(np.prod(place.shape, dtype=np.int64)), offset=place.offset
        ).reshape(place.shape)
        for place in layout.places
    }


def checksum(version: int, content: NDArray[np.uint8]) -> int:
    """Returns the CRC-32 of a version's number and bytes."""
    return zlib.crc32(content.data, version & 0xFFFFFFFF)
