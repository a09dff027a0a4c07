"""Maps: identity, medal times and blocks."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial

from rulka.recordings.container import GHOST, MAP, Container
from rulka.recordings.errors import DamagedError, UnlimiterMapError, UnsupportedGenerationError
from rulka.recordings.ghost import read_ghost
from rulka.recordings.header import parse_header
from rulka.recordings.model import Block, MapInfo
from rulka.recordings.nodes import (
    ChunkReader,
    Nodes,
    keep,
    node,
    passed,
    read_chunks,
    skip,
    skip_list,
    unknown_chunk,
)
from rulka.recordings.stream import ITEM_BYTES, SKIPPABLE, Cursor, Ident

PARAMETERS, COLLECTORS, SKIN, WAYPOINT = 0x0305B000, 0x0301B000, 0x03059000, 0x2E009000
BLOCKS_CHUNK = MAP | 0x01F
OLD_BLOCKS_CHUNK = MAP | 0x013
MAX_BLOCKS_VERSION = 6
RAISED_VERSION = 6
"""Version of the games since 2013, whose coordinates begin elsewhere."""
UNLIMITER = "TMUnlimiter"
BLOCK_SIZES_M = {
    "Speed": (32.0, 16.0, 32.0),
    "Alpine": (32.0, 16.0, 32.0),
    "Coast": (16.0, 4.0, 16.0),
    "Island": (64.0, 8.0, 64.0),
    "Canyon": (64.0, 16.0, 64.0),
    "10": (64.0, 16.0, 64.0),
}
DEFAULT_BLOCK_SIZE_M = (32.0, 8.0, 32.0)
"""Size of one block, metres; that of Stadium, and of every environment not listed above."""
RAISED_GROUND = ("Stadium", "26")
"""Environments in which games since 2013 count heights from 8 blocks below the ground."""
RAISED_BLOCKS = 8
PLACEHOLDER_ITEMS = 16
"""A placeholder counts for this many items, since no count limits them and real maps have few."""
_UNUSED_FLAGS = (0xFFFFFFFF, 0xFFFF)
_HAS_SKIN, _HAS_DECAL, _HAS_CARD, _HAS_CHARACTER, _HAS_WAYPOINT = (1 << bit for bit in (15, 17, 18, 19, 20))
_ATTACHED = _HAS_SKIN | _HAS_DECAL | _HAS_CARD | _HAS_CHARACTER | _HAS_WAYPOINT
_MIN_BLOCK_BYTES = 10
_NAME_INDEX = 0x3FFFFFFF
_new_block = partial(tuple.__new__, Block)
_IS_FREE = 1 << 29
_FREE_MARK = struct.pack("<II", MAP | 0x05F, SKIPPABLE)
_FREE_FLOATS = 6
_PLAIN_BLOCK = struct.Struct("<I4BI")
_Coordinates = tuple[int, int, int]
_Head = tuple[str, int, _Coordinates, int]
"""Name, quarter turns, coordinates as stored, and flags of a block."""


@dataclass
class _Map:
    """A map being read."""

    ident: Ident = field(default_factory=lambda: Ident("", "", ""))
    name: str = ""
    medals_ms: tuple[int | None, ...] = (None, None, None, None)
    blocks: list[Block] = field(default_factory=list)


def read_map_container(container: Container) -> MapInfo:
    """Reads a map file that has been taken apart.

    Raises:
        UnlimiterMapError: if the map was made with TMUnlimiter.
        UnsupportedGenerationError: if the blocks are stored in an unknown way.
        DamagedError: if it contradicts itself.
    """
    header = parse_header(container)
    target = _Map()
    nodes = Nodes(container.external_nodes)
    cursor = Cursor(container.body)
    stop = read_chunks(cursor, target, nodes, MAP_CHUNKS, until=BLOCKS_CHUNK)
    if stop not in (BLOCKS_CHUNK, None) and not target.blocks:
        raise unknown_chunk(stop, "the map")
    _place_free_blocks(container.body, cursor.position, target.blocks)
    medals = target.medals_ms if any(medal is not None for medal in target.medals_ms) else header.medals_ms
    return MapInfo(
        uid=target.ident.uid or header.map_uid,
        name=target.name or header.map_name,
        author=target.ident.author or header.map_author,
        environment=target.ident.collection or header.environment,
        medals_ms=(medals[0], medals[1], medals[2], medals[3]),
        blocks=tuple(target.blocks),
        header=header,
    )


def _place_free_blocks(body: bytes, start: int, blocks: list[Block]) -> None:
    """Gives blocks that lie off the grid (2020) their positions, from the chunk that lists those.

    What stands between the blocks and that chunk is not read; it is found by its id and the mark behind it.
    """
    free = [number for number, block in enumerate(blocks) if block.flags & _IS_FREE]
    at = body.find(_FREE_MARK, start) if free else -1
    if at < 0:
        return
    cursor = Cursor(body, at + len(_FREE_MARK))
    part = cursor.part(cursor.u32())
    version = part.u32()
    if version > 0 or part.remaining < _FREE_FLOATS * 4 * len(free):
        message = f"{part.remaining} bytes of version {version} hold the places of {len(free)} free blocks"
        raise DamagedError(message)
    for number in free:
        x, y, z, *turns = part.floats(_FREE_FLOATS)
        pitch, yaw, roll = turns
        blocks[number] = blocks[number]._replace(position_m=(x, y, z), pitch_yaw_roll=(pitch, yaw, roll))


def _parameters(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    nodes.reference(cursor, {COLLECTORS: node(target, {COLLECTORS: _stock}, "the block stock")})
    nodes.reference(cursor, {PARAMETERS: node(target, _PARAMETER_CHUNKS, "the map's parameters")})
    cursor.skip(4)


def _stock(cursor: Cursor, _: _Map, __: Nodes) -> None:
    for _item in range(cursor.count(16)):
        cursor.ident()
        cursor.skip(4)


def _medals(cursor: Cursor, target: _Map, _: Nodes) -> None:
    target.medals_ms = cursor.optional(), cursor.optional(), cursor.optional(), cursor.optional()


def _old_medals(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    _medals(cursor, target, nodes)
    cursor.skip(4)


def _named_medals(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    cursor.string()
    _medals(cursor, target, nodes)


def _author_ghost(cursor: Cursor, _: _Map, nodes: Nodes) -> None:
    nodes.reference(cursor, {GHOST: read_ghost})


def _blocks(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    target.ident = cursor.ident()
    target.name = cursor.string()
    cursor.ident()
    cursor.skip(16)
    version = cursor.u32()
    if version > MAX_BLOCKS_VERSION:
        message = f"the blocks are stored in version {version}; known are 0 to {MAX_BLOCKS_VERSION}"
        raise UnsupportedGenerationError(message)
    _read_blocks(cursor, target, nodes, version)


def _old_blocks(cursor: Cursor, target: _Map, nodes: Nodes) -> None:
    target.ident = cursor.ident()
    target.name = cursor.string()
    cursor.ident()
    cursor.skip(16)
    _read_blocks(cursor, target, nodes, 0)


def _read_blocks(cursor: Cursor, target: _Map, nodes: Nodes, version: int) -> None:
    count = cursor.count(_MIN_BLOCK_BYTES)
    place = _Placing.of(version, target.ident.collection)
    while len(target.blocks) < count:
        if version > 0:
            _read_plain_blocks(cursor, target.blocks, count, place)
        if len(target.blocks) < count:
            name, turns, coordinates, flags = _read_head(cursor, nodes, version, target)
            if flags in _UNUSED_FLAGS:  # a placeholder, which does not count
                cursor.names.spend(PLACEHOLDER_ITEMS * ITEM_BYTES)
            else:
                target.blocks.append(place(name, turns, *coordinates, flags))


@dataclass(frozen=True)
class _Placing:
    """From stored coordinates to coordinates in blocks and a position in metres."""

    size_m: tuple[float, float, float]
    shift: int
    ground: int

    @classmethod
    def of(cls, version: int, environment: str) -> _Placing:
        """Returns the placing of an environment in maps of a version."""
        is_raised = version >= RAISED_VERSION
        ground = RAISED_BLOCKS if is_raised and environment in RAISED_GROUND else 0
        return cls(BLOCK_SIZES_M.get(environment, DEFAULT_BLOCK_SIZE_M), int(is_raised), ground)

    def __call__(self, name: str, turns: int, x: int, y: int, z: int, flags: int) -> Block:
        width, height, depth = self.size_m
        x, z = x - self.shift, z - self.shift
        position = (x * width + width / 2, (y - self.ground) * height, z * depth + depth / 2)
        return _new_block((name, (x, y, z), turns & 3, flags, position, None))


def _read_plain_blocks(cursor: Cursor, blocks: list[Block], count: int, place: _Placing) -> None:
    """Reads blocks up to the first that has a new name or something attached; most have neither."""
    data, names, unpack = cursor.data, cursor.names.names, _PLAIN_BLOCK.unpack_from
    (width, height, depth), shift, ground = place.size_m, place.shift, place.ground
    half_width, half_depth = width / 2, depth / 2
    position, last = cursor.position, cursor.end - _PLAIN_BLOCK.size
    while len(blocks) < count and position <= last:
        name, turns, x, y, z, flags = unpack(data, position)
        index = name & _NAME_INDEX
        if name == index or flags & _ATTACHED or not 0 < index <= len(names):
            break
        x, z = x - shift, z - shift  # as in `place`, whose call would be most of the time
        middle = (x * width + half_width, (y - ground) * height, z * depth + half_depth)
        blocks.append(_new_block((names[index - 1], (x, y, z), turns & 3, flags, middle, None)))
        position += _PLAIN_BLOCK.size
    cursor.position = position


def _read_head(cursor: Cursor, nodes: Nodes, version: int, target: _Map) -> _Head:
    """Reads one block of any form."""
    name = cursor.id()
    if UNLIMITER in name:
        message = f"the map {target.name!r} was made with TMUnlimiter and holds no readable blocks"
        raise UnlimiterMapError(message, hint="The plain game cannot load such a map; leave it out.")
    turns, x, y, z = cursor.take(4)
    flags = cursor.u32() if version > 0 else cursor.u16()
    if flags not in _UNUSED_FLAGS:
        if flags & _HAS_SKIN:
            cursor.id()
            nodes.reference(cursor, {SKIN: node(target, _SKIN_CHUNKS, "the skin of a block")})
        if version >= 2:
            _skip_extras(cursor, nodes, flags)
    return name, turns, (x, y, z), flags


def _skip_extras(cursor: Cursor, nodes: Nodes, flags: int) -> None:
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


_SKIN_CHUNKS = {
    SKIN: passed(Cursor.string, Cursor.string),
    SKIN | 1: passed(Cursor.string, Cursor.file_reference),
    SKIN | 2: passed(Cursor.string, Cursor.file_reference, Cursor.file_reference),
    SKIN | 3: passed(Cursor.u32, Cursor.file_reference),
}
_PARAMETER_CHUNKS: dict[int, ChunkReader[_Map]] = {
    PARAMETERS: skip(32),
    PARAMETERS | 1: passed(*4 * [Cursor.string]),
    PARAMETERS | 2: skip(64),
    PARAMETERS | 3: skip(24),
    PARAMETERS | 4: _old_medals,
    PARAMETERS | 5: skip(12),
    PARAMETERS | 6: skip_list(4),
    PARAMETERS | 7: skip(4),
    PARAMETERS | 8: skip(8),
    PARAMETERS | 0xA: _named_medals,
    PARAMETERS | 0xD: _author_ghost,
}
MAP_CHUNKS: dict[int, ChunkReader[_Map]] = {
    MAP | 0x00D: passed(Cursor.ident),
    MAP | 0x011: _parameters,
    MAP | 0x012: keep("name", Cursor.string),
    OLD_BLOCKS_CHUNK: _old_blocks,
    MAP | 0x019: passed(Cursor.file_reference),
    BLOCKS_CHUNK: _blocks,
}
"""Readers of the chunks of a map by folded id, up to its blocks."""
