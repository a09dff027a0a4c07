"""The outer layer of a Gbx file: header chunks, external references and the decompressed body."""

from __future__ import annotations

from dataclasses import dataclass

from rulka.recordings.errors import DamagedError, NotGbxError, UnsupportedGenerationError, check_count, check_version
from rulka.recordings.lzo import MAX_EXPANSION, decompress
from rulka.recordings.stream import Cursor

MAX_FILE_BYTES = 1 << 26
MAX_BODY_BYTES = 1 << 26
"""Larger bodies are rejected before allocation; the largest known ones have about ten million bytes."""
MAX_HEADER_CHUNKS = 256
MAX_FOLDERS = 4096
MAX_FOLDER_DEPTH = 32
KNOWN_VERSIONS = range(3, 7)

REPLAY, GHOST, MAP = 0x03093000, 0x03092000, 0x03043000
_FOLDED_CLASSES = {
    0x2407E: 0x03093,
    0x2403F: 0x03093,
    0x2401B: 0x03092,
    0x24003: 0x03043,
    0x2400C: 0x0305B,
    0x2403C: 0x0301B,
    0x2403A: 0x03059,
}
"""Class numbers of older games (the upper 20 bits of an id) mapped to those of current games."""


def fold(identifier: int) -> int:
    """Maps a class or chunk id to the one that current games write."""
    return (_FOLDED_CLASSES.get(identifier >> 12, identifier >> 12) << 12) | (identifier & 0xFFF)


@dataclass(frozen=True)
class Container:
    """A Gbx file split into its parts.

    Attributes:
        class_id: folded class of the file: `REPLAY`, `GHOST`, `MAP` or another.
        header: payload of every header chunk by folded chunk id.
        external_nodes: indices of nodes that live in other files.
        body: the decompressed body; empty when only the header was read.
    """

    class_id: int
    header: dict[int, bytes]
    external_nodes: frozenset[int]
    body: bytes


def read_container(data: bytes, *, header_only: bool = False) -> Container:
    """Splits a Gbx file into header chunks, references and body.

    Args:
        data: the bytes of the file, for `header_only` at least up to the end of the header.
        header_only: skip references and body, which saves the decompression.

    Raises:
        NotGbxError: if it is not a Gbx file.
        UnsupportedGenerationError: if it is a Gbx file of an unknown version or in text form.
        TruncatedError: if it ends too early.
        DamagedError: if its sizes contradict each other or the body does not decompress.
    """
    cursor = Cursor(data, is_file=True)
    version, body_compression = _read_signature(cursor)
    class_id = fold(cursor.u32())
    header = _read_header_chunks(cursor) if version >= 6 else {}
    if header_only:
        return Container(class_id, header, frozenset(), b"")
    cursor.skip(4)
    external = _read_references(cursor, version)
    return Container(class_id, header, external, _read_body(cursor, body_compression))


def _read_signature(cursor: Cursor) -> tuple[int, int]:
    if cursor.data[:3] != b"GBX":
        message = "this is not a Gbx file: it does not begin with the letters GBX"
        raise NotGbxError(message, hint="Recordings end in .Replay.Gbx or .Ghost.Gbx, maps in .Challenge.Gbx.")
    cursor.skip(3)
    version = cursor.u16()
    check_version("the Gbx file has container", version, KNOWN_VERSIONS)
    form, _, body_compression = cursor.take(3)
    if form != ord("B"):
        raise UnsupportedGenerationError("the Gbx file is stored as text; only binary ones can be read")
    if version >= 4:
        cursor.skip(1)
    return version, body_compression


def _read_header_chunks(cursor: Cursor) -> dict[int, bytes]:
    size = cursor.u32()
    if size == 0:
        return {}
    block = Cursor(cursor.data, cursor.position, cursor.position + min(size, cursor.remaining), is_file=cursor.is_file)
    cursor.skip(size)
    count = block.count(8)
    check_count("header chunks", count, MAX_HEADER_CHUNKS)
    block.is_file = False
    entries = [(fold(block.u32()), block.u32() & 0x7FFFFFFF) for _ in range(count)]
    return {identifier: block.take(size) for identifier, size in entries}


def _read_references(cursor: Cursor, version: int) -> frozenset[int]:
    """Reads the table of nodes that live in other files and returns their indices."""
    count = cursor.count(8)
    if count == 0:
        return frozenset()
    cursor.skip(4)
    _skip_folders(cursor, 0, 0)
    nodes = set()
    for _ in range(count):
        flags = cursor.u32()
        is_resource = bool(flags & 4)
        if is_resource:
            cursor.skip(4)
        else:
            cursor.string()
        nodes.add(cursor.i32())
        if version >= 5:
            cursor.skip(4)
        if not is_resource:
            cursor.skip(4)
    return frozenset(nodes)


def _skip_folders(cursor: Cursor, depth: int, seen: int) -> int:
    count = cursor.count(8)
    seen += count
    if depth > MAX_FOLDER_DEPTH or seen > MAX_FOLDERS:
        raise DamagedError("the table of referenced folders is deeper or larger than any real one")
    for _ in range(count):
        cursor.string()
        seen = _skip_folders(cursor, depth + 1, seen)
    return seen


def _read_body(cursor: Cursor, compression: int) -> bytes:
    if compression == ord("U"):
        return cursor.take(cursor.remaining)
    if compression != ord("C"):
        raise UnsupportedGenerationError(f"the body is compressed in an unknown way ({chr(compression)!r})")
    size, compressed_size = cursor.u32(), cursor.u32()
    data = cursor.take(compressed_size)
    if size > MAX_BODY_BYTES or size > MAX_EXPANSION * compressed_size:
        message = f"the body states {size} bytes from {compressed_size} compressed ones, more than there can be"
        raise DamagedError(message)
    return decompress(data, size)
