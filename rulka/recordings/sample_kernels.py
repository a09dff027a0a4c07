"""The numbers in a sample of a car, unpacked row by row: compiled once and cached.

A few hundred samples are too few for whole-array arithmetic to pay: its calls cost more than the numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

ABSENT = -1
"""Place of a value that a layout does not hold; the value stays zero."""
SCALARS = ("forward_speed_mps", "side_speed_mps", "rpm", "steer", "gas", "brake", "turbo", "dirt")
"""Rows of the scalars that `decode_vehicle_into` fills."""


@njit(cache=True, nogil=True)
def _word(row: NDArray[np.uint8], at: int) -> int:
    return int(row[at]) | (int(row[at + 1]) << 8)


@njit(cache=True, nogil=True)
def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@njit(cache=True, nogil=True)
def _vector(row: NDArray[np.uint8], at: int, out: NDArray[np.float32]) -> None:
    """Unpacks four bytes: the logarithm of a magnitude in thousandths, a heading and a pitch."""
    exponent = _signed(_word(row, at), 16)
    magnitude = 0.0 if exponent == -32768 else math.exp(exponent / 1000.0)
    heading = _signed(int(row[at + 2]), 8) / 127.0 * math.pi
    pitch = _signed(int(row[at + 3]), 8) / 127.0 * (math.pi / 2)
    flat = magnitude * math.cos(pitch)
    out[0], out[1], out[2] = flat * math.cos(heading), flat * math.sin(heading), magnitude * math.sin(pitch)


@njit(cache=True, nogil=True)
def decode_motion_into(
    rows: NDArray[np.uint8],
    quaternion: NDArray[np.float32],
    velocity: NDArray[np.float32],
    spin: NDArray[np.float32],
) -> None:
    """Unpacks rotation, velocity and angular velocity.

    Args:
        rows: [S, 14] uint8, the bytes after the position: an angle and the heading and pitch of its axis, 16 bits
            each, then two packed vectors.
        quaternion: [S, 4] to fill, w, x, y, z.
        velocity: [S, 3] to fill, m/s.
        spin: [S, 3] to fill, rad/s.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        angle = _word(row, 0) / 65535.0 * math.pi
        heading = _signed(_word(row, 2), 16) / 32767.0 * math.pi
        pitch = _signed(_word(row, 4), 16) / 32767.0 * (math.pi / 2)
        flat = math.sin(angle) * math.cos(pitch)
        quaternion[i, 0] = math.cos(angle)
        quaternion[i, 1], quaternion[i, 2] = flat * math.cos(heading), flat * math.sin(heading)
        quaternion[i, 3] = math.sin(angle) * math.sin(pitch)
        _vector(row, 6, velocity[i])
        _vector(row, 10, spin[i])


@njit(cache=True, nogil=True)
def decode_vehicle_into(
    rows: NDArray[np.uint8],
    places: NDArray[np.int64],
    scalars: NDArray[np.float32],
    has_contact: NDArray[np.bool_],
    is_sliding: NDArray[np.bool_],
    material: NDArray[np.uint8],
    damper_m: NDArray[np.float32],
) -> None:
    """Unpacks the state of the car.

    Args:
        rows: [S, size] uint8 samples.
        places: [8] where steer, turbo, damper, material, next wheel, bits, first bit and dirt lie.
        scalars: [8, S] to fill, rows as in `SCALARS`; zeros.
        has_contact: [S, 4] to fill.
        is_sliding: [S, 4] to fill.
        material: [S, 4] to fill.
        damper_m: [S, 4] to fill, metres.
    """
    steer, turbo, damper, surface, stride, flags, first_bit, dirt = places
    for i in range(rows.shape[0]):
        row = rows[i]
        scalars[0, i] = _word(row, 26) / 65535.0 * 11000.0 - 1000.0
        scalars[1, i] = _word(row, 28) / 65535.0 * 2000.0 - 1000.0
        scalars[2, i] = _word(row, 30) / 65535.0 * 30000.0
        scalars[3, i] = row[steer] / 255.0 * 2.0 - 1.0
        scalars[4, i], scalars[5, i] = row[steer + 1] / 255.0, row[steer + 2] / 255.0
        if turbo >= 0:
            scalars[6, i] = row[turbo] / 255.0
        if dirt >= 0:
            scalars[7, i] = row[dirt] / 255.0
        bits = _word(row, flags)
        for wheel in range(4):
            place = first_bit + 2 * wheel
            is_sliding[i, wheel] = (bits >> place) & 1 == 1
            has_contact[i, wheel] = (bits >> (place + 1)) & 1 == 1
            material[i, wheel] = row[surface + stride * wheel]
            damper_m[i, wheel] = row[damper + stride * wheel] / 255.0 * 4.0 - 2.0
