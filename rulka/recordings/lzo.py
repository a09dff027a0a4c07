"""LZO1X decompression with `lzallright`: the compression of Gbx bodies.

The stream has no header; the caller knows the uncompressed size. `lzallright` treats that size only as a hint and grows
its buffer with the stream: a megabyte of zeros took half a gigabyte. So our own kernel first computes the output size
without writing any output.
"""

from __future__ import annotations

import numpy as np
from lzallright import LZOCompressor, LZOError
from numpy.typing import NDArray

from rulka.machine.kernels import cached_njit
from rulka.recordings.errors import DamagedError

MAX_EXPANSION = 256
"""No LZO1X stream expands by more than this factor: an extension byte stands for 255 bytes."""
_CUT = -1


def decompress(data: bytes, size: int) -> bytes:
    """Decompresses one LZO1X stream.

    Args:
        data: the whole compressed stream.
        size: uncompressed size; the caller has checked that this much may be allocated.

    Returns:
        Exactly `size` bytes.

    Raises:
        DamagedError: if the stream is invalid or has another uncompressed size.
    """
    found = _count(np.frombuffer(data, dtype=np.uint8), size)
    problem = "ends in the middle of an instruction, or goes on after its end mark"
    if found > size:
        problem = "holds more than the stated size"
    elif found >= 0:
        problem = f"holds {found} bytes instead of the stated {size}"
    if found == size:
        try:
            return LZOCompressor.decompress(data, size)
        except LZOError as error:
            problem = f"refers to bytes before its start ({error.args[0]})"
    raise DamagedError(f"the compressed data {problem}")


@cached_njit
def _extended(source: NDArray[np.uint8], at: int, base: int) -> tuple[int, int]:
    """Reads a length: zero bytes add 255 each, the first other byte ends it. Returns (length, next)."""
    length = base
    while at < source.shape[0] and source[at] == 0:
        length += 255
        at += 1
    return (length + int(source[at]) if at < source.shape[0] else length), at + 1


@cached_njit
def _count(source: NDArray[np.uint8], limit: int) -> int:
    """Returns the uncompressed size: any number above `limit` if it exceeds that, `_CUT` without a proper end."""
    end = source.shape[0]
    at, total, literals = 0, 0, 0
    if end > 0 and source[0] > 17:
        literals = int(source[0]) - 17
        at, total = 1 + literals, literals
    run = min(literals, 4)  # literals copied before the next instruction, 4 for "4 or more"
    while at < end and total <= limit:
        token = int(source[at])
        at += 1
        if token >= 64:
            length, literals, at = (token >> 5) + 1, token & 3, at + 1
            run = literals
        elif token >= 16:
            mask = 31 if token >= 32 else 7
            length = (token & mask) + 2
            if length == 2:
                length, at = _extended(source, at, mask + 2)
            if at + 2 > end:
                return _CUT
            word = int(source[at]) | int(source[at + 1]) << 8
            at += 2
            if token < 32 and token & 8 == 0 and word >> 2 == 0:  # the end mark
                return total if at == end else _CUT
            run = literals = word & 3
        elif run > 0:
            length, literals, at = (2 if run < 4 else 3), token & 3, at + 1
            run = literals
        else:
            length, run = 0, 4
            literals = token + 3
            if token == 0:
                literals, at = _extended(source, at, 18)
        at += literals
        total += length + literals
    return total if total > limit else _CUT
