"""What all rendering kernels share: scalar types, options, places in the working memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import inlined_kernel

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]
Int = Any  # an int64 scalar
Real = Any  # a float32 scalar: numba would turn a plain float into a float64 one
Pixel = Any  # an unsigned pixel index: a signed one would be tested for being negative at every access
Vector = tuple[Real, Real, Real]
Border = tuple[Real, Real, Real, Real, Real, Real]

ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
NEAR_M = np.float32(0.25)
"""Where a corner is nearer to the eye than this, it is not projected."""

EYE, RIGHT, ABOVE, AHEAD, FOCAL, CENTRE_X, CENTRE_Y, LENS_SIZE = 0, 3, 6, 9, 12, 13, 14, 15
"""Places in the lens array: position, three axes, focal length and middle of the image in pixels."""
HAZE = np.float32(0.8)
"""Share of the horizon's colour in what is as far as the view reaches."""
MAX_SLOTS = 2048
"""Sections in one frame; further ones are left out."""
SLOT_SIZE = 16
STRIP, GATE, CAR = np.int64(0), np.int64(1), np.int64(2)
"""Kinds of items."""


class Scratch(NamedTuple):
    """Working memory of one frame."""

    lens: Floats  # [LENS_SIZE]
    slot: Floats  # [slot, SLOT_SIZE] sections in camera space, see sections.py
    item: Indices  # [item, 5] kind, slot or index, slot, section, strip length
    key: Floats  # [item] distance
    order: Indices  # [item]
    span: Floats  # [3, 2] columns, see quads.py


def new_scratch() -> Scratch:
    """Returns working memory for frames of any size; one for each thread."""
    return Scratch(
        lens=np.empty(LENS_SIZE, np.float32),
        slot=np.empty((MAX_SLOTS, SLOT_SIZE), np.float32),
        item=np.empty((2 * MAX_SLOTS, 5), np.int32),
        key=np.empty(2 * MAX_SLOTS, np.float32),
        order=np.empty(2 * MAX_SLOTS, np.int32),
        span=np.empty((3, 2), np.float32),
    )


@inlined_kernel
def to_camera(lens: Floats, place: Floats) -> Vector:
    """Moves a section or a car, whose first numbers are its place, into camera space: metres right, up and forward."""
    return turned(lens, place[0] - lens[EYE], place[1] - lens[EYE + 1], place[2] - lens[EYE + 2])


@inlined_kernel
def turned(lens: Floats, x: Real, y: Real, z: Real) -> Vector:
    """Turns a world direction into camera space."""
    return (
        x * lens[RIGHT] + y * lens[RIGHT + 1] + z * lens[RIGHT + 2],
        x * lens[ABOVE] + y * lens[ABOVE + 1] + z * lens[ABOVE + 2],
        x * lens[AHEAD] + y * lens[AHEAD + 1] + z * lens[AHEAD + 2],
    )


@inlined_kernel
def along(start: Vector, direction: Vector, metres: Real) -> Vector:
    """A point so far from another."""
    return start[0] + direction[0] * metres, start[1] + direction[1] * metres, start[2] + direction[2] * metres


@inlined_kernel
def cross(a: Vector, b: Vector) -> Vector:
    """Cross product."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@inlined_kernel
def dot(a: Vector, b: Vector) -> Real:
    """Scalar product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
