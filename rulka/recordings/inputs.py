"""Stored inputs of the games from 2004 to 2017: a list of timestamped events."""

from __future__ import annotations

import struct

from rulka.recordings.errors import DamagedError, check_count
from rulka.recordings.model import InputEvent, new_event
from rulka.recordings.stream import Cursor

STAMP_ZERO_MS = 100_000
"""Stored timestamp of the race start."""
TOOL_OFFSET_MS = 65_535
"""Constant offset of the timestamps in tool-made recordings."""
RACE_RUNNING, FINISH_LINE = "_FakeIsRaceRunning", "_FakeFinishLine"
"""Marker events: the race start and, if reached, the finish."""
MAX_CONTROL_NAMES = 256
EVENT = struct.Struct("<iBI")
"""Timestamp, index of the control name, value."""
_NAME_AT = 4


def read_events(cursor: Cursor) -> tuple[InputEvent, ...]:
    """Reads control names and events; returned timestamps are relative to the race start.

    Raises:
        DamagedError: if an event refers to an unlisted control.
    """
    num_names = cursor.count(4)
    check_count("control names", num_names, MAX_CONTROL_NAMES)
    names = [cursor.id() for _ in range(num_names)]
    num_events = cursor.count(EVENT.size)
    cursor.skip(4)
    stored = cursor.take(num_events * EVENT.size)
    zero = STAMP_ZERO_MS + _tool_offset(names, stored)
    try:
        events = [new_event((stamp - zero, names[name], value)) for stamp, name, value in EVENT.iter_unpack(stored)]
    except IndexError:
        message = f"an input names control {max(stored[_NAME_AT :: EVENT.size])}, {num_names} are listed"
        raise DamagedError(message) from None
    return tuple(events)


def _tool_offset(names: list[str], stored: bytes) -> int:
    """Returns the constant timestamp offset, detected from the race-start marker."""
    if RACE_RUNNING not in names:
        return 0
    first = stored[_NAME_AT :: EVENT.size].find(names.index(RACE_RUNNING))
    is_late = first >= 0 and EVENT.unpack_from(stored, first * EVENT.size)[0] == STAMP_ZERO_MS + TOOL_OFFSET_MS
    return TOOL_OFFSET_MS if is_late else 0
