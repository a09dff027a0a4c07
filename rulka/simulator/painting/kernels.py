"""What all painting kernels share: how they are compiled, scalar types, working memory.

numba's cache looks only at the file of the kernel that is called from Python: an edited constant or kernel in another
file would go unseen, and stale code would run. So only the outermost kernel is cached, and its cache key holds a stamp
of every file that it is made of (`source_stamp`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]
Int = Any  # an int64 scalar
Real = Any  # a float32 scalar: numba would turn a plain float into a float64 one
Pixel = Any  # an unsigned pixel index: a signed one would be tested for being negative at every access

# Arrays are only borrowed, so reference counting, which costs more than the painting, is switched off (_nrt).
OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}
kernel = njit(**OPTIONS)
inlined_kernel = njit(forceinline=True, **OPTIONS)
cached_kernel = njit(cache=True, **OPTIONS)

ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
NEAR_M = np.float32(0.25)
"""Nothing nearer to the eye is painted."""

EYE, RIGHT, ABOVE, AHEAD, FOCAL, CENTRE_X, CENTRE_Y, LENS_SIZE = 0, 3, 6, 9, 12, 13, 14, 15
"""Places in the lens array: position, three axes, focal length and middle of the image in pixels."""
X, Y, Z, PIXEL_X, PIXEL_Y = 0, 1, 2, 3, 4
"""Columns of a point: camera space (right, up, forward, in metres from the eye), then pixels."""
POINTS = 6
"""Points of a section, see road.py."""
MAX_SLOTS = 1024
"""Sections in one frame; further ones are left out."""
STRIP, GATE, CAR = np.int64(0), np.int64(1), np.int64(2)
"""Kinds of items."""


class Scratch(NamedTuple):
    """Working memory of one frame."""

    lens: Floats  # [LENS_SIZE]
    point: Floats  # [slot, POINTS, 5]; the pixels are valid past the near plane
    item: Indices  # [item, 4] kind and strip length, slot or index, slot, section
    key: Floats  # [item] distance
    order: Indices  # [item]
    polygon: Floats  # [2, 10, 3] camera space, before and after clipping
    corner: Floats  # [10, 2] pixels
    frame: Floats  # [4, 3] axes of a gate or a car, and its place, in camera space


def new_scratch() -> Scratch:
    """Returns working memory for frames of any size; one for each thread."""
    return Scratch(
        lens=np.empty(LENS_SIZE, np.float32),
        point=np.empty((MAX_SLOTS, POINTS, 5), np.float32),
        item=np.empty((2 * MAX_SLOTS, 4), np.int32),
        key=np.empty(2 * MAX_SLOTS, np.float32),
        order=np.empty(2 * MAX_SLOTS, np.int32),
        polygon=np.empty((2, 10, 3), np.float32),
        corner=np.empty((10, 2), np.float32),
        frame=np.empty((4, 3), np.float32),
    )


def source_stamp(files: list[Path]) -> int:
    """Returns a number that changes whenever one of the files does."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:7], "little")


@inlined_kernel
def to_camera(lens: Floats, x: Real, y: Real, z: Real, out: Floats) -> None:
    """Moves a world point into camera space."""
    dx, dy, dz = x - lens[EYE], y - lens[EYE + 1], z - lens[EYE + 2]
    for axis in range(3):
        out[axis] = dx * lens[RIGHT + 3 * axis] + dy * lens[RIGHT + 3 * axis + 1] + dz * lens[RIGHT + 3 * axis + 2]


@inlined_kernel
def length(vector: Floats) -> Real:
    """Length of a vector of three."""
    return np.sqrt(vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2])
