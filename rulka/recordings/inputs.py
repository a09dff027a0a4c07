"""Stored inputs of the games from 2004 to 2017: a list of stamped events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from rulka.recordings.errors import DamagedError
from rulka.recordings.model import InputEvent
from rulka.recordings.stream import Cursor

STAMP_ZERO_MS = 100_000
"""Stored stamp of the start of the race."""
TOOL_OFFSET_MS = 65_535
"""Constant by which the stamps of tool-made recordings are late."""
RACE_RUNNING = "_FakeIsRaceRunning"
MAX_CONTROL_NAMES = 256
_new_event = partial(tuple.__new__, InputEvent)
"""Makes an event of a tuple without a call in Python, which is most of the time of reading one."""
_EVENT = np.dtype([("stamp", "<i4"), ("name", "u1"), ("value", "<u4")])


@dataclass(frozen=True)
class StoredInputs:
    """A list of events and the offset that was taken off their stamps."""

    events: tuple[InputEvent, ...]
    offset_ms: int


def read_events(cursor: Cursor) -> StoredInputs:
    """Reads the control names and the events that follow them.

    Raises:
        DamagedError: if an event names a control that is not listed.
    """
    num_names = cursor.count(4)
    if num_names > MAX_CONTROL_NAMES:
        message = f"{num_names} control names are stated, {MAX_CONTROL_NAMES} is the most"
        raise DamagedError(message)
    names = [cursor.id() for _ in range(num_names)]
    num_events = cursor.count(_EVENT.itemsize)
    cursor.skip(4)
    table = np.frombuffer(cursor.take(num_events * _EVENT.itemsize), dtype=_EVENT)
    if num_events and int(table["name"].max()) >= num_names:
        message = f"an input names control {int(table['name'].max())}, {num_names} are listed"
        raise DamagedError(message)
    times = table["stamp"].astype(np.int64) - STAMP_ZERO_MS
    offset = _tool_offset(names, table["name"], times)
    columns = (times - offset).tolist(), map(names.__getitem__, table["name"].tolist()), table["value"].tolist()
    return StoredInputs(tuple(map(_new_event, zip(*columns, strict=True))), offset)


def _tool_offset(names: list[str], indices: np.ndarray, times: np.ndarray) -> int:
    if RACE_RUNNING not in names:
        return 0
    markers = times[indices == names.index(RACE_RUNNING)]
    return TOOL_OFFSET_MS if len(markers) and int(markers[0]) == TOOL_OFFSET_MS else 0
