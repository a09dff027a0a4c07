"""Maps: identity and medal times. The blocks after them are not read: tracks are made of driven paths."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rulka.recordings.container import GHOST, MAP, Container
from rulka.recordings.ghost import read_ghost
from rulka.recordings.header import parse_header
from rulka.recordings.model import RecordingHeader
from rulka.recordings.nodes import ChunkReader, Nodes, keep, node, passed, read_chunks, skip, skip_list, unknown_chunk
from rulka.recordings.stream import Cursor, Ident

PARAMETERS, COLLECTORS = 0x0305B000, 0x0301B000
BLOCKS, OLD_BLOCKS = MAP | 0x01F, MAP | 0x013


@dataclass
class _Map:
    """A map being read."""

    ident: Ident = field(default_factory=lambda: Ident("", "", ""))
    name: str = ""


def read_map_container(container: Container) -> RecordingHeader:
    """Returns the header of a map; what it lacks, as that of an embedded map does, is read from the body.

    Raises:
        UnsupportedGenerationError: if a chunk before the blocks cannot be passed over.
        DamagedError: if it contradicts itself.
    """
    header = parse_header(container)
    target = _Map()
    stop = read_chunks(
        Cursor(container.body), target, Nodes(container.external_nodes), MAP_CHUNKS, until=(BLOCKS, OLD_BLOCKS)
    )
    if stop not in (BLOCKS, OLD_BLOCKS, None):
        raise unknown_chunk(stop, "the map")
    return replace(
        header,
        map_uid=target.ident.uid or header.map_uid,
        map_name=target.name or header.map_name,
        map_author=target.ident.author or header.map_author,
        environment=target.ident.collection or header.environment,
    )


def _parameters(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    nodes.reference(cursor, {COLLECTORS: node(target, {COLLECTORS: _stock}, "the block stock")})
    nodes.reference(cursor, {PARAMETERS: node(target, _PARAMETER_CHUNKS, "the map's parameters")})
    cursor.skip(4)


def _stock(cursor: Cursor, _: _Map, __: Nodes) -> None:
    for _item in range(cursor.count(16)):
        cursor.ident()
        cursor.skip(4)


def _author_ghost(cursor: Cursor, _: _Map, nodes: Nodes) -> None:
    nodes.reference(cursor, {GHOST: read_ghost})


def _identity(cursor: Cursor, target: _Map, _: Nodes) -> None:
    target.ident = cursor.ident()
    target.name = cursor.string()


_PARAMETER_CHUNKS: dict[int, ChunkReader[_Map]] = {
    PARAMETERS: skip(32),
    PARAMETERS | 1: passed(*4 * [Cursor.string]),
    PARAMETERS | 2: skip(64),
    PARAMETERS | 3: skip(24),
    PARAMETERS | 4: skip(20),
    PARAMETERS | 5: skip(12),
    PARAMETERS | 6: skip_list(4),
    PARAMETERS | 7: skip(4),
    PARAMETERS | 8: skip(8),
    PARAMETERS | 0xA: passed(Cursor.string, *4 * [Cursor.u32]),
    PARAMETERS | 0xD: _author_ghost,
}
MAP_CHUNKS: dict[int, ChunkReader[_Map]] = {
    MAP | 0x00D: passed(Cursor.ident),
    MAP | 0x011: _parameters,
    MAP | 0x012: keep("name", Cursor.string),
    OLD_BLOCKS: _identity,
    MAP | 0x019: passed(Cursor.file_reference),
    BLOCKS: _identity,
}
"""Readers of the chunks of a map by folded id, up to the identity, which begins the chunk of its blocks."""
