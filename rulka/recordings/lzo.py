"""LZO1X decompression: the compression of every Gbx body.

The stream has no header; the caller knows the uncompressed size. Every read and every write is checked, so that a
damaged stream ends in an error and never outside the two arrays. The kernel is compiled once and cached.

`lzallright` cannot read files that nobody vouches for: it takes the size as a hint and grows
its buffer as far as the stream goes, to 512 bytes for each compressed one (1 MB of zeros took 0.5 GB).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.recordings.errors import DamagedError

MAX_EXPANSION = 256
"""No LZO1X stream grows by more than this factor: an extension byte stands for 255 bytes."""

_OK, _INPUT_ENDED, _OUTPUT_FULL, _DISTANCE, _LEFT_OVER = 0, 1, 2, 3, 4
_PROBLEMS = {
    _INPUT_ENDED: "the compressed data ends in the middle of an instruction",
    _OUTPUT_FULL: "the compressed data holds more than the stated size",
    _DISTANCE: "the compressed data refers to bytes before its start",
    _LEFT_OVER: "the compressed data goes on after its end mark",
}


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Decompresses one LZO1X stream.

    Args:
        data: the whole compressed stream.
        size: number of bytes it stands for; the caller has checked that this much may be allocated.

    Returns:
        Exactly `size` bytes.

    Raises:
        DamagedError: if the stream is not valid or stands for another number of bytes.
    """
    out = np.empty(size, dtype=np.uint8)
    source = np.frombuffer(data, dtype=np.uint8)
    problem, num_written = _decompress(source, out)
    if problem == _OK and num_written != size:
        message = f"the compressed data holds {num_written} bytes instead of the stated {size}"
        raise DamagedError(message)
    if problem != _OK:
        raise DamagedError(_PROBLEMS[problem])
    return out.tobytes()


@njit(cache=True, nogil=True)
def _extended(source: NDArray[np.uint8], at: int, base: int) -> tuple[int, int]:
    """Reads a length: zero bytes add 255 each, the first other byte ends it. Returns (length or -1, next)."""
    length = base
    while at < source.shape[0] and source[at] == 0:
        length += 255
        at += 1
    if at >= source.shape[0]:
        return -1, at
    return length + int(source[at]), at + 1


@njit(cache=True, nogil=True)
def _literals(source: NDArray[np.uint8], at: int, out: NDArray[np.uint8], to: int, count: int) -> int:
    """Copies `count` bytes from the stream; returns 0 or the kind of problem. A negative count is one."""
    if count < 0 or count > source.shape[0] - at:
        return 1
    if count > out.shape[0] - to:
        return 2
    for i in range(count):
        out[to + i] = source[at + i]
    return 0


@njit(cache=True, nogil=True)
def _repeat(out: NDArray[np.uint8], to: int, length: int, distance: int) -> int:
    """Copies `length` bytes from `distance` before, which may overlap; returns 0 or the kind of problem."""
    if distance > to:
        return 3
    if length > out.shape[0] - to:
        return 2
    for i in range(length):
        out[to + i] = out[to + i - distance]
    return 0


@njit(cache=True, nogil=True)
def _match(source: NDArray[np.uint8], at: int, run: int) -> tuple[int, int, int, int]:
    """Reads one match instruction at `at`; returns (length or -1, distance, trailing literals, next).

    Distance 0 stands for the end of the stream. `run` is the number of literals copied before, 4 for "4 or more".
    """
    token = int(source[at])
    at += 1
    if token < 16 or token >= 64:
        if at >= source.shape[0]:
            return -1, 0, 0, at
        low = int(source[at])
        if token >= 64:
            return (token >> 5) + 1, 1 + ((token >> 2) & 7) + (low << 3), token & 3, at + 1
        if run < 4:
            return 2, 1 + (token >> 2) + (low << 2), token & 3, at + 1
        return 3, 2049 + (token >> 2) + (low << 2), token & 3, at + 1
    mask = 31 if token >= 32 else 7
    length = (token & mask) + 2
    if length == 2:
        length, at = _extended(source, at, mask + 2)
    if length < 0 or at + 2 > source.shape[0]:
        return -1, 0, 0, at
    word = int(source[at]) | (int(source[at + 1]) << 8)
    if token >= 32:
        return length, 1 + (word >> 2), word & 3, at + 2
    base = ((token & 8) << 11) + (word >> 2)
    return length, 16384 + base if base > 0 else 0, word & 3, at + 2


@njit(cache=True, nogil=True)
def _decompress(source: NDArray[np.uint8], out: NDArray[np.uint8]) -> tuple[int, int]:
    """Decodes into `out`; returns (0 or the kind of problem, number of bytes written)."""
    at, to, run = 0, 0, 0
    if source.shape[0] > 0 and source[0] > 17:
        count = int(source[0]) - 17
        problem = _literals(source, 1, out, 0, count)
        if problem != 0:
            return problem, 0
        at, to, run = 1 + count, count, min(count, 4)
    while at < source.shape[0]:
        token = int(source[at])
        if token < 16 and run == 0:
            length, distance = 0, 0
            count, at = (token + 3, at + 1) if token > 0 else _extended(source, at + 1, 18)
            run = 4
        else:
            length, distance, count, at = _match(source, at, run)
            run = count
            if distance == 0:
                return (1 if length <= 0 else 0 if at == source.shape[0] else 4), to
        problem = _repeat(out, to, length, distance)
        if problem == 0:
            problem = _literals(source, at, out, to + length, count)
        if problem != 0:
            return problem, to
        at, to = at + count, to + length + count
    return 1, to
