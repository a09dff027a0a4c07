"""Stored inputs of the games from 2004 to 2017: a list of stamped events."""

from __future__ import annotations

import struct

from rulka.recordings.errors import DamagedError
from rulka.recordings.model import InputEvent, new_event
from rulka.recordings.stream import Cursor

STAMP_ZERO_MS = 100_000
"""Stored stamp of the start of the race."""
TOOL_OFFSET_MS = 65_535
"""Constant by which the stamps of tool-made recordings are late."""
RACE_RUNNING, FINISH_LINE = "_FakeIsRaceRunning", "_FakeFinishLine"
"""Markers among the inputs: the start of the race, and the finish where it was reached."""
MAX_CONTROL_NAMES = 256
EVENT = struct.Struct("<iBI")
"""Stamp, number of the control among the names, value."""
_NAME_AT = 4


def read_events(cursor: Cursor) -> tuple[InputEvent, ...]:
    """Reads the control names and the events that follow them, whose stamps count from the start of the race.

    Raises:
        DamagedError: if an event names a control that is not listed.
    """
    num_names = cursor.count(4)
    if num_names > MAX_CONTROL_NAMES:
        message = f"{num_names} control names are stated, {MAX_CONTROL_NAMES} is the most"
        raise DamagedError(message)
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
    """Returns by how much all stamps are late, as the marker of the start of the race tells."""
    if RACE_RUNNING not in names:
        return 0
    first = stored[_NAME_AT :: EVENT.size].find(names.index(RACE_RUNNING))
    is_late = first >= 0 and EVENT.unpack_from(stored, first * EVENT.size)[0] == STAMP_ZERO_MS + TOOL_OFFSET_MS
    return TOOL_OFFSET_MS if is_late else 0
