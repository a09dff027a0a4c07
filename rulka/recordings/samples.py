"""Decodes trajectory samples of the games up to 2017.

All layouts begin with position, packed rotation, packed velocity and angular velocity. The vehicle state follows;
version 8 reorders it and later versions append to it.
"""

from __future__ import annotations

import math
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.recordings.errors import DamagedError, UnsupportedGenerationError
from rulka.recordings.model import NUM_WHEELS, Samples, VehicleState
from rulka.recordings.stream import ITEM_BYTES, Cursor

MAX_UNCOMPRESSED_BYTES = 1 << 27
MAX_ZLIB_EXPANSION = 1100
"""zlib never expands data by more than this factor (1032, plus a few bytes)."""
CAR_CLASS = 0x0A02B000
NO_CLASS = 0xFFFFFFFF
SIZES = {7: 56, 8: 60, 9: 61}
MIN_SIZES = {10: 68, 11: 68, 12: 68, 14: 70, 15: 71, 16: 73}
"""Minimum size of a sample by version; these versions may append further fields."""
FIRST_REORDERED_VERSION, FIRST_EXTENDED_VERSION = 8, 10
"""The first version with reordered vehicle state; the first from which unlisted versions are read for motion only."""
MOTION_BYTES = 26
NO_LENGTH = -32768
"""Exponent of a vector of length zero."""
MAX_LEFT_BYTES = 4
"""ManiaPlanet and Turbo store one more number after the samples; it is ignored."""


def inflate(cursor: Cursor) -> bytes:
    """Reads and decompresses a zlib stream preceded by its uncompressed and compressed sizes.

    Raises:
        DamagedError: if the stream is invalid or not of the stated size.
    """
    size, compressed_size = cursor.u32(), cursor.u32()
    data = cursor.take(compressed_size)
    if size > MAX_UNCOMPRESSED_BYTES or size > MAX_ZLIB_EXPANSION * compressed_size:
        raise DamagedError(f"{size} bytes of samples are stated from {compressed_size} compressed ones")
    cursor.names.charge_memory(size)
    decoder = zlib.decompressobj()
    try:
        result = decoder.decompress(data, size + 1)
    except zlib.error as error:
        raise DamagedError(f"the samples do not decompress: {error}") from error
    if len(result) != size or not decoder.eof:
        raise DamagedError(f"the samples decompress to {len(result)} bytes instead of {size}, or lack their checksum")
    return result


def read_compressed_samples(cursor: Cursor) -> Samples | None:
    """Reads the samples of ghosts from 2005 on.

    Returns:
        None when the ghost holds no samples.

    Raises:
        UnsupportedGenerationError: if the samples are not of a car or have an unknown version.
        DamagedError: if sizes contradict each other.
    """
    inner = Cursor(inflate(cursor), names=cursor.names)
    vehicle_class = inner.u32()
    if vehicle_class == NO_CLASS:
        return None
    if vehicle_class != CAR_CLASS:
        raise UnsupportedGenerationError(f"the samples are of class 0x{vehicle_class:08X}, not of a car")
    is_fixed_step = bool(inner.u32())
    inner.skip(4)
    period_ms, version = inner.u32(), inner.u32()
    states = inner.take(inner.u32())
    start, size_bytes = _read_offsets(inner, len(states))
    times = np.arange(len(start), dtype=np.int64) * period_ms
    if not is_fixed_step:
        times = np.cumsum(_read_integers(inner))
        if len(times) != len(start):
            raise DamagedError(f"{len(times)} sample times are stated for {len(start)} samples")
    if inner.remaining > MAX_LEFT_BYTES:
        raise DamagedError(f"{inner.remaining} bytes are left over after the samples")
    return _decode(version, period_ms, times, states, start, size_bytes)


