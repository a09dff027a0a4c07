"""Bounds-checked reader of Gbx primitives.

All integers are little-endian. An `id` (the game's "lookback string") can refer to earlier names in the same stream,
so cursors over parts of one body share one `Names`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from rulka.recordings.errors import DamagedError, RecordingError, TruncatedError, check_version

MAX_STRING_BYTES = 1 << 22
MAX_NAMES = 1 << 18
MAX_SPENT_BYTES = 1 << 28
"""Memory budget of a file, all parts together: decompressed bytes plus `ITEM_BYTES` per list item."""
ITEM_BYTES = 128
"""Approximate memory of a list item; limits a file to two million items of any kind."""
ID_VERSIONS = (2, 3)
"""Versions of the id table; the game of 2003 writes 2, later ones 3, with the same layout."""

END_OF_NODE = 0xFACADE01
SKIPPABLE = 0x534B4950
"""Marker after the id of a chunk that states its size."""
_U16, _U32, _I32, _TWO_U32 = (struct.Struct(form).unpack_from for form in ("<H", "<I", "<i", "<II"))
_NEW_NAME_FLAGS = 0xC0000000
_EMPTY = 0xFFFFFFFF


class Ident(NamedTuple):
    """Identity of a map, a vehicle or a block model: its own id, its collection and its author."""

    uid: str
    collection: str
    author: str


@dataclass
class Names:
    """State shared by all cursors over one stream: the names read so far and the memory spent on its parts."""

    version: int | None = None
    names: list[str] = field(default_factory=list)
    memory_used: int = 0

    def charge_memory(self, num_bytes: int) -> None:
        """Counts memory before it is allocated, so that many small parts share the limit of one large part.

        Raises:
            DamagedError: if the stream exceeds `MAX_SPENT_BYTES`.
        """
        self.memory_used += num_bytes
        if self.memory_used > MAX_SPENT_BYTES:
            raise DamagedError(f"the parts of the file take more than {MAX_SPENT_BYTES} bytes together")


class Cursor:
    """Forward reader over a byte range that never reads past its end."""

    def __init__(
        self, data: bytes, start: int = 0, end: int | None = None, *, names: Names | None = None, is_file: bool = False
    ) -> None:
        """Opens `data[start:end]`.

        Args:
            data: the bytes.
            start: first byte to read.
            end: one past the last byte; the end of the data when None.
            names: the id table to share; None creates one.
            is_file: True if the data is a whole file, so that running out of bytes means a truncated file.
        """
        self.data = data
        self.position = start
        self.end = len(data) if end is None else end
        self.names = Names() if names is None else names
        self.is_file = is_file
        self.is_part = False

    @property
    def remaining(self) -> int:
        """Number of bytes not yet read."""
        return self.end - self.position

    def _advance(self, size: int) -> int:
        start = self.position
        if not 0 <= size <= self.end - start:
            raise self._ended(size)
        self.position = start + size
        return start

    def _ended(self, size: int) -> RecordingError:
        message = f"{size} bytes are needed at offset {self.position}, {self.remaining} are there"
        if self.is_file:
            return TruncatedError(f"the file ends too early: {message}", hint="Download or copy the file again.")
        return DamagedError(message)

    def u8(self) -> int:
        """Reads an unsigned byte."""
        start = self.position
        if start >= self.end:
            raise self._ended(1)
        self.position = start + 1
        return self.data[start]

    def u16(self) -> int:
        """Reads an unsigned 16-bit integer."""
        return _U16(self.data, self._advance(2))[0]

    def u32(self) -> int:
        """Reads an unsigned 32-bit integer."""
        start = self.position
        if self.end - start < 4:
            raise self._ended(4)
        self.position = start + 4
        return _U32(self.data, start)[0]

    def i32(self) -> int:
        """Reads a signed 32-bit integer."""
        return _I32(self.data, self._advance(4))[0]

    def optional(self) -> int | None:
        """Reads an integer; None for the missing-value marker (or any other negative number)."""
        value = self.u32()
        return None if value >= 1 << 31 else value

    def chunk_head(self) -> tuple[int, bool]:
        """Reads a chunk id and, if present, its skippable marker; returns (id, is_skippable)."""
        start = self.position
        if self.end - start < 8:
            return self.u32(), False
        identifier, mark = _TWO_U32(self.data, start)
        is_skippable = mark == SKIPPABLE and identifier != END_OF_NODE
        self.position = start + (8 if is_skippable else 4)
        return identifier, is_skippable

    def take(self, size: int) -> bytes:
        """Reads `size` bytes."""
        start = self.position
        if not 0 <= size <= self.end - start:
            raise self._ended(size)
        self.position = end = start + size
        return self.data[start:end]

    def skip(self, size: int) -> None:
        """Skips `size` bytes."""
        self._advance(size)

    def part(self, size: int) -> Cursor:
        """Consumes the next `size` bytes and returns a cursor over them that shares the id table."""
        start = self._advance(size)
        part = Cursor(self.data, start, start + size, names=self.names)
        part.is_part = True
        return part

    def expect_end(self) -> None:
        """Checks that a part of stated size has been read completely.

        Raises:
            DamagedError: if bytes of the part are left, so that a count in it must be wrong.
        """
        if self.is_part and self.remaining:
            raise DamagedError(f"{self.remaining} bytes are left over before offset {self.end}")

    def count(self, item_bytes: int) -> int:
        """Reads a 32-bit count of items of at least `item_bytes` each, and checks that they fit the remaining bytes."""
        count = self.u32()
        if count * item_bytes > self.remaining:
            if self.is_file:
                raise self._ended(count * item_bytes)
            message = f"{count} items of {item_bytes} bytes are stated at offset {self.position}, too many to be there"
            raise DamagedError(message)
        self.names.charge_memory(count * ITEM_BYTES)
        return count

    def string(self) -> str:
        """Reads a length-prefixed UTF-8 string; invalid bytes become replacement characters."""
        size = self.u32()
        if size > MAX_STRING_BYTES and size <= self.remaining:
            message = f"a text of {size} bytes is stated at offset {self.position}, {MAX_STRING_BYTES} is the most"
            raise DamagedError(message)
        return self.take(size).decode("utf-8", errors="replace")

    def id(self) -> str:
        """Reads an id: a new name, an earlier name, a collection number as digits, or an empty name."""
        if self.names.version is None:
            self.names.version = self.u32()
            check_version("the names are stored in", self.names.version, ID_VERSIONS)
        start = self.position
        if self.end - start < 4:
            raise self._ended(4)
        self.position = start + 4
        value = _U32(self.data, start)[0]  # inlined `u32`: calling it would take a third of the time
        if value == _EMPTY:
            return ""
        if value & _NEW_NAME_FLAGS == 0:
            return str(value)
        index = value & ~_NEW_NAME_FLAGS
        if index == 0:
            return self._new_name()
        if index > len(self.names.names):
            message = f"name {index} is referred to at offset {self.position}, {len(self.names.names)} are known"
            raise DamagedError(message)
        return self.names.names[index - 1]

    def _new_name(self) -> str:
        if len(self.names.names) >= MAX_NAMES:
            raise DamagedError(f"more than {MAX_NAMES} names in one file")
        name = self.string()
        self.names.names.append(name)
        return name

    def ident(self) -> Ident:
        """Reads the three ids that name a map, a vehicle or a block model."""
        return Ident(self.id(), self.id(), self.id())

    def file_reference(self) -> str:
        """Reads a reference to a file ("packdesc") and returns its path, empty when there is none."""
        version = self.u8()
        if version >= 3:
            self.skip(32)
        path = self.string()
        if (path and version >= 1) or version >= 3:
            self.string()
        return path
