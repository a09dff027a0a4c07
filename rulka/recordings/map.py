"""Maps: identity, medal times and blocks."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from rulka.recordings.container import GHOST, MAP, Container
from rulka.recordings.errors import DamagedError, UnlimiterMapError, check_version
from rulka.recordings.ghost import read_ghost
from rulka.recordings.header import parse_header
from rulka.recordings.model import Block, MapInfo
from rulka.recordings.nodes import ChunkReader, Nodes, discard, keep, node, read_chunks, skip, skip_list, unknown_chunk
from rulka.recordings.stream import ITEM_BYTES, SKIPPABLE, Cursor, Ident

PARAMETERS, COLLECTORS, SKIN, WAYPOINT = 0x0305B000, 0x0301B000, 0x03059000, 0x2E009000
BLOCKS, OLD_BLOCKS = MAP | 0x01F, MAP | 0x013
BLOCKS_VERSIONS = range(7)
RAISED_VERSION = 6
"""Version of games since 2013, whose coordinates have another origin."""
UNLIMITER = "TMUnlimiter"
BLOCK_SIZES_M = {
    "Speed": (32.0, 16.0),
    "Alpine": (32.0, 16.0),
    "Coast": (16.0, 4.0),
    "Island": (64.0, 8.0),
    "Canyon": (64.0, 16.0),
    "10": (64.0, 16.0),
}
DEFAULT_BLOCK_SIZE_M = (32.0, 8.0)
"""Side and height of a block in metres, for Stadium and every environment not listed above."""
RAISED_GROUND = ("Stadium", "26")
"""Environments in which games since 2013 count heights from 8 blocks below the ground."""
RAISED_BLOCKS = 8
PLACEHOLDER_ITEMS = 16
"""A placeholder counts as this many items, since no count limits placeholders and real maps have few."""
_UNUSED_FLAGS = (0xFFFFFFFF, 0xFFFF)
_HAS_SKIN, _HAS_DECAL, _HAS_CARD, _HAS_CHARACTER, _HAS_WAYPOINT = (1 << bit for bit in (15, 17, 18, 19, 20))
_IS_FREE = 1 << 29
_MIN_BLOCK_BYTES = 10
_FREE_MARK = struct.pack("<II", MAP | 0x05F, SKIPPABLE)


@dataclass
class _Map:
    """Parse state of a map."""

    ident: Ident = field(default_factory=lambda: Ident("", "", ""))
    name: str = ""
    medals_ms: tuple[int | None, ...] = (None,) * 4
    blocks: list[Block] = field(default_factory=list)


def read_map_container(container: Container) -> MapInfo:
    """Reads a map from its container.

    Raises:
        UnlimiterMapError: if the map was made with TMUnlimiter.
        UnsupportedGenerationError: if the blocks, or a chunk before them, have an unknown layout.
        DamagedError: if it is inconsistent.
    """
    header = parse_header(container)
    target = _Map()
    cursor = Cursor(container.body)
    stop = read_chunks(cursor, target, Nodes(container.external_nodes), MAP_CHUNKS, until=(BLOCKS, OLD_BLOCKS))
    if stop not in (BLOCKS, OLD_BLOCKS, None):
        raise unknown_chunk(stop, "the map")
    _place_free_blocks(container.body, cursor.position, target.blocks)
    header = replace(
        header,
        map_uid=target.ident.uid or header.map_uid,
        map_name=target.name or header.map_name,
        map_author=target.ident.author or header.map_author,
        environment=target.ident.collection or header.environment,
        medals_ms=target.medals_ms if header.medals_ms == (None,) * 4 else header.medals_ms,
    )
    return MapInfo(header, tuple(target.blocks))


def _place_free_blocks(body: bytes, start: int, blocks: list[Block]) -> None:
    """Sets the positions of off-grid blocks (2020) from the chunk that lists them.

    The bytes between the blocks and that chunk are not parsed; the chunk is found by its id and skippable marker.
    """
    free = [number for number, block in enumerate(blocks) if block.flags & _IS_FREE]
    if not free:
        return
    at = body.find(_FREE_MARK, start)
    if at < 0:
        raise DamagedError(f"the places of {len(free)} free blocks are missing")
    cursor = Cursor(body, at + len(_FREE_MARK))
    part = cursor.part(cursor.u32())
    check_version("the places of free blocks are stored in", part.u32(), (0,))
    places = struct.iter_unpack("<6f", part.take(24 * len(free)))
    for number, (x, y, z, *pitch_yaw_roll) in zip(free, places, strict=True):
        blocks[number] = blocks[number]._replace(position_m=(x, y, z), pitch_yaw_roll=tuple(pitch_yaw_roll))


def _parameters(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    nodes.reference(cursor, {COLLECTORS: node(target, {COLLECTORS: _stock}, "the block stock")})
    nodes.reference(cursor, {PARAMETERS: node(target, _PARAMETER_CHUNKS, "the map's parameters")})
    cursor.skip(4)


def _medals(cursor: Cursor, target: _Map, _: Nodes) -> None:
    target.medals_ms = tuple(cursor.optional() for _ in range(4))
    cursor.skip(4)


def _stock(cursor: Cursor, _: _Map, __: Nodes) -> None:
    for _item in range(cursor.count(16)):
        cursor.ident()
        cursor.skip(4)


def _author_ghost(cursor: Cursor, _: _Map, nodes: Nodes) -> None:
    nodes.reference(cursor, {GHOST: read_ghost})


def _blocks(*, has_version: bool) -> ChunkReader[_Map]:
    def chunk(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
        target.ident = cursor.ident()
        target.name = cursor.string()
        cursor.ident()
        cursor.skip(16)
        version = cursor.u32() if has_version else 0
        check_version("the blocks are stored in", version, BLOCKS_VERSIONS)
        count = cursor.count(_MIN_BLOCK_BYTES)
        while len(target.blocks) < count:
            _read_block(cursor, target, nodes, version)

    return chunk


def _read_block(cursor: Cursor, target: _Map, nodes: Nodes, version: int) -> None:
    name = cursor.id()
    if UNLIMITER in name:
        message = f"the map {target.name!r} was made with TMUnlimiter and holds no readable blocks"
        error = UnlimiterMapError(message, hint="The plain game cannot load such a map; leave it out.")
        error.map_uid = target.ident.uid
        raise error
    turns, x, y, z = cursor.take(4)
    flags = cursor.u32() if version > 0 else cursor.u16()
    if flags in _UNUSED_FLAGS:  # a placeholder, not part of the block count
        cursor.names.charge_memory(PLACEHOLDER_ITEMS * ITEM_BYTES)
        return
    _skip_attached(cursor, nodes, version, flags)
    environment, is_raised = target.ident.collection, version >= RAISED_VERSION
    side, height = BLOCK_SIZES_M.get(environment, DEFAULT_BLOCK_SIZE_M)
    x, z = x - is_raised, z - is_raised
    ground = RAISED_BLOCKS if is_raised and environment in RAISED_GROUND else 0
    position = ((x + 0.5) * side, (y - ground) * height, (z + 0.5) * side)
    target.blocks.append(Block(name, (x, y, z), turns & 3, flags, position))


def _skip_attached(cursor: Cursor, nodes: Nodes, version: int, flags: int) -> None:
    """Skips the attachments of a block, which must be parsed to find the next block."""
    if flags & _HAS_SKIN:
        cursor.id()
        nodes.reference(cursor, {SKIN: node(None, _SKIN_CHUNKS, "the skin of a block")})
    if version < 2:
        return
    if flags & _HAS_CHARACTER:
        nodes.reference(cursor, {})
    if flags & _HAS_WAYPOINT:
        nodes.reference(cursor, {WAYPOINT: node(None, {WAYPOINT: _waypoint}, "a waypoint")})
    if flags & _HAS_CARD:
        for _ in range(cursor.count(12)):
            cursor.skip(8)
            for _ in range(cursor.count(12)):
                cursor.ident()
    if flags & _HAS_DECAL:
        cursor.id()
        cursor.skip(8)


def _waypoint(cursor: Cursor, _: None, __: Nodes) -> None:
    if cursor.u32() >= 2:
        cursor.string()
    else:
        cursor.skip(4)
    cursor.skip(4)


_SKIN_CHUNKS: dict[int, ChunkReader[None]] = {
    SKIN: discard(Cursor.string, Cursor.string),
    SKIN | 1: discard(Cursor.string, Cursor.file_reference),
    SKIN | 2: discard(Cursor.string, Cursor.file_reference, Cursor.file_reference),
    SKIN | 3: discard(Cursor.u32, Cursor.file_reference),
}
_PARAMETER_CHUNKS: dict[int, ChunkReader[_Map]] = {
    PARAMETERS: skip(32),
    PARAMETERS | 1: discard(*4 * [Cursor.string]),
    PARAMETERS | 2: skip(64),
    PARAMETERS | 3: skip(24),
    PARAMETERS | 4: _medals,
    PARAMETERS | 5: skip(12),
    PARAMETERS | 6: skip_list(4),
    PARAMETERS | 7: skip(4),
    PARAMETERS | 8: skip(8),
    PARAMETERS | 0xA: discard(Cursor.string, *4 * [Cursor.u32]),
    PARAMETERS | 0xD: _author_ghost,
}
MAP_CHUNKS: dict[int, ChunkReader[_Map]] = {
    MAP | 0x00D: discard(Cursor.ident),
    MAP | 0x011: _parameters,
    MAP | 0x012: keep("name", Cursor.string),
    OLD_BLOCKS: _blocks(has_version=False),
    MAP | 0x019: discard(Cursor.file_reference),
    BLOCKS: _blocks(has_version=True),
}
"""Readers of the chunks of a map by folded id, up to its blocks."""
