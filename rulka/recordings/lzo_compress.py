"""LZO1X compression, for the bodies of written recordings: literals and the nearest earlier match, found greedily.

The game reads stored bodies as well as compressed ones, but every file it writes itself is compressed, so that is what
other tools are used to. Instructions are those of `rulka.recordings.lzo`; only the three kinds of matches whose
meaning does not depend on the instruction before are used.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

HASH_BITS = 14
MIN_MATCH = 4
MAX_DISTANCE = 0xBFFF
"""Farthest distance that an instruction can name."""


def compress(data: bytes) -> bytes:
    """Returns an LZO1X stream that `rulka.recordings.lzo.decompress` turns back into `data`."""
    source = np.frombuffer(data, dtype=np.uint8)
    out = np.empty(len(data) + len(data) // 16 + 64, dtype=np.uint8)
    size = _compress(source, out, np.full(1 << HASH_BITS, -1, dtype=np.int64), HASH_BITS, MIN_MATCH, MAX_DISTANCE)
    return out[:size].tobytes()


@njit(cache=True, nogil=True)
def _put_extended(out: NDArray[np.uint8], to: int, length: int) -> int:
    """Writes a length of at least 1: zero bytes for 255 each, then the rest; returns the next place."""
    while length > 255:
        out[to] = 0
        to, length = to + 1, length - 255
    out[to] = length
    return to + 1


@njit(cache=True, nogil=True)
def _put_literals(source: NDArray[np.uint8], start: int, end: int, out: NDArray[np.uint8], to: int, tail: int) -> int:
    """Writes the literals `start` to `end`; `tail` is the byte that takes up to three of them, -1 at the beginning."""
    count = end - start
    if count == 0:
        return to
    if tail < 0 and count <= 238:
        out[to] = 17 + count
        to += 1
    elif tail >= 0 and count <= 3:
        out[tail] |= count
    elif count <= 18 and count > 3:
        out[to] = count - 3
        to += 1
    else:
        out[to] = 0
        to = _put_extended(out, to + 1, count - 18)
    for i in range(count):
        out[to + i] = source[start + i]
    return to + count


@njit(cache=True, nogil=True)
def _put_match(out: NDArray[np.uint8], to: int, length: int, distance: int) -> tuple[int, int]:
    """Writes a match; returns the next place and the place of the byte that takes the literals after it."""
    if length <= 8 and distance <= 2048:
        out[to] = ((length - 1) << 5) | (((distance - 1) & 7) << 2)
        out[to + 1] = (distance - 1) >> 3
        return to + 2, to
    if distance <= 16384:
        kind, offset, most = 32, distance - 1, 33
    else:
        offset = distance - 16384
        kind, most = 16 | ((offset >> 14) << 3), 9
    out[to] = kind | (length - 2 if length <= most else 0)
    to += 1
    if length > most:
        to = _put_extended(out, to, length - most)
    word = (offset & 0x3FFF) << 2
    out[to], out[to + 1] = word & 0xFF, word >> 8
    return to + 2, to


@njit(cache=True, nogil=True)
def _compress(
    source: NDArray[np.uint8],
    out: NDArray[np.uint8],
    table: NDArray[np.int64],
    hash_bits: int,
    min_match: int,
    max_distance: int,
) -> int:
    """Compresses into `out`; returns the number of bytes. `table` holds -1 throughout."""
    size = source.shape[0]
    at, anchor, to, tail = 0, 0, 0, -1
    while at + min_match <= size:
        word = int(source[at]) | int(source[at + 1]) << 8 | int(source[at + 2]) << 16 | int(source[at + 3]) << 24
        key = ((word * 2654435761) & 0xFFFFFFFF) >> (32 - hash_bits)
        found = table[key]
        table[key] = at
        length = 0
        if found >= 0 and at - found <= max_distance:
            while at + length < size and source[found + length] == source[at + length]:
                length += 1
        if length < min_match:
            at += 1
            continue
        to = _put_literals(source, anchor, at, out, to, tail)
        to, tail = _put_match(out, to, length, at - found)
        at += length
        anchor = at
    to = _put_literals(source, anchor, size, out, to, tail)
    out[to], out[to + 1], out[to + 2] = 17, 0, 0
    return to + 3
