"""The pieces that Gbx files are written from: the counterpart of `stream` and `container`."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from lzallright import LZOCompressor

from rulka.recordings.stream import SKIPPABLE

ID_VERSION = 3
CONTAINER_VERSION = 6
_EMPTY_ID, _NEW_ID = 0xFFFFFFFF, 0x40000000


def u32(*values: int) -> bytes:
    """Returns integers of 32 bits each, negative ones as their complement."""
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))


def string(text: str) -> bytes:
    """Returns a length and as many bytes of UTF-8."""
    data = text.encode("utf-8")
    return u32(len(data)) + data


class Ids:
    """Writes ids of one stream: each name once, references to it after that."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.is_new = True

    def __call__(self, *names: str) -> bytes:
        """Returns the given ids; digits are a collection number, an empty name is no name."""
        return b"".join(map(self._one, names))

    def _one(self, name: str) -> bytes:
        start = u32(ID_VERSION) if self.is_new else b""
        self.is_new = False
        if not name:
            return start + u32(_EMPTY_ID)
        if name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < _NEW_ID:
            return start + u32(int(name))
        if name in self.known:
            return start + u32(_NEW_ID | self.known[name])
        self.known[name] = len(self.known) + 1
        return start + u32(_NEW_ID) + string(name)


def chunk(identifier: int, payload: bytes = b"") -> bytes:
    """Returns a chunk that a reader must understand."""
    return u32(identifier) + payload


def skippable(identifier: int, payload: bytes) -> bytes:
    """Returns a chunk that a reader may pass over."""
    return u32(identifier, SKIPPABLE, len(payload)) + payload


def gbx(
    class_id: int,
    header: Mapping[int, bytes],
    body: bytes,
    *,
    num_nodes: int = 1,
    compression: str = "C",
    references: bytes = bytes(4),
) -> bytes:
    """Returns a whole file.

    Args:
        class_id: what the file is.
        header: payload of each header chunk by id.
        body: the uncompressed body.
        num_nodes: number of node indices in use, the file's own included.
        compression: "C", or "U" to store the body as it is.
        references: table of external references.
    """
    user = u32(len(header)) + b"".join(u32(key, len(value)) for key, value in header.items())
    user += b"".join(header.values())
    packed = LZOCompressor().compress(body)
    stored = u32(len(body), len(packed)) + packed if compression == "C" else body
    start = b"GBX" + struct.pack("<H", CONTAINER_VERSION) + b"BU" + compression.encode() + b"R" + u32(class_id)
    return start + u32(len(user)) + user + u32(num_nodes) + references + stored
