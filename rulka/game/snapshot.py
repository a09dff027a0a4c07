"""Embeds the full state of a simulator in a state block of the game's format.

The known fields hold the same values as in the game. The simulator's own numbers, which a bit-identical rewind needs,
are in unused bytes, with a magic number, a checksum of their track and a checksum of the block's fixed part; so a block
that is corrupt or from the real game is rejected. Only checkpoint times may be edited: programs erase the finish time
to let a race go on.
"""

from __future__ import annotations

import math
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import CAR
from rulka.game.errors import StateRefusedError
from rulka.game.state import WHEEL

SPARE = ((1740, 2388), (2392, 3084), (3200, 3816))
"""Byte ranges without any field that Rulka reads; `HEADER` is at the start of the first."""
HEADER = struct.Struct("<4sIII")
"""Magic number, checksum of the fixed part except this field, checksum of the track, count of numbers."""
MARK = b"RLK1"
CHECKSUM_AT = SPARE[0][0] + 4
MAX_NUMBERS = (sum(end - start for start, end in SPARE) - HEADER.size) // 8
"""Capacity of a block in 64-bit numbers."""
KMH_PER_MPS = 3.6


def embed(fixed: NDArray[np.uint8], track_sum: int, numbers: NDArray[np.float64]) -> None:
    """Writes the simulator's numbers, at most `MAX_NUMBERS`, and the checksum into a block's fixed part."""
    content = HEADER.pack(MARK, 0, track_sum, numbers.size) + numbers.tobytes()
    for start, end in SPARE:
        part, content = content[: end - start], content[end - start :]
        fixed[start : start + len(part)] = np.frombuffer(part, np.uint8)
    checksum = struct.pack("<I", _checksum(fixed.data))
    fixed[CHECKSUM_AT : CHECKSUM_AT + 4] = np.frombuffer(checksum, np.uint8)


def extract(fixed: bytes, track_sum: int, num_numbers: int) -> NDArray[np.float64]:
    """Returns the numbers [1, num_numbers] that `embed` wrote into a block's fixed part.

    Raises:
        StateRefusedError: if the block is corrupt, from the real game or of another track.
    """
    mark, checksum, found_sum, num_found = HEADER.unpack_from(fixed, SPARE[0][0])
    if mark != MARK:
        raise StateRefusedError("the state is of another game: it does not hold the simulator's numbers")
    if checksum != _checksum(fixed):
        raise StateRefusedError("the state was changed since it was fetched: its checksum differs")
    if (found_sum, num_found) != (track_sum, num_numbers):
        raise StateRefusedError("the state is of another track")
    content = b"".join(fixed[start:end] for start, end in SPARE)
    return np.frombuffer(content, np.float64, num_numbers, HEADER.size)[None]


def _checksum(fixed: bytes | memoryview) -> int:
    return zlib.crc32(fixed[CHECKSUM_AT + 4 :], zlib.crc32(fixed[:CHECKSUM_AT]))


def describe(record: np.void, car: NDArray[np.float32]) -> None:
    """Writes a `CAR` row into the game's fields; the inverse of `rulka.game.state.car_row`."""
    for name in ("position", "velocity", "angular_velocity"):
        record[name] = car[CAR[name]]
    record["rotation"] = car[CAR["rotation"]].reshape(3, 3)
    for name in ("gearbox_state", "gear", "rpm", "is_free_wheeling"):
        record[name] = car[CAR[name]][0]
    for name in WHEEL.names or ():
        record["wheels"][name] = car[CAR[name]]
    record["display_speed"] = int(KMH_PER_MPS * math.hypot(*map(float, car[CAR["velocity"]])))
