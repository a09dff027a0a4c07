"""Kernels that fill convex quadrilaterals in camera space, row by row, without clipping them.

An edge and the eye span a plane. A pixel shows the quadrilateral if its ray lies on the inner side of all four planes,
wherever the corners are, also behind the eye (M. Olano, T. Greer: Triangle Scan Conversion using 2D Homogeneous
Coordinates, 1997). On a row such a plane is one column, a border on the left or on the right.

Pixels have their centre at half numbers. Dimensions: H x W pixels.
"""

from __future__ import annotations

import numpy as np

from rulka.simulator.compiling import called_kernel, inlined_kernel
from rulka.simulator.rendering.kernels import (
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
)

FAR_OFF = np.float32(1e6)
"""A column beyond every image."""
TINY = np.float32(1e-9)
NEXT = np.uint64(1)
NOWHERE = (FAR_OFF, ZERO, -FAR_OFF, ZERO, FAR_OFF, -FAR_OFF)
"""A border that leaves nothing inside."""


@inlined_kernel
def border(plane: Vector, sign: Real, lens: Floats) -> Border:
    """Where a plane through the eye cuts the image.

    Args:
        plane: normal in camera space.
        sign: positive where the normal points inward.
        lens: the camera.

    Returns:
        By row, the column left of the inside, as start and slope, and the column right of it; one of them is far off.
        Then the row above the inside and the row below it, whichever column of the image.
    """
    across, up, ahead = plane[0] * sign, plane[1] * sign, plane[2] * sign * lens[FOCAL]
    is_left, is_above = across > ZERO, up < ZERO
    per_column = ONE / (max(across, TINY) if is_left else min(across, -TINY))
    per_row = ONE / (min(up, -TINY) if is_above else max(up, TINY))
    slope = up * per_column
    start = lens[CENTRE_X] - slope * lens[CENTRE_Y] - ahead * per_column
    middle, tilt = lens[CENTRE_Y] + ahead * per_row, abs(across * per_row) * (lens[CENTRE_X] + ONE)
    return (
        start if is_left else -FAR_OFF,
        slope if is_left else ZERO,
        FAR_OFF if is_left else start,
        ZERO if is_left else slope,
        middle - tilt if is_above else -FAR_OFF,
        FAR_OFF if is_above else middle + tilt,
    )


@called_kernel
def fill_between(frame: Bytes, a: Border, b: Border, c: Border, d: Border, value: Real) -> None:
    """Fills the pixels between four borders; pixels on a border are mixed by the part covered."""
    width, height = np.float32(frame.shape[1]), np.float32(frame.shape[0])
    first = row_after(max(max(a[4], b[4]), max(c[4], d[4])), height)
    last = row_after(min(min(a[5], b[5]), min(c[5], d[5])), height)
    for row in range(first, last):
        y = np.float32(row) + HALF
        left = max(max(a[0] + a[1] * y, b[0] + b[1] * y), max(c[0] + c[1] * y, d[0] + d[1] * y))
        right = min(min(a[2] + a[3] * y, b[2] + b[3] * y), min(c[2] + c[3] * y, d[2] + d[3] * y))
        left, right = clamp_above_zero(left), clamp_below(right, width)
        if left < right:
            fill_row(frame, np.uint64(row), left, right, value)


@inlined_kernel
def fill_strip(
    frame: Bytes,
    span: Floats,
    across: tuple[Border, Border],
    layers: tuple[tuple[Border, Border], tuple[Border, Border], tuple[Border, Border]],
    values: tuple[Real, Real, Real],
) -> None:
    """Fills three layers of a strip of road, one over the other, that share the borders across it.

    More road lies beyond those, so they are widened to whole pixels: half-covered ones would show what lies behind as a
    seam.

    Args:
        frame: [H, W].
        span: [3, 2] working memory.
        across: borders at both ends.
        layers: borders on both sides of each layer; the third lies within the second.
        values: brightness of each layer, 0 to 255.
    """
    a, b = across
    (c, d), (e, f), (g, h) = layers
    width, height = np.float32(frame.shape[1]), np.float32(frame.shape[0])
    top, bottom = min(max(c[4], d[4]), max(e[4], f[4])), max(min(c[5], d[5]), min(e[5], f[5]))
    first = row_after(max(max(a[4], b[4]), top), height)
    last = row_after(min(min(a[5], b[5]), bottom), height)
    for row in range(first, last):
        y = np.float32(row) + HALF
        left = clamp_above_zero(np.floor(max(a[0] + a[1] * y, b[0] + b[1] * y)))
        right = clamp_below(np.ceil(min(a[2] + a[3] * y, b[2] + b[3] * y)), width)
        if left >= right:
            continue
        span[0, 0] = max(left, max(c[0] + c[1] * y, d[0] + d[1] * y))
        span[0, 1] = min(right, min(c[2] + c[3] * y, d[2] + d[3] * y))
        span[1, 0] = max(left, max(e[0] + e[1] * y, f[0] + f[1] * y))
        span[1, 1] = min(right, min(e[2] + e[3] * y, f[2] + f[3] * y))
        span[2, 0] = max(left, max(g[0] + g[1] * y, h[0] + h[1] * y))
        span[2, 1] = min(right, min(g[2] + g[3] * y, h[2] + h[3] * y))
        for layer in range(3):
            left, right = clamp_above_zero(span[layer, 0]), clamp_below(span[layer, 1], width)
            if left < right:
                fill_row(frame, np.uint64(row), left, right, values[layer])


@inlined_kernel
def clamp_above_zero(x: Real) -> Real:
    """The number, or 0 where it is less or NaN."""
    return x if x > ZERO else ZERO


@inlined_kernel
def clamp_below(x: Real, limit: Real) -> Real:
    """The number, or the limit where it is greater or NaN."""
    return x if x < limit else limit


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


@called_kernel
def draw_quad(frame: Bytes, lens: Floats, a: Vector, b: Vector, c: Vector, d: Vector, value: Real) -> None:
    """Fills a plane convex quadrilateral, given by its corners in camera space in order around it."""
    if max(max(a[2], b[2]), max(c[2], d[2])) <= NEAR_M:
        return
    lower = cross(a, b)
    sign = ONE if dot(lower, c) > ZERO else -ONE
    one, two = border(lower, sign, lens), border(cross(b, c), sign, lens)
    three, four = border(cross(c, d), sign, lens), border(cross(d, a), sign, lens)
    fill_between(frame, one, two, three, four, value)