def read_plain_samples(cursor: Cursor) -> Samples | None:
    """Reads the samples of ghosts before 2005: states, offsets, times, then the version."""
    states = cursor.take(cursor.u32())
    start = _read_integers(cursor)
    times = _read_integers(cursor)
    is_fixed_step = bool(cursor.u32())
    period_ms, version = cursor.u32(), cursor.u32()
    if len(start) == 0:
        return None
    if is_fixed_step or len(times) != len(start):
        times = np.arange(len(start), dtype=np.int64) * period_ms
    sizes = np.diff(np.append(start, len(states)))
    _check_offsets(start, sizes, len(states))
    return _decode(version, period_ms, times, states, start, int(sizes.min()))


def _read_integers(cursor: Cursor) -> NDArray[np.int64]:
    count = cursor.count(4)
    return np.frombuffer(cursor.take(4 * count), dtype="<i4").astype(np.int64)


def _read_offsets(cursor: Cursor, num_bytes: int) -> tuple[NDArray[np.int64], int]:
    """Returns the [S] byte offsets of the samples and the size of the smallest."""
    count = cursor.u32()
    if count == 0:
        return np.zeros(0, dtype=np.int64), 0
    if count > num_bytes:
        raise DamagedError(f"{count} samples are stated in {num_bytes} bytes")
    cursor.names.charge_memory(count * ITEM_BYTES)
    first = cursor.i32()
    size = cursor.i32() if count > 1 else num_bytes - first
    if size == -1:
        deltas = np.frombuffer(cursor.take(4 * (count - 1)), dtype="<i4").astype(np.int64)
        start = first + np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(deltas)])
    else:
        start = first + np.arange(count, dtype=np.int64) * size
    ends = np.append(start[1:], num_bytes if size == -1 else int(start[-1]) + size)
    sizes = ends - start
    _check_offsets(start, sizes, num_bytes)
    return start, int(sizes.min())


def _check_offsets(start: NDArray[np.int64], sizes: NDArray[np.int64], num_bytes: int) -> None:
    if start.min() < 0 or sizes.min() < 0 or int((start + sizes).max()) > num_bytes:
        raise DamagedError(f"the samples reach beyond their {num_bytes} bytes")


def _decode(
    version: int, period_ms: int, time_ms: NDArray[np.int64], states: bytes, start: NDArray[np.int64], size: int
) -> Samples:
    """Decodes contiguous states at byte offsets `start`; `size` is that of the smallest."""
    needed = SIZES.get(version) or MIN_SIZES.get(version)
    is_known = needed is not None
    if not is_known and version >= FIRST_EXTENDED_VERSION:
        needed = SIZES[9]  # later versions append; their other changes are unknown
    if len(start) and (needed is None or size < needed):
        message = f"the samples are of version {version} with {size} bytes each, whose layout is not known here"
        raise UnsupportedGenerationError(message)
    width = needed or 0
    rows = _state_rows(states, start, size, width) if len(start) else np.zeros((0, SIZES[9]), dtype=np.uint8)
    return Samples(
        version=version,
        size_bytes=size,
        period_ms=period_ms,
        time_ms=time_ms,
        **decode_motion(rows),
        vehicle=_decode_vehicle(rows, version) if is_known else None,
    )


def _state_rows(states: bytes, start: NDArray[np.int64], size: int, width: int) -> NDArray[np.uint8]:
    """Returns [S, width] the first bytes of every state."""
    stored, count, first = np.frombuffer(states, dtype=np.uint8), len(start), int(start[0])
    if int(start[-1]) - first == (count - 1) * size and first + count * size <= len(stored):
        return np.ascontiguousarray(stored[first : first + count * size].reshape(count, size)[:, :width])
    return stored[start[:, None] + np.arange(width)]


