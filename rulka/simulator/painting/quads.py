"""Kernels that fill convex quadrilaterals in camera space, row by row, without clipping them.

An edge and the eye span a plane. A pixel shows the quadrilateral if its ray lies on the inner side of all four planes,
wherever the corners are, also behind the eye (M. Olano, T. Greer: Triangle Scan Conversion using 2D Homogeneous
Coordinates, 1997). On a row such a plane is one column, a border on the left or on the right.

Pixels have their centre at half numbers. Dimensions: H x W pixels.
"""

from __future__ import annotations

import numpy as np

from rulka.simulator.painting.kernels import (
    CENTRE_X,
    CENTRE_Y,
    FOCAL,
    HALF,
    NEAR_M,
    ONE,
    ZERO,
    Border,
    Bytes,
    Floats,
    Int,
    Pixel,
    Real,
    Vector,
    cross,
    dot,
    inlined_kernel,
    kernel,
)

FAR_OFF = np.float32(1e6)
"""A column beyond every image."""
TINY = np.float32(1e-9)
NEXT = np.uint64(1)


@inlined_kernel
def border(plane: Vector, sign: Real, lens: Floats) -> Border:
    """The columns where a plane through the eye cuts rows: left of the inside, and its slope; right of it, and slope.

    Args:
        plane: normal in camera space.
        sign: positive where the normal points inward.
        lens: the camera.
    """
    across = plane[0] * sign
    is_left = across > ZERO
    across = max(across, TINY) if is_left else min(across, -TINY)
    slope = plane[1] * sign / across
    start = lens[CENTRE_X] - slope * lens[CENTRE_Y] - plane[2] * sign / across * lens[FOCAL]
    return (
        start if is_left else -FAR_OFF,
        slope if is_left else ZERO,
        FAR_OFF if is_left else start,
        ZERO if is_left else slope,
    )


@kernel
def fill_between(
    frame: Bytes,
    first: Int,
    last: Int,
    across: tuple[Border, Border],
    beside: tuple[Border, Border],
    value: Real,
    is_joined: bool,
) -> None:
    """Fills the pixels of some rows that lie between four borders; pixels on a border are mixed by the part covered.

    Args:
        frame: [H, W].
        first: the first row.
        last: the row after the last.
        across: two borders.
        beside: two borders.
        value: brightness, 0 to 255.
        is_joined: whether more of the same lies beyond the borders `across`. They are then widened to whole pixels:
            half-covered ones would show what lies behind as a seam.
    """
    a, b, c, d = across[0], across[1], beside[0], beside[1]
    width = np.float32(frame.shape[1])
    for row in range(np.uint64(first), np.uint64(last)):
        y = np.float32(np.int32(row)) + HALF
        left = max(a[0] + a[1] * y, b[0] + b[1] * y)
        right = min(a[2] + a[3] * y, b[2] + b[3] * y)
        if is_joined:
            left, right = np.floor(left), np.ceil(right)
        left = max(left, max(c[0] + c[1] * y, d[0] + d[1] * y))
        right = min(right, min(c[2] + c[3] * y, d[2] + d[3] * y))
        left = left if left > ZERO else ZERO  # written so that a number that is none stays inside the image
        right = right if right < width else width
        if left < right:
            fill_row(frame, row, left, right, value)


@inlined_kernel
def fill_row(frame: Bytes, y: Pixel, left: Real, right: Real, value: Real) -> None:
    """Fills from `left` to `right`, mixing the two border pixels by the part covered."""
    first, last = np.uint64(np.int64(left)), np.uint64(np.int64(right))
    blend(frame, y, first, min(np.float32(np.int64(first + NEXT)), right) - left, value)
    ink = np.uint8(np.int32(value + HALF))
    for x in range(first + NEXT, last):
        frame[y, x] = ink
    if last > first and last < np.uint64(frame.shape[1]):
        blend(frame, y, last, right - np.float32(np.int64(last)), value)


@inlined_kernel
def blend(frame: Bytes, y: Pixel, x: Pixel, cover: Real, value: Real) -> None:
    """Mixes one pixel with a value."""
    old = np.float32(frame[y, x])
    frame[y, x] = np.uint8(np.int32(old + cover * (value - old) + HALF))


@inlined_kernel
def row_after(y: Real, height: Real) -> Int:
    """The first row whose centre is not above `y`, between 0 and the height."""
    y = y if y > HALF else HALF  # written so that a number that is none stays inside the image
    y = y if y < height else height
    return np.int64(np.ceil(y - HALF))


@kernel
def paint_quad(frame: Bytes, lens: Floats, a: Vector, b: Vector, c: Vector, d: Vector, value: Real) -> None:
    """Fills a plane convex quadrilateral, given by its corners in camera space in order around it."""
    if max(max(a[2], b[2]), max(c[2], d[2])) <= NEAR_M:
        return
    height, width = np.float32(frame.shape[0]), np.float32(frame.shape[1])
    first, last = np.int64(0), np.int64(frame.shape[0])
    if min(min(a[2], b[2]), min(c[2], d[2])) > NEAR_M:
        x0, x1, x2, x3 = a[0] / a[2], b[0] / b[2], c[0] / c[2], d[0] / d[2]
        y0, y1, y2, y3 = a[1] / a[2], b[1] / b[2], c[1] / c[2], d[1] / d[2]
        edge = (width - lens[CENTRE_X]) / lens[FOCAL]
        if min(min(x0, x1), min(x2, x3)) > edge or max(max(x0, x1), max(x2, x3)) < -edge:
            return
        first = row_after(lens[CENTRE_Y] - max(max(y0, y1), max(y2, y3)) * lens[FOCAL], height)
        last = row_after(lens[CENTRE_Y] - min(min(y0, y1), min(y2, y3)) * lens[FOCAL], height)
    if first >= last:
        return
    lower = cross(a, b)
    sign = ONE if dot(lower, c) > ZERO else -ONE
    across = border(lower, sign, lens), border(cross(c, d), sign, lens)
    beside = border(cross(b, c), sign, lens), border(cross(d, a), sign, lens)
    fill_between(frame, first, last, across, beside, value, False)
