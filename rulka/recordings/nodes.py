"""Nodes and chunks: the nested structure of Gbx bodies.

A node is a sequence of chunks (id and payload) closed by an end marker. A chunk whose id is followed by `SKIP` also
states its size and can be skipped; any other chunk must be parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from rulka.recordings.container import fold
from rulka.recordings.errors import DamagedError, UnsupportedGenerationError
from rulka.recordings.stream import END_OF_NODE, Cursor

MAX_DEPTH = 16
MAX_NODES = 1 << 16
MAX_CHUNKS = 1 << 16
"""Limit on the chunks of a file, all nodes together; the largest known files have about ten thousand."""

T = TypeVar("T")


class Nodes:
    """The nodes of one body by index: parsed at the first reference, shared afterwards."""

    def __init__(self, external: frozenset[int] = frozenset()) -> None:
        self.known: dict[int, object] = {}
        self.known.update(dict.fromkeys(external))
        self.depth = 0
        self.num_chunks = 0

    def reference(self, cursor: Cursor, readers: Mapping[int, NodeReader]) -> object | None:
        """Reads a reference to a node, and at the first reference the node itself.

        Args:
            cursor: positioned at the reference.
            readers: readers of the classes allowed here, by folded class id.

        Returns:
            The value from the class's reader; None for an empty or external reference.
        """
        index = cursor.i32()
        if index <= 0:  # 0 is the file's main structure itself, which no nested node needs
            return None
        if index in self.known:
            return self.known[index]
        class_id = fold(cursor.u32())
        reader = readers.get(class_id)
        if reader is None:
            message = f"a structure of class 0x{class_id:08X} stands in the file, whose layout is not known here"
            raise UnsupportedGenerationError(message)
        if self.depth >= MAX_DEPTH or len(self.known) >= MAX_NODES:
            raise DamagedError(f"structures nest deeper than {MAX_DEPTH} or are more than {MAX_NODES}")
        self.known[index] = None
        self.depth += 1
        node = reader(cursor, self)
        self.depth -= 1
        self.known[index] = node
        return node


NodeReader = Callable[[Cursor, Nodes], object]


ChunkReader = Callable[[Cursor, T, Nodes], None]
"""Reads the payload of one kind of chunk into a target."""


def read_chunks(
    cursor: Cursor,
    target: T,
    nodes: Nodes,
    chunks: Mapping[int, ChunkReader[T]],
    *,
    until: Collection[int] = (),
) -> int | None:
    """Reads the chunks of one node.

    Args:
        cursor: positioned at the first chunk id.
        target: object that the chunk readers fill.
        nodes: the nodes of this body.
        chunks: chunk readers by folded id. Unlisted chunks are skipped if possible.
        until: chunks after which to stop, whether read or skipped.

    Returns:
        None at the end of the node, else the id of the first unknown unskippable chunk, or of the chunk in `until`.
    """
    while nodes.num_chunks < MAX_CHUNKS:
        nodes.num_chunks += 1
        identifier, is_skippable = cursor.chunk_head()
        if identifier == END_OF_NODE:
            return None
        folded = identifier if identifier in chunks else fold(identifier)
        read = chunks.get(folded)
        if is_skippable:
            size = cursor.u32()
            if read is None:
                cursor.skip(size)
            else:
                read(cursor.part(size), target, nodes)
        elif read is None:
            return folded
        else:
            read(cursor, target, nodes)
        if folded in until:
            return folded
    raise DamagedError(f"more than {MAX_CHUNKS} chunks in one file")


def read_node(cursor: Cursor, target: T, nodes: Nodes, chunks: Mapping[int, ChunkReader[T]], where: str) -> None:
    """Reads the chunks of one node to its end.

    Raises:
        UnsupportedGenerationError: at an unknown unskippable chunk; `where` names its container.
    """
    stop = read_chunks(cursor, target, nodes, chunks)
    if stop is not None:
        raise unknown_chunk(stop, where)


def node(target: T, chunks: Mapping[int, ChunkReader[T]], where: str) -> NodeReader:
    """Returns a node reader whose chunks fill a target; the node itself is read as None."""
    return lambda cursor, nodes: read_node(cursor, target, nodes, chunks, where)


def keep(name: str, read: Callable[[Cursor], object]) -> ChunkReader[object]:
    """Returns a reader of a one-value chunk that sets the value as an attribute of the target."""

    def chunk(cursor: Cursor, target: object, _: Nodes) -> None:
        setattr(target, name, read(cursor))

    return chunk


def discard(*reads: Callable[[Cursor], object]) -> ChunkReader[object]:
    """Returns a chunk reader that parses values and discards them."""

    def chunk(cursor: Cursor, _: object, __: Nodes) -> None:
        for read in reads:
            read(cursor)

    return chunk


def skip(num_bytes: int) -> ChunkReader[object]:
    """Returns a chunk reader that skips a known number of bytes."""
    return discard(lambda cursor: cursor.skip(num_bytes))


def skip_list(item_bytes: int, num_bytes: int = 0) -> ChunkReader[object]:
    """Returns a chunk reader that skips a counted list of fixed-size items and `num_bytes` after it."""
    return discard(lambda cursor: cursor.skip(item_bytes * cursor.count(item_bytes) + num_bytes))


def unknown_chunk(identifier: int, where: str) -> UnsupportedGenerationError:
    """Returns the error for an unknown unskippable chunk."""
    message = f"{where} holds chunk 0x{identifier:08X}, whose layout is not known here and which cannot be passed over"
    return UnsupportedGenerationError(
        message,
        hint="Supported are recordings of the games from 2004 (Sunrise, Original) to 2020; those of 2003 are not.",
    )
