"""Recordings as `.Replay.Gbx` files in the layout of Forever.

The chunks and their order are those of the game's own files, header included, so that the cheap reading of headers
works. What the game puts into a recording to prove that it made it (checksums of the program, a signature) is zero:
such a file can be read and watched, and is no valid record anywhere.
"""

from __future__ import annotations

import struct
from pathlib import Path
from xml.sax.saxutils import escape

from rulka.recordings.container import GHOST, REPLAY
from rulka.recordings.inputs import STAMP_ZERO_MS
from rulka.recordings.model import Ghost, Recording
from rulka.recordings.stream import END_OF_NODE
from tests.recordings.gbx_writer import Ids, chunk, gbx, skippable, string, u32
from tests.recordings.sample_writer import samples_payload

BASE = 0x0303F000
HEADER_VERSION, LIST_VERSION = 7, 10
NONE = -1
"""Stored where a time, a count or a score is not known."""


def write_recording(path: Path | str, recording: Recording) -> None:
    """Writes a recording to a file."""
    Path(path).write_bytes(encode_recording(recording))


def encode_recording(recording: Recording) -> bytes:
    """Returns the bytes of a `.Replay.Gbx` with the ghosts of a recording, those of a clip left out.

    `parse_recording` reads the same times, checkpoints, events, names and map back, and samples within
    what the format keeps, see `sample_writer`.

    Args:
        recording: what to write. Of its header the map's names, title and notes are not taken over; its `header` and
            the first ghost should agree, as the header is written from the ghost.
    """
    ghosts = [ghost for ghost in recording.ghosts if not ghost.is_from_clip]
    ids = Ids()
    body = chunk(REPLAY | 0x002, u32(len(recording.map_data)) + recording.map_data) if recording.map_data else b""
    body += skippable(REPLAY | 0x007, u32(0))
    nodes = b"".join(u32(number, GHOST) + _ghost(ghost, ids) for number, ghost in enumerate(ghosts, start=1))
    shown = b"".join(u32(0, ghost.race_time_ms or 0) for ghost in ghosts)
    body += chunk(REPLAY | 0x014, u32(LIST_VERSION, len(ghosts)) + nodes + u32(0, len(ghosts)) + shown)
    body += chunk(REPLAY | 0x015, u32(NONE)) + u32(END_OF_NODE)
    header = {REPLAY: _basic_header(recording, ghosts[0]), REPLAY | 1: string(_xml(recording, ghosts[0]))}
    return gbx(REPLAY, header, body, num_nodes=len(ghosts) + 1)


def _or_none(value: int | None) -> int:
    return NONE if value is None else value


def _basic_header(recording: Recording, ghost: Ghost) -> bytes:
    idents = Ids()(recording.map_uid, recording.environment, recording.map_author)
    time = u32(_or_none(ghost.race_time_ms))
    return u32(HEADER_VERSION) + idents + time + string(ghost.nickname) + string(ghost.login)


def _xml(recording: Recording, ghost: Ghost) -> str:
    numbers = {"best": ghost.race_time_ms, "respawns": ghost.respawns, "stuntscore": ghost.stunts}
    times = " ".join(f'{name}="{_or_none(value)}"' for name, value in numbers.items())
    is_validable = int(ghost.is_finished and bool(ghost.events))
    return (
        f'<header type="replay" version="TMr.7" exever={_quoted(ghost.game_version)}>'
        f'<map uid={_quoted(recording.map_uid)}/><times {times} validable="{is_validable}"/></header>'
    )


def _quoted(text: str) -> str:
    escaped = escape(text, {'"': "&quot;"})
    return f'"{escaped}"'


def _ghost(ghost: Ghost, ids: Ids) -> bytes:
    body = chunk(BASE | 5, samples_payload(ghost.samples)) if ghost.samples is not None else b""
    body += skippable(GHOST | 0x005, u32(_or_none(ghost.race_time_ms)))
    body += skippable(GHOST | 0x008, u32(_or_none(ghost.respawns)))
    body += skippable(GHOST | 0x009, struct.pack("<3f", 1.0, 1.0, 1.0))
    body += skippable(GHOST | 0x00A, u32(_or_none(ghost.stunts)))
    body += skippable(GHOST | 0x00B, _checkpoints(ghost))
    body += chunk(GHOST | 0x00C, u32(0)) + chunk(GHOST | 0x00E, ids("")) + chunk(GHOST | 0x00F, string(ghost.login))
    body += chunk(GHOST | 0x010, ids(ghost.validated_map_uid)) + chunk(GHOST | 0x012, bytes(20))
    body += skippable(GHOST | 0x013, bytes(8)) + skippable(GHOST | 0x014, u32(0))
    body += chunk(GHOST | 0x015, ids(ghost.nickname))
    body += skippable(GHOST | 0x017, u32(0) + string(ghost.nickname) + string(""))
    body += chunk(GHOST | 0x018, ids(ghost.vehicle, "Vehicles", "Nadeo"))
    return body + chunk(GHOST | 0x019, _inputs(ghost, ids)) + u32(END_OF_NODE)


def _checkpoints(ghost: Ghost) -> bytes:
    times = ghost.checkpoint_times_ms
    return u32(len(times)) + b"".join(u32(_or_none(time), 0) for time in times)


def _inputs(ghost: Ghost, ids: Ids) -> bytes:
    if not ghost.events:
        return u32(0)
    names = list(dict.fromkeys(event.name for event in ghost.events))
    number = {name: index for index, name in enumerate(names)}
    zero = STAMP_ZERO_MS + ghost.stamp_offset_ms
    rows = [struct.pack("<iBI", event.time_ms + zero, number[event.name], event.value) for event in ghost.events]
    duration = max(1, ghost.race_time_ms or ghost.events[-1].time_ms)  # zero would mean that there are no inputs
    listed = u32(duration, 0, len(names)) + ids(*names) + u32(len(rows), 0) + b"".join(rows)
    return listed + string(ghost.game_version) + u32(0, 0, 0) + string("") + u32(0)
