"""Public functions for reading recordings and maps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rulka.machine.disk import check_readable
from rulka.recordings.clip import read_clip
from rulka.recordings.container import GHOST, MAP, MAX_FILE_BYTES, REPLAY, Container, read_container
from rulka.recordings.errors import (
    DamagedError,
    RecordingError,
    UnreadableFileError,
    UnsupportedGenerationError,
    WrongKindError,
)
from rulka.recordings.ghost import read_entity_record, read_ghost
from rulka.recordings.header import parse_header, xml_number
from rulka.recordings.inputs import FINISH_LINE, read_events
from rulka.recordings.map import read_map_container
from rulka.recordings.model import Ghost, InputEvent, MapInfo, Recording, RecordingHeader
from rulka.recordings.nodes import ChunkReader, Nodes, discard, keep, read_chunks, skip, unknown_chunk
from rulka.recordings.stream import Cursor
from rulka.stages.folders import utf8_path

MAP_CHUNK = REPLAY | 0x002


def read_header(path: Path | str) -> RecordingHeader:
    """Reads the uncompressed header of any Gbx file.

    Raises:
        RecordingError: if the file is unusable; the subclass says why.
    """
    return parse_header(read_container(_read_bytes(Path(path)), header_only=True))


def read_recording(path: Path | str) -> Recording:
    """Reads a recording (`.Replay.Gbx`) or a ghost file (`.Ghost.Gbx`).

    Reads ghosts of the games from 2004 to 2020, including those in a MediaTracker clip. At an unknown structure in a
    clip reading stops, and `notes` says so.

    Raises:
        UnsupportedGenerationError: for the games of 2003; its `map_uid` names the map if that is stored.
        RecordingError: if the file is unusable for another reason; the subclass says why.
    """
    return parse_recording(_read_bytes(Path(path)))


def parse_recording(data: bytes) -> Recording:
    """Reads a recording from the bytes of its file.

    Raises:
        RecordingError: if they are unusable; the subclass says why.
    """
    container = read_container(data)
    if container.class_id == GHOST:
        return _ghost_file(container)
    if container.class_id != REPLAY:
        raise _wrong_kind(container, "a recording")
    return _assemble(container, _read_replay(container))


def read_map(path: Path | str) -> MapInfo:
    """Reads a map (`.Challenge.Gbx`, `.Map.Gbx`).

    Raises:
        UnlimiterMapError: if the map was made with TMUnlimiter.
        RecordingError: if the file is unusable for another reason; the subclass says why.
    """
    return parse_map(_read_bytes(Path(path)))


def parse_map(data: bytes) -> MapInfo:
    """Reads a map from the bytes of its file, for example from `Recording.map_data`.

    Raises:
        RecordingError: if they are unusable; the subclass says why.
    """
    container = read_container(data)
    if container.class_id != MAP:
        raise _wrong_kind(container, "a map")
    return read_map_container(container)


def embedded_map(recording: Recording) -> MapInfo | None:
    """Returns the map in a recording, or None if it is missing or unreadable."""
    try:
        return parse_map(recording.map_data)
    except RecordingError:
        return None


def _read_bytes(path: Path) -> bytes:
    """Reads a file; one larger than any recording is an error."""
    try:
        with check_readable(path).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                message = f"{utf8_path(path)} has more than {MAX_FILE_BYTES} bytes, no recording is that large"
                raise UnreadableFileError(message)
            # Requests one byte more than expected: allocating a buffer of the limit would take longer than the read.
            return file.read(size + 1) or b""
    except OSError as error:
        message = f"{utf8_path(path)} cannot be read: {error.strerror or error}"
        is_there = not isinstance(error, FileNotFoundError) or path.is_symlink()
        hint = "Allow reading it, or take it away." if is_there else "Look at its name and folder."
        raise UnreadableFileError(message, hint=hint) from error


def _wrong_kind(container: Container, wanted: str) -> WrongKindError:
    kind = parse_header(container).kind
    shown = f"a {kind}" if kind != "unknown" else f"a file of class 0x{container.class_id:08X}"
    message = f"{wanted} was expected, this is {shown}"
    return WrongKindError(message)


@dataclass
class _Replay:
    """Parse state of a recording."""

    map_data: bytes = b""
    ghosts: list[Ghost] = field(default_factory=list)
    events: tuple[InputEvent, ...] = ()
    has_ghosts: bool = False
    notes: list[str] = field(default_factory=list)


def _ghosts(cursor: Cursor, target: _Replay, nodes: Nodes) -> None:
    cursor.skip(4)
    for _ in range(cursor.count(4)):
        ghost = nodes.reference(cursor, {GHOST: read_ghost})
        if isinstance(ghost, Ghost):
            target.ghosts.append(ghost)
    target.has_ghosts = True
    cursor.skip(4)
    cursor.skip(8 * cursor.count(8))


def _versioned_ghosts(cursor: Cursor, target: _Replay, nodes: Nodes) -> None:
    cursor.skip(4)
    _ghosts(cursor, target, nodes)


def _inputs(cursor: Cursor, target: _Replay, _: Nodes) -> None:
    if cursor.u32() == 0:
        return
    cursor.skip(4)
    target.events = read_events(cursor)


class _UnreadNode(Exception):  # noqa: N818
    """An unneeded structure cannot be skipped; everything before it has been read."""


def _node(what: str) -> ChunkReader[_Replay]:
    def chunk(cursor: Cursor, _: _Replay, nodes: Nodes) -> None:
        try:
            nodes.reference(cursor, {})
        except UnsupportedGenerationError as error:
            raise _UnreadNode(what) from error

    return chunk


def _clip(cursor: Cursor, target: _Replay, nodes: Nodes) -> None:
    """Reads the ghosts of a clip. An unreadable clip ends reading; the ghosts found until then are kept."""
    ghosts = list(target.ghosts)
    try:
        read_clip(cursor, nodes, ghosts)
    except (UnsupportedGenerationError, DamagedError) as error:
        what = f"the MediaTracker clip ({error})"
        raise _UnreadNode(what) from error
    finally:
        target.ghosts += [replace(ghost, is_from_clip=True) for ghost in ghosts[len(target.ghosts) :]]


def _world_record(cursor: Cursor, target: _Replay, nodes: Nodes) -> None:
    """Reads the record of all entities on the map; a single ghost without samples takes them from it."""
    cursor.skip(4)
    ghost = target.ghosts[0] if len(target.ghosts) == 1 else Ghost()
    try:
        nodes.reference(cursor, {})
        read_entity_record(cursor, ghost, nodes)
    except UnsupportedGenerationError as error:
        what = "the record of the map"
        raise _UnreadNode(what) from error


REPLAY_CHUNKS: dict[int, ChunkReader[_Replay]] = {
    MAP_CHUNK: keep("map_data", lambda cursor: cursor.take(cursor.u32())),
    REPLAY | 0x004: _versioned_ghosts,
    REPLAY | 0x005: skip(4),
    REPLAY | 0x00C: _clip,
    REPLAY | 0x00D: _inputs,
    REPLAY | 0x00E: _node("the list of shown events"),
    REPLAY | 0x010: _node("the list of shown events"),
    REPLAY | 0x011: skip(0),
    REPLAY | 0x014: _ghosts,
    REPLAY | 0x015: _clip,
    REPLAY | 0x018: discard(Cursor.id),
    REPLAY | 0x024: _world_record,
}
"""Readers of the chunks of a recording by folded id."""


def _read_replay(container: Container) -> _Replay:
    target = _Replay()
    nodes = Nodes(container.external_nodes)
    try:
        cursor = Cursor(container.body)
        stop = read_chunks(cursor, target, nodes, REPLAY_CHUNKS)
    except _UnreadNode as unread:
        target.notes.append(f"{unread} and what follows it were not read")
        return target
    if stop is not None and not target.has_ghosts:
        error = unknown_chunk(stop, "the recording")
        error.map_uid = _embedded_header(target.map_data).map_uid
        raise error
    if stop is not None:
        target.notes.append(f"nothing from chunk 0x{stop:08X} on was read: its layout is not known here")
    if stop is None and cursor.remaining:
        target.notes.append(f"{cursor.remaining} bytes after the end of the recording were not read")
    return target


def _embedded_header(map_data: bytes) -> RecordingHeader:
    """Returns the header of the embedded map; an empty one if there is none or it is damaged."""
    try:
        return parse_header(read_container(map_data, header_only=True))
    except RecordingError:
        return RecordingHeader("unknown")


def _assemble(container: Container, target: _Replay) -> Recording:
    header = parse_header(container)
    is_named = header.map_uid and header.environment and header.map_author
    embedded = header if is_named else _embedded_header(target.map_data)
    complete_ghosts(target.ghosts, target.events, header)
    first = target.ghosts[0] if target.ghosts else Ghost()
    if not target.ghosts:
        target.notes.append("the recording holds no ghost")
    return Recording(
        kind="recording",
        header=header,
        map_uid=header.map_uid or embedded.map_uid or first.validated_map_uid,
        environment=header.environment or embedded.environment,
        map_author=header.map_author or embedded.map_author,
        ghosts=tuple(target.ghosts),
        map_data=target.map_data,
        notes=tuple(target.notes),
    )


def _ghost_file(container: Container) -> Recording:
    ghost = read_ghost(Cursor(container.body), Nodes(container.external_nodes))
    return Recording(
        kind="ghost",
        header=parse_header(container),
        map_uid=ghost.validated_map_uid,
        ghosts=(ghost,),
    )


FROM_BESIDE = "its inputs are stored beside the ghosts"
FROM_HEADER = "its time is that of the header and of the finish among its inputs"


def complete_ghosts(ghosts: Sequence[Ghost], events: tuple[InputEvent, ...], header: RecordingHeader) -> None:
    """Assigns inputs stored outside the ghosts to their ghost, and sets the time of a finished first ghost.

    Args:
        ghosts: ghosts of one recording, those of clips last; changed in place, additions are noted.
        events: inputs stored outside the ghosts; may be empty.
        header: header of the recording.
    """
    owner = _owner(ghosts, header)
    if owner is not None and events:
        owner.events, owner.num_inputs = events, len(events)
        owner.notes.append(FROM_BESIDE)
    if ghosts and ghosts[0].race_time_ms is None:
        _take_time(ghosts[0], header)


def _owner(ghosts: Sequence[Ghost], header: RecordingHeader) -> Ghost | None:
    """Returns the owner of the separate inputs: the ghost with the recording's time, else the first without inputs."""
    empty = [ghost for ghost in ghosts if not ghost.events and not ghost.is_from_clip]
    driven = (ghost for ghost in empty if ghost.race_time_ms is not None and ghost.race_time_ms == header.race_time_ms)
    return next(driven, empty[0] if empty else None)


def _take_time(ghost: Ghost, header: RecordingHeader) -> None:
    """Sets the time if the XML header and the finish marker agree on it: Turbo stores none in the ghost."""
    finish_ms = next((event.time_ms for event in ghost.events if event.name == FINISH_LINE and event.value), None)
    if finish_ms is None or finish_ms <= 0 or xml_number(header.xml, "times.best") != finish_ms:
        return
    ghost.race_time_ms = finish_ms
    ghost.checkpoint_times_ms = ghost.checkpoint_times_ms or (finish_ms,)
    ghost.notes.append(FROM_HEADER)
