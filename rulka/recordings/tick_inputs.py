"""Stored inputs of the 2020 game: a bit stream with one group per 10 ms tick, least significant bit first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS
from rulka.machine.kernels import cached_njit
from rulka.recordings.alignment import ACTION_KEYS
from rulka.recordings.errors import DamagedError, check_count, check_version
from rulka.recordings.model import InputEvent, new_event
from rulka.recordings.stream import ITEM_BYTES, Cursor

MAX_TICKS = 2_000_000
"""Five and a half hours."""
MAX_INPUT_SETS = 64
OLD_VERSION, NEW_VERSION = 11, 12
STATE_BITS = {OLD_VERSION: 33, NEW_VERSION: 34}
_RESPAWN_BITS = (31, 33)
_HORN_BIT = 6
_FIRST_ACTION_KEY_BIT, _ACTION_KEYS = 14, 31
_MAX_EVENTS = 4
"""Maximum events from one stored change: two respawns, the horn and the action keys."""
_MODE_BITS, _ON_FOOT, _IN_VEHICLE = 3, 1, 2
"""Low bits of the first full state: whether the driver is on foot or in a vehicle, for the whole run."""
_BITS_OF_A_BYTE = 8
_STATE, _SHORT, _VEHICLE = 0, 1, 3
"""Kinds of stored changes; 2 is the mouse, 4 a driver on foot."""


def read_tick_inputs(cursor: Cursor) -> tuple[tuple[InputEvent, ...], int]:
    """Reads the input chunk of the 2020 game.

    Returns:
        The events, one per changed control, and the number of stored changes of any kind.

    Raises:
        UnsupportedGenerationError: if the version is unknown.
        DamagedError: if the stream ends in the middle of a tick, or continues after the last.
    """
    version = cursor.i32()
    events: list[InputEvent] = []
    num_stored = 0
    num_sets = cursor.count(12)
    check_count("sets of inputs", num_sets, MAX_INPUT_SETS)
    for _ in range(num_sets):
        set_version = cursor.i32()
        cursor.skip(4)
        start_ms = cursor.i32() if version >= 4 else 0
        num_ticks = cursor.u32()
        data = cursor.take(cursor.u32())
        changes = _read_changes(data, num_ticks, set_version)
        cursor.names.charge_memory(_MAX_EVENTS * len(changes) * ITEM_BYTES)
        num_stored += len(changes)
        events.extend(_to_events(changes, start_ms))
    return tuple(events), num_stored


def _read_changes(data: bytes, num_ticks: int, version: int) -> NDArray[np.int64]:
    check_version("the inputs are stored in", version, STATE_BITS)
    check_count("ticks", num_ticks, MAX_TICKS)
    bits = np.frombuffer(data, dtype=np.uint8)
    rows = np.empty((min(3 * num_ticks, 8 * len(data)) + 3, 3), dtype=np.int64)
    num_rows, num_bits = _decode(bits, num_ticks, STATE_BITS[version], rows)
    if num_bits < 0:
        raise DamagedError(f"the inputs end before the last of {num_ticks} ticks")
    num_left = _BITS_OF_A_BYTE * len(data) - num_bits
    # A wrong layout still decodes to something: the only check is that the stream ends where its bytes end.
    if num_left >= _BITS_OF_A_BYTE or _take(bits, num_bits, num_left) != 0:
        raise DamagedError(f"{num_left} bits are left over after the inputs of {num_ticks} ticks, or are not zero")
    return rows[:num_rows]


def _to_events(changes: NDArray[np.int64], start_ms: int) -> list[InputEvent]:
    """Converts stored changes to one event per respawn press and per changed control.

    Controls start at zero.
    """
    events: list[InputEvent] = []
    now = dict.fromkeys(("Horn", "SteerByte", "Accelerate", "Brake", ACTION_KEYS), 0)
    for tick, kind, value in changes.tolist():
        stamp, before = start_ms + TICK_MS * tick, dict(now)
        if kind == _STATE:
            events += [new_event((stamp, "Respawn", 1)) for bit in _RESPAWN_BITS if value >> bit & 1]
            now["Horn"] = value >> _HORN_BIT & 1
            now[ACTION_KEYS] = value >> _FIRST_ACTION_KEY_BIT & _ACTION_KEYS
        elif kind == _SHORT:
            now["Horn"] = value >> 1 & 1
        elif kind == _VEHICLE:
            now |= {"SteerByte": (value & 0xFF ^ 0x80) - 0x80, "Accelerate": value >> 8 & 1, "Brake": value >> 9 & 1}
        events += [new_event((stamp, name, held)) for name, held in now.items() if held != before[name]]
    return events


@cached_njit
def _take(bits: NDArray[np.uint8], at: int, count: int) -> int:
    """Returns `count` bits starting at bit `at`; -1 past the end."""
    if at + count > 8 * bits.shape[0]:
        return -1
    value = 0
    for i in range(count):
        place = at + i
        value |= ((int(bits[place >> 3]) >> (place & 7)) & 1) << i
    return value


@cached_njit
def _change(bits: NDArray[np.uint8], at: int, width: int, row: NDArray[np.int64]) -> int:
    """Reads "unchanged" or a `width`-bit value into `row[2]`; returns the next bit position, -1 past the end.

    `row[2]` is -1 if nothing changed.
    """
    row[2] = -1
    if width == 0 or at >= 8 * bits.shape[0]:
        return at
    if _take(bits, at, 1) == 1:
        return at + 1
    row[2] = _take(bits, at + 1, width)
    return at + 1 + width if row[2] >= 0 else -1


@cached_njit
def _decode(bits: NDArray[np.uint8], num_ticks: int, state_bits: int, rows: NDArray[np.int64]) -> tuple[int, int]:
    """Reads all ticks into rows (tick, kind, value); returns the numbers of rows and of bits read, -1 if bits lack.

    The game omits trailing ticks without changes. The two lowest bits of the first full state, and of no later one,
    tell whether the driver is in a vehicle or on foot.
    """
    at, num_rows, mode = 0, 0, 0
    row = np.zeros(3, dtype=np.int64)
    for tick in range(num_ticks):
        is_short = _take(bits, at + 1, 1) == 1
        for group in range(3):
            if group == 0:
                kind, width = (1, 3) if is_short else (0, 1 + state_bits)
            elif group == 1:
                kind, width = 2, 32
            else:
                kind, width = (3, 10) if mode == _IN_VEHICLE else (4, 8 if mode == _ON_FOOT else 0)
            at = _change(bits, at, width, row)
            if at < 0:
                return num_rows, at
            if row[2] >= 0:
                value = row[2] >> 1 if group == 0 else row[2]  # the lowest bit is the kind of state
                if kind == 0 and mode == 0:
                    mode = value & _MODE_BITS
                rows[num_rows, 0], rows[num_rows, 1], rows[num_rows, 2] = tick, kind, value
                num_rows += 1
    return num_rows, at
