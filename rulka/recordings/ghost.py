"""Chunk readers of ghosts, for all games from 2003 to 2020."""

from __future__ import annotations

from collections.abc import Callable

from rulka.recordings.entities import ENTITY_RECORD, read_entity_samples
from rulka.recordings.errors import UnsupportedGenerationError
from rulka.recordings.inputs import read_events
from rulka.recordings.model import Ghost, Samples
from rulka.recordings.nodes import ChunkReader, NodeReader, Nodes, discard, keep, read_node, skip
from rulka.recordings.samples import read_compressed_samples, read_plain_samples
from rulka.recordings.stream import Cursor
from rulka.recordings.tick_inputs import read_tick_inputs

MAX_MODEL_VERSION = 9


def _samples(read: Callable[[Cursor], Samples | None]) -> ChunkReader[Ghost]:
    def chunk(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
        try:
            ghost.samples = samples = read(cursor)
            if samples is not None and samples.vehicle is None:
                ghost.notes.append(
                    f"samples of version {samples.version}: only the motion was read, not the car's state"
                )
        except UnsupportedGenerationError as error:
            ghost.notes.append(f"samples not read: {error}")

    return chunk


def _replaying_samples(cursor: Cursor, ghost: Ghost, nodes: Nodes) -> None:
    cursor.skip(4)
    _samples(read_compressed_samples)(cursor, ghost, nodes)


def _appearance(cursor: Cursor, ghost: Ghost, nodes: Nodes) -> None:
    """Reads chunk 000 of games since 2013: the car, the driver and, since 2020, the entity record of the run."""
    version = cursor.u32()
    if version > MAX_MODEL_VERSION:
        ghost.notes.append(f"the driver's appearance has version {version}; it is read as version {MAX_MODEL_VERSION}")
    appearance = cursor.u32() if version >= 9 else 0
    ghost.vehicle = cursor.ident().uid
    cursor.skip(12)
    _skip_file_references(cursor)
    if cursor.u32():
        _skip_badge(cursor)
    if appearance >= 1:
        cursor.string()
    ghost.nickname = cursor.string()
    cursor.string()
    if version >= 2:
        cursor.string()
    if version >= 4:
        cursor.skip(4)
    if version >= 5:
        read_entity_record(cursor, ghost, nodes)


def read_entity_record(cursor: Cursor, ghost: Ghost, nodes: Nodes) -> None:
    """Reads a reference to an entity record; a ghost without samples gets those of the record's car."""
    samples = nodes.reference(cursor, {ENTITY_RECORD: _entity_reader(ghost)})
    if ghost.samples is None and isinstance(samples, Samples):
        ghost.samples = samples


def _entity_reader(ghost: Ghost) -> NodeReader:
    def read(cursor: Cursor, nodes: Nodes) -> object:
        holder = Ghost(notes=ghost.notes)
        read_node(cursor, holder, nodes, {ENTITY_RECORD: _samples(read_entity_samples)}, "the record of entities")
        return holder.samples

    return read


def _skip_file_references(cursor: Cursor) -> None:
    for _ in range(cursor.count(5)):
        cursor.file_reference()


def _skip_badge(cursor: Cursor) -> None:
    version = cursor.u32()
    cursor.skip(12)
    if version == 0:
        cursor.skip(4)
        cursor.string()
    for _ in range(cursor.count(8)):
        cursor.string()
        cursor.string()
    for _ in range(cursor.count(4)):
        cursor.string()


def _driver(num_unknown: int) -> ChunkReader[Ghost]:
    """Returns a reader of the old chunks with the car, its skin and the driver's name."""

    def chunk(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
        ghost.vehicle = cursor.ident().uid
        cursor.string()
        cursor.skip(4 * num_unknown)
        ghost.nickname = cursor.string()

    return chunk


def _checkpoints(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
    """Reads checkpoint times, each followed by an unused value."""
    pairs = [(cursor.optional(), cursor.u32()) for _ in range(cursor.count(8))]
    cursor.expect_end()
    ghost.checkpoint_times_ms = tuple(time for time, _ in pairs)


def _skins(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
    _skip_file_references(cursor)
    ghost.nickname = cursor.string()


def _validation(*, has_seed: bool) -> ChunkReader[Ghost]:
    """Returns a reader of the validation chunk, which holds the inputs."""

    def chunk(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
        if cursor.u32() == 0:
            return
        _inputs(cursor, ghost)
        if has_seed:
            cursor.skip(4)

    return chunk


def _versioned_validation(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
    version, duration_ms = cursor.u32(), cursor.u32()
    if duration_ms == 0 and version == 0:
        return
    _inputs(cursor, ghost)


def _inputs(cursor: Cursor, ghost: Ghost) -> None:
    cursor.skip(4)
    events = read_events(cursor)
    if events:
        ghost.events, ghost.num_inputs = events, len(events)
    ghost.game_version = cursor.string()
    cursor.skip(12)
    cursor.string()


def _tick_inputs(cursor: Cursor, ghost: Ghost, _: Nodes) -> None:
    try:
        events, num_stored = read_tick_inputs(cursor)
    except UnsupportedGenerationError as error:
        ghost.notes.append(f"inputs not read: {error}")
        return
    if num_stored and not ghost.events:
        ghost.events, ghost.num_inputs = events, num_stored


GHOST_CHUNKS: dict[int, ChunkReader[Ghost]] = {
    0x0303F003: _samples(read_plain_samples),
    0x0303F004: skip(4),
    0x0303F005: _samples(read_compressed_samples),
    0x0303F006: _replaying_samples,
    0x03092000: _appearance,
    0x03092003: _driver(0),
    0x03092004: _checkpoints,
    0x03092005: keep("race_time_ms", Cursor.optional),
    0x03092006: _driver(1),
    0x03092007: skip(12),
    0x03092008: keep("respawns", Cursor.optional),
    0x03092009: skip(12),
    0x0309200A: keep("stunts", Cursor.optional),
    0x0309200B: _checkpoints,
    0x0309200C: skip(4),
    0x0309200D: _driver(4),
    0x0309200E: discard(Cursor.id),
    0x0309200F: keep("login", Cursor.string),
    0x03092010: keep("validated_map_uid", Cursor.id),
    0x03092011: _validation(has_seed=False),
    0x03092012: skip(20),
    0x03092015: keep("nickname", Cursor.id),
    0x03092017: _skins,
    0x03092018: keep("vehicle", lambda cursor: cursor.ident().uid),
    0x03092019: _validation(has_seed=True),
    0x0309201C: skip(32),
    0x0309201D: _tick_inputs,
    0x03092025: _versioned_validation,
}
"""Readers of the chunks of a ghost by folded id."""


def read_ghost(cursor: Cursor, nodes: Nodes) -> Ghost:
    """Reads one ghost.

    Raises:
        UnsupportedGenerationError: if it holds an unknown unskippable chunk.
    """
    ghost = Ghost()
    read_node(cursor, ghost, nodes, GHOST_CHUNKS, "a ghost")
    return ghost
