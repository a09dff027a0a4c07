"""A block of the game's form that carries a whole simulator: what the game keeps in places that Rulka does not know.

The places that are known hold what they hold in the game. The simulator's own numbers, which a rewind needs to the
bit, lie in unused places, with a mark, the track they belong to and a checksum over the fixed part of the block; so a
block that was garbled, or comes from the real game, is refused. Only checkpoint times may be edited: programs erase the
time of the finish to let a race go on.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.actions import Controls
from rulka.errors import UserError
from rulka.game.errors import StateRefusedError
from rulka.game.protocol import COUNTDOWN_MS
from rulka.game.state import EVENT_NAMES, NOT_PASSED_MS, SIMULATION_TIMER, STATE, WHEEL, read_state, write_state
from rulka.observation import CAR
from rulka.tracks.track import Track

SPARE = ((1740, 2388), (2392, 3084), (3200, 3816))
"""Ranges of bytes that are known to hold nothing that Rulka reads; `HEADER` lies at the start of the first."""
HEADER = struct.Struct("<4sIII")
"""Mark, checksum of the fixed part without this number, checksum of the track, count of numbers."""
MARK = b"RLK1"
CHECKSUM_AT = SPARE[0][0] + 4
BLOCK_VERSION, RUN_MODE, ALL_FLAGS = 2, 1, 0xFF
FIRST_TICK_MS = 10
"""Simulation time of the first tick of the countdown."""
KMH_PER_MPS = 3.6
_VALUE_BITS = 0xFFFFFF
_KEY_EVENTS = [EVENT_NAMES.index(name) for name in Controls._fields]


class Snapshot(NamedTuple):
    """What a block of ours holds of a race.

    Attributes:
        saved: the car, as `Simulator.save` returns it.
        race_time_ms: milliseconds since the start, negative in the countdown; stands still after the finish.
        tick_time_ms: the same, but it goes on after the finish.
        is_finished: the finish was passed, and nobody prevented that.
        keys: what is pressed.
        checkpoint_ms: [G] race time at each checkpoint, `NOT_PASSED_MS` where there is none yet.
    """

    saved: NDArray[np.float64]
    race_time_ms: int
    tick_time_ms: int
    is_finished: bool
    keys: Controls
    checkpoint_ms: NDArray[np.int32]


class Seal:
    """Writes and reads the blocks of one track.

    Args:
        track: where the race is.
        num_saved: numbers that the simulator saves for a car.

    Raises:
        UserError: if they do not fit into a block, for want of room for so many gates.
    """

    def __init__(self, track: Track, num_saved: int) -> None:
        room = (sum(end - start for start, end in SPARE) - HEADER.size) // 8
        if num_saved > room:
            message = f"track {track.name!r} has too many gates: a block of the game has room for {room} numbers"
            raise UserError(message)
        self._num_saved = num_saved
        self._track_sum = zlib.crc32(track.centre_m.tobytes(), zlib.crc32(track.gate_m.tobytes()))
        self._fixed = np.zeros(1, STATE)
        self._bytes = self._fixed.view(np.uint8)
        record = self._fixed[0]
        record["version"], record["context_mode"], record["flags"] = BLOCK_VERSION, RUN_MODE, ALL_FLAGS
        self._no_flags = np.zeros(len(track.gate_m) - 1, np.int32)

    def close(self, race: Snapshot, car: NDArray[np.float32]) -> bytes:
        """Returns the block of a race as it stands; `car` is its `CAR` row."""
        record, num_passed = self._fixed[0], np.count_nonzero(race.checkpoint_ms != NOT_PASSED_MS)
        _describe(record, car)
        record["race_time_ms"] = race.race_time_ms
        record["timers"][SIMULATION_TIMER] = race.tick_time_ms + COUNTDOWN_MS + FIRST_TICK_MS
        record["checkpoint_count"], record["is_finished"] = num_passed, race.is_finished
        record["events"]["value"][_KEY_EVENTS] = race.keys
        self._embed(race.saved)
        flags = self._no_flags.copy()
        flags[:num_passed] = 1
        return write_state(self._fixed, flags, race.checkpoint_ms)

    def open(self, block: bytes | memoryview) -> Snapshot:
        """Reads a block back.

        Raises:
            StateRefusedError: if it is not one of ours, of this track, and whole.
        """
        state = read_state(block)
        raw = bytes(block[: STATE.itemsize])
        mark, checksum, track_sum, num_saved = HEADER.unpack_from(raw, SPARE[0][0])
        if mark != MARK:
            message = "the state is of another game: it does not hold the simulator's numbers"
            raise StateRefusedError(message)
        if checksum != _checksum(raw):
            message = "the state was changed since it was fetched: its checksum differs"
            raise StateRefusedError(message)
        if track_sum != self._track_sum or num_saved != self._num_saved:
            message = "the state is of another track"
            raise StateRefusedError(message)
        numbers = b"".join(raw[start:end] for start, end in SPARE)[HEADER.size : HEADER.size + 8 * num_saved]
        pressed = state.fixed["events"]["value"][_KEY_EVENTS] & _VALUE_BITS
        return Snapshot(
            saved=np.frombuffer(numbers, np.float64)[None],
            race_time_ms=state.race_time_ms,
            tick_time_ms=state.simulation_time_ms - COUNTDOWN_MS - FIRST_TICK_MS,
            is_finished=state.is_finished,
            keys=Controls(*(bool(value) for value in pressed)),
            checkpoint_ms=state.checkpoints["time_ms"],
        )

    def _embed(self, saved: NDArray[np.float64]) -> None:
        content = HEADER.pack(MARK, 0, self._track_sum, self._num_saved) + saved.tobytes()
        for start, end in SPARE:
            part, content = content[: end - start], content[end - start :]
            self._bytes[start : start + len(part)] = np.frombuffer(part, np.uint8)
        checksum = struct.pack("<I", _checksum(self._bytes.data))
        self._bytes[CHECKSUM_AT : CHECKSUM_AT + 4] = np.frombuffer(checksum, np.uint8)


def _checksum(fixed: bytes | memoryview) -> int:
    return zlib.crc32(fixed[CHECKSUM_AT + 4 :], zlib.crc32(fixed[:CHECKSUM_AT]))


def _describe(record: np.void, car: NDArray[np.float32]) -> None:
    """Writes a `CAR` row into the places of the game; the opposite of `rulka.game.state.car_row`."""
    velocity, rotation = car[CAR["velocity"]], car[CAR["rotation"]]
    for name in ("position", "velocity", "angular_velocity"):
        record[name] = car[CAR[name]]
    record["rotation"] = rotation.reshape(3, 3)
    record["quaternion"] = _quaternion(*map(float, rotation))
    for name in ("gearbox_state", "gear", "rpm", "is_free_wheeling"):
        record[name] = car[CAR[name]][0]
    for name in WHEEL.names or ():
        record["wheels"][name] = car[CAR[name]]
    x, y, z = map(float, velocity)
    record["display_speed"] = int(KMH_PER_MPS * math.sqrt(x * x + y * y + z * z))


def _quaternion(*m: float) -> tuple[float, float, float, float]:
    """Returns w, x, y, z of a rotation given row by row; w is not negative.

    One matrix at a time and without arrays, which takes a tenth of the time of the batched one in `recordings`.
    """
    w = math.sqrt(max(1 + m[0] + m[4] + m[8], 0.0)) / 2
    x = math.copysign(math.sqrt(max(1 + m[0] - m[4] - m[8], 0.0)) / 2, m[7] - m[5])
    y = math.copysign(math.sqrt(max(1 - m[0] + m[4] - m[8], 0.0)) / 2, m[2] - m[6])
    z = math.copysign(math.sqrt(max(1 - m[0] - m[4] + m[8], 0.0)) / 2, m[3] - m[1])
    return w, x, y, z
