"""Kernels that fill convex polygons, row by row, with smoothed left and right borders.

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
    Bytes,
    Floats,
    Int,
    Pixel,
    Real,
    Scratch,
    X,
    Y,
    Z,
    inlined_kernel,
    kernel,
)

NOWHERE = np.float32(1e9)
NEXT = np.uint64(1)


@kernel
def paint_polygon(frame: Bytes, scratch: Scratch, value: Real, is_snapped: bool) -> None:
    """Clips the four points in `scratch.polygon[0]` at the near plane, projects and fills them.

    Clipping changes which edges lie across the road, so ground is widened to whole pixels all around (`is_snapped`).
    """
    polygon, lens, corner = scratch.polygon, scratch.lens, scratch.corner
    kept = 0
    for i in range(4):
        j = (i + 1) & 3
        depth, following = polygon[0, i, Z] - NEAR_M, polygon[0, j, Z] - NEAR_M
        if depth > ZERO:
            for k in range(3):
                polygon[1, kept, k] = polygon[0, i, k]
            kept += 1
        if (depth > ZERO) != (following > ZERO):
            share = depth / (depth - following)
            for k in range(3):
                polygon[1, kept, k] = polygon[0, i, k] + share * (polygon[0, j, k] - polygon[0, i, k])
            kept += 1
    for i in range(5):
        source = min(i, kept - 1)  # a triangle is a quadrilateral with a corner twice
        scale = lens[FOCAL] / max(polygon[1, source, Z], NEAR_M)
        corner[i, 0] = lens[CENTRE_X] + polygon[1, source, X] * scale
        corner[i, 1] = lens[CENTRE_Y] - polygon[1, source, Y] * scale
    for fan in range(kept - 3 if kept > 4 else min(kept - 2, 1)):
        if fan == 1:
            for k in range(2):
                corner[1, k], corner[2, k], corner[3, k] = corner[3, k], corner[4, k], corner[4, k]
        fill_quad(frame, corner, value, ZERO, is_snapped)


@inlined_kernel
def fill_quad(frame: Bytes, corner: Floats, value: Real, pad: Real, is_snapped: bool) -> None:
    """Fills a convex quadrilateral: rows whose centre lies in it, columns by the part covered.

    Branches cost more than arithmetic here, so every row looks at all four edges. Edges 0 and 2, which lie across the
    road, are widened to whole pixels: half-covered ones would let the strip beyond show through as a seam.

    Args:
        frame: [H, W].
        corner: [>= 4, 2] pixels, in order around it. Edges 0 and 2 lie across the road, 1 and 3 along it.
        value: brightness, 0 to 255.
        pad: pixels by which edges 1 and 3 are moved outward.
        is_snapped: whether all edges are widened to whole pixels.
    """
    height, width = np.float32(frame.shape[0]), np.float32(frame.shape[1])
    x0, x1, x2, x3 = corner[0, 0], corner[1, 0], corner[2, 0], corner[3, 0]
    y0, y1, y2, y3 = corner[0, 1], corner[1, 1], corner[2, 1], corner[3, 1]
    if max(max(x0, x1), max(x2, x3)) <= -ONE or min(min(x0, x1), min(x2, x3)) >= width + ONE:
        return
    first = row_after(min(min(y0, y1), min(y2, y3)), height)
    last = row_after(max(max(y0, y1), max(y2, y3)), height)
    if first >= last:
        return
    slope0, slope1 = (x1 - x0) / (y1 - y0), (x2 - x1) / (y2 - y1)
    slope2, slope3 = (x3 - x2) / (y3 - y2), (x0 - x3) / (y0 - y3)
    for row in range(first, last):
        y = np.float32(row) + HALF
        at0, at1, at2, at3 = (
            x0 + (y - y0) * slope0,
            x1 + (y - y1) * slope1,
            x2 + (y - y2) * slope2,
            x3 + (y - y3) * slope3,
        )
        on0, on1, on2, on3 = is_on(y, y0, y1), is_on(y, y1, y2), is_on(y, y2, y3), is_on(y, y3, y0)
        left = min(at1 if on1 else NOWHERE, at3 if on3 else NOWHERE) - pad
        right = max(at1 if on1 else -NOWHERE, at3 if on3 else -NOWHERE) + pad
        left = min(left, np.floor(min(at0 if on0 else NOWHERE, at2 if on2 else NOWHERE)))
        right = max(right, np.ceil(max(at0 if on0 else -NOWHERE, at2 if on2 else -NOWHERE)))
        if is_snapped:
            left, right = np.floor(left), np.ceil(right)
        left = left if left > ZERO else ZERO  # written so that a number that is none stays inside the image
        right = right if right < width else width
        fill_row(frame, np.uint64(row), left, right, value)


@inlined_kernel
def is_on(y: Real, y0: Real, y1: Real) -> bool:
    """Whether an edge from `y0` to `y1` crosses the height `y`."""
    return (y >= min(y0, y1)) & (y < max(y0, y1))


@inlined_kernel
def row_after(y: Real, height: Real) -> Int:
    """The first row whose centre is not above `y`, between 0 and the height."""
    y = y if y > HALF else HALF  # written so that a number that is none stays inside the image
    y = y if y < height else height
    return np.int64(np.ceil(y - HALF))


@inlined_kernel
def fill_row(frame: Bytes, y: Pixel, left: Real, right: Real, value: Real) -> None:
    """Fills from `left` to `right`, mixing the two border pixels by the part covered."""
    if right <= left:
        return
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
