"""Weights from the learner to the collectors: a version number and shared tensors.

There are two copies in shared memory. The learner writes the older one and then points to it, so a reader hardly ever
meets the writer, and nobody waits for a lock that a killed process might hold. Each copy carries a checksum over
version and bytes: a reader that was overtaken sees that it does not fit and reads again. Torn weights are never used.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.runtime.shared_memory import new_memory

ALIGNMENT = 64
NO_VERSION = -1
READ_TIMEOUT_S = 10.0
RETRY_S = 0.001

_CURRENT, _VERSION, _CHECKSUM = 0, 1, 3  # places in the header: current copy; version of each; checksum of each
_HEADER_BYTES = ALIGNMENT


class WeightsError(RuntimeError):
    """Published weights could not be read, or do not fit what was agreed."""


@dataclass(frozen=True)
class TensorPlace:
    """Where one tensor lies in the bytes of a copy."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


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
        offset += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return WeightsLayout(tuple(places), max(offset, ALIGNMENT))


def num_bytes_of(tensors: Mapping[str, Tensor]) -> int:
    """Returns how many bytes a version has."""
    return sum(tensor.nbytes for tensor in tensors.values())


def memory_bytes(layout: WeightsLayout) -> int:
    """Returns how much shared memory weights of a layout take."""
    return _HEADER_BYTES + 2 * layout.num_bytes


class SharedWeights:
    """Two copies of the weights in shared memory, for one writer and any number of readers.

    Attributes:
        name: of the shared memory, for `attach`.
        layout: of both copies.
    """

    def __init__(self, memory: SharedMemory, layout: WeightsLayout, *, is_owner: bool) -> None:
        self._memory, self._is_owner = memory, is_owner
        self.name, self.layout = memory.name, layout
        assert memory.buf is not None  # only after `close`
        self._header = np.frombuffer(memory.buf, np.int64, count=_HEADER_BYTES // 8)
        starts = (_HEADER_BYTES, _HEADER_BYTES + layout.num_bytes)
        self._copies = [memory.buf[start : start + layout.num_bytes] for start in starts]
        self._private = bytearray(layout.num_bytes)
        self._views = views(self._private, layout)

    @classmethod
    def create(cls, layout: WeightsLayout) -> SharedWeights:
        """Reserves memory that holds no version yet; the creator alone may publish, and has to call `close`."""
        memory = new_memory(memory_bytes(layout))
        weights = cls(memory, layout, is_owner=True)
        weights._header[:] = 0
        weights._header[_VERSION : _VERSION + 2] = NO_VERSION
        return weights

    @classmethod
    def attach(cls, name: str, layout: WeightsLayout) -> SharedWeights:
        """Opens what another process created, for reading."""
        return cls(SharedMemory(name), layout, is_owner=False)

    def __reduce__(self) -> tuple[Callable[..., SharedWeights], tuple[Any, ...]]:
        """Lets another process, which this is pickled for, open the same memory."""
        return SharedWeights.attach, (self.name, self.layout)

    @property
    def version(self) -> int:
        """The newest version, or `NO_VERSION` before the first."""
        return int(self._header[_VERSION + int(self._header[_CURRENT])])

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Makes new weights visible to all readers.

        Args:
            version: rising.
            tensors: exactly those of the layout.

        Raises:
            WeightsError: if a tensor is missing, unknown, or has another shape.
        """
        fill(self._views, tensors)
        target = 1 - int(self._header[_CURRENT])
        self._header[_CHECKSUM + target] = -1  # fits no bytes: a reader of this copy starts again
        self._copies[target][:] = self._private
        self._header[_VERSION + target] = version
        self._header[_CHECKSUM + target] = checksum(version, self._private)
        self._header[_CURRENT] = target

    def read(self) -> Weights:
        """Returns the newest weights; the tensors are overwritten by the next call.

        Raises:
            WeightsError: if nothing whole could be read within `READ_TIMEOUT_S`.
        """
        give_up_s = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < give_up_s:
            current = int(self._header[_CURRENT])
            version = int(self._header[_VERSION + current])
            self._private[:] = self._copies[current]
            if version != NO_VERSION and self._header[_CHECKSUM + current] == checksum(version, self._private):
                return Weights(version, self._views)
            time.sleep(RETRY_S)
        message = f"no whole weights could be read within {READ_TIMEOUT_S:.0f} s; newest version: {self.version}"
        raise WeightsError(message)

    def close(self) -> None:
        """Lets go of the memory; the creator also removes it."""
        self._header = np.zeros(0, np.int64)
        for copy in self._copies:
            copy.release()
        self._copies.clear()
        with suppress(BufferError):
            self._memory.close()
        if self._is_owner:
            self._is_owner = False
            self._memory.unlink()


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


def views(memory: bytearray | NDArray[np.uint8], layout: WeightsLayout) -> dict[str, Tensor]:
    """Returns the tensors of a layout, which are the memory itself."""
    return {
        place.name: torch.frombuffer(memory, dtype=place.dtype, count=place.count, offset=place.offset).reshape(
            place.shape
        )
        for place in layout.places
    }


def checksum(version: int, content: bytearray | memoryview) -> int:
    """Returns the CRC-32 over a version's number and bytes."""
    return zlib.crc32(content, version & 0xFFFFFFFF)