def decode_motion(rows: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    """Decodes the 26 motion bytes that all layouts share.

    Args:
        rows: [S, at least 26] uint8, one sample per row.

    Returns:
        By field of `Samples`: position [S, 3] in metres, quaternion [S, 4] as w, x, y, z, velocity [S, 3] in m/s and
        angular velocity [S, 3] in rad/s, all in the world frame.

    Raises:
        DamagedError: if a position is not finite.
    """
    position = np.ascontiguousarray(rows[:, :12]).view("<f4").astype(np.float32)
    if not np.isfinite(position).all():
        raise DamagedError("a sample holds a position that is not finite")
    turn = np.ascontiguousarray(rows[:, 12:18])
    angle = turn.view("<u2")[:, 0] / 65535 * math.pi
    heading, pitch = turn.view("<i2")[:, 1] / 32767 * math.pi, turn.view("<i2")[:, 2] / 32767 * (math.pi / 2)
    axis = np.sin(angle)[:, None] * _direction(heading, pitch)
    quaternion = np.concatenate([np.cos(angle)[:, None], axis], axis=1)
    return {
        "position": position,
        "quaternion": as_float32(quaternion),
        "velocity": _unpack_vectors(rows[:, 18:22]),
        "angular_velocity": _unpack_vectors(rows[:, 22:26]),
    }


def _direction(heading: NDArray[np.float64], pitch: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [S, 3] unit vectors."""
    return np.stack([np.cos(pitch) * np.cos(heading), np.cos(pitch) * np.sin(heading), np.sin(pitch)], axis=1)


def _unpack_vectors(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Unpacks [S, 4] bytes (log magnitude in thousandths, heading, pitch) to [S, 3] vectors."""
    packed = np.ascontiguousarray(packed)
    exponent, angles = packed.view("<i2")[:, 0], packed.view("i1")[:, 2:] / 127 * math.pi
    magnitude = np.where(exponent == NO_LENGTH, 0.0, np.exp(exponent / 1000))
    return as_float32(magnitude[:, None] * _direction(angles[:, 0], angles[:, 1] / 2))


def as_float32(values: NDArray) -> NDArray[np.float32]:
    """Returns the values as 32-bit floats."""
    return np.asarray(values, dtype=np.float32)


def unit_bytes(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Scales bytes to [0, 1]."""
    return as_float32(rows) / np.float32(255)


class _Places(NamedTuple):
    """Byte offsets in a sample."""

    steer: int
    damper: int
    material: int
    stride: int
    """Bytes between wheels."""
    flags: int
    """Two bytes with a slide and a contact bit per wheel."""
    first_bit: int
    turbo: int | None


_OLD_PLACES, _PLACES = _Places(50, 34, 36, 3, 46, 1, None), _Places(40, 49, 50, 2, 58, 6, 47)


def _decode_vehicle(rows: NDArray[np.uint8], version: int) -> VehicleState:
    places = _OLD_PLACES if version < FIRST_REORDERED_VERSION else _PLACES
    wheel = np.arange(NUM_WHEELS)
    speeds = np.ascontiguousarray(rows[:, 26:32]).view("<u2") / 65535
    gas, brake = unit_bytes(rows[:, places.steer + 1 : places.steer + 3].T)
    bits = np.ascontiguousarray(rows[:, places.flags : places.flags + 2]).view("<u2")
    bit = places.first_bit + 2 * wheel
    return VehicleState(
        forward_speed_mps=as_float32(speeds[:, 0] * 11000 - 1000),
        rpm=as_float32(speeds[:, 2] * 30000),
        steer=as_float32(rows[:, places.steer] / 255 * 2 - 1),
        gas=gas,
        brake=brake,
        has_contact=(bits >> (bit + 1) & 1).astype(np.bool_),
        is_sliding=(bits >> bit & 1).astype(np.bool_),
        material=rows[:, places.material + places.stride * wheel],
        damper_m=as_float32(rows[:, places.damper + places.stride * wheel] / 255 * 4 - 2),
        side_speed_mps=as_float32(speeds[:, 1] * 2000 - 1000),
        turbo=np.full(len(rows), np.nan, np.float32) if places.turbo is None else unit_bytes(rows[:, places.turbo]),
    )
