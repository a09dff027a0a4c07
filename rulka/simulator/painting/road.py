"""Kernels that paint the road and the terrain beside it, strip by strip between two sections.

A section has six points, left to right: wing end, road edge, inner border of the painted line, and mirrored. Sections
are taken from the zone of the car outward, farther apart with distance; strips that no row can show are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rulka.simulator.painting.kernels import (
    CENTRE_X,
    CENTRE_Y,
    EYE,
    FOCAL,
    HALF,
    MAX_SLOTS,
    NEAR_M,
    ONE,
    PIXEL_X,
    PIXEL_Y,
    POINTS,
    RIGHT,
    STRIP,
    TWO,
    ZERO,
    Bytes,
    Floats,
    Int,
    Real,
    Scratch,
    X,
    Y,
    Z,
    inlined_kernel,
    kernel,
)
from rulka.simulator.painting.polygons import fill_quad, paint_polygon, row_after
from rulka.simulator.palette import INK
from rulka.simulator.scene import CHUNK_SECTIONS

if TYPE_CHECKING:
    from rulka.simulator.scene import Scene

WING_LEFT, EDGE_LEFT, LANE_LEFT, LANE_RIGHT, EDGE_RIGHT, WING_RIGHT = 0, 1, 2, 3, 4, 5
LAYERS = np.array([[WING_LEFT, EDGE_LEFT], [EDGE_RIGHT, WING_RIGHT], [EDGE_LEFT, EDGE_RIGHT], [LANE_LEFT, LANE_RIGHT]])
"""Quadrilaterals of a strip in the order of painting: terrain, the lines as one quadrilateral, the lane over it."""
BAND_SECTIONS, CHUNK = np.int64(16), np.int64(CHUNK_SECTIONS)
TERRAIN, LINE, UNDERSIDE = np.int64(INK["terrain"]), INK["line"], INK["underside"]
GROUND_HORIZON = INK["ground_horizon"]
LINE_M, LINE_PIXELS, MAX_LINE_SHARE = np.float32(0.6), np.float32(2.4), np.float32(0.35)
"""Painted lines are this wide, at least so many pixels, and at most this share of half the road."""
PAD_PIXELS = np.float32(0.5)
"""Terrain is widened by this much, so that no seam shows between it and the road."""
NONE = np.int64(0)


@kernel
def collect_road(scene: Scene, zone: Int, width: Int, scratch: Scratch) -> Int:
    """Adds the strips ahead, behind and near in space; returns the number of items."""
    num_sections = scene.sections.shape[0]
    here = min(max(zone + scene.num_before, 0), num_sections - 1)
    num_slots, num_items = NONE, NONE
    for sign in (np.int64(1), np.int64(-1)):
        num_slots, num_items = add_run(scene, here, width, sign, num_slots, num_items, scratch)
    chunk = min(here // CHUNK, scene.neighbours.shape[0] - 1)
    for k in range(scene.neighbours.shape[1]):
        section = np.int64(scene.neighbours[chunk, k])
        if section < 0 or num_slots + 2 > MAX_SLOTS:
            break
        for end in range(NONE, NONE + 2):
            at = section + end * CHUNK
            add_section(scene.sections, at, scratch.lens, scratch.point, num_slots + end)
        num_items = add_strip(num_slots, num_slots + 1, section, CHUNK, num_items, scratch)
        num_slots += 2
    return num_items


@kernel
def add_run(
    scene: Scene, here: Int, width: Int, sign: Int, num_slots: Int, num_items: Int, scratch: Scratch
) -> tuple[Int, Int]:
    """Adds sections outward from `here`, in one direction, and the strips between them."""
    last, reach, detail = scene.sections.shape[0] - 1, int(scene.view_m * TWO), max(1, width // 64)
    index = here & ~7
    is_ahead = add_section(scene.sections, index, scratch.lens, scratch.point, num_slots)
    num_slots += 1
    while abs(index - here) < reach and num_slots < MAX_SLOTS:
        step = strip_length(abs(index - here), detail) if is_ahead else 64
        while index & (step - 1):
            step >>= 1
        following = index + sign * step
        if following < 0 or following > last:
            break
        is_ahead = add_section(scene.sections, following, scratch.lens, scratch.point, num_slots)
        near, far = (num_slots - 1, num_slots) if sign > 0 else (num_slots, num_slots - 1)
        num_items = add_strip(near, far, min(index, following), step, num_items, scratch)
        num_slots += 1
        index = following
    return num_slots, num_items


@inlined_kernel
def strip_length(distance: Int, detail: Int) -> Int:
    """Sections in a strip at a distance in sections: 4 m near, doubling three times; finer for larger images."""
    if distance < 32 * (detail - 1):
        return 4
    if distance < 64 * detail:
        return 8
    if distance < 200 * detail:
        return 16
    return 32 if distance < 400 * detail else 64


@kernel
def add_section(sections: Floats, index: Int, lens: Floats, point: Floats, slot: Int) -> bool:
    """Puts the six points of a section into camera space and onto the screen; returns whether any is ahead."""
    half = sections[index, 6]
    is_ahead = False
    for axis in range(3):
        r0, r1, r2 = lens[RIGHT + 3 * axis], lens[RIGHT + 3 * axis + 1], lens[RIGHT + 3 * axis + 2]
        shift = lens[EYE] * r0 + lens[EYE + 1] * r1 + lens[EYE + 2] * r2
        middle = sections[index, 0] * r0 + sections[index, 1] * r1 + sections[index, 2] * r2 - shift
        side = sections[index, 3] * r0 + sections[index, 4] * r1 + sections[index, 5] * r2
        point[slot, LANE_LEFT, axis], point[slot, LANE_RIGHT, axis] = middle, side
        point[slot, EDGE_LEFT, axis], point[slot, EDGE_RIGHT, axis] = middle + side * half, middle - side * half
        point[slot, WING_LEFT, axis] = (
            sections[index, 7] * r0 + sections[index, 8] * r1 + sections[index, 9] * r2 - shift
        )
        point[slot, WING_RIGHT, axis] = (
            sections[index, 10] * r0 + sections[index, 11] * r1 + sections[index, 12] * r2 - shift
        )
    depth = point[slot, LANE_LEFT, Z]
    lane = half - min(max(LINE_M, LINE_PIXELS * depth / lens[FOCAL]), MAX_LINE_SHARE * half)
    for axis in range(3):
        middle, side = point[slot, LANE_LEFT, axis], point[slot, LANE_RIGHT, axis]
        point[slot, LANE_LEFT, axis], point[slot, LANE_RIGHT, axis] = middle + side * lane, middle - side * lane
    for k in range(POINTS):
        is_ahead |= point[slot, k, Z] > NEAR_M
    if is_ahead:
        for k in range(POINTS):
            scale = lens[FOCAL] / point[slot, k, Z]
            point[slot, k, PIXEL_X] = lens[CENTRE_X] + point[slot, k, X] * scale
            point[slot, k, PIXEL_Y] = lens[CENTRE_Y] - point[slot, k, Y] * scale
    return is_ahead


@inlined_kernel
def add_strip(a: Int, b: Int, section: Int, step: Int, num_items: Int, scratch: Scratch) -> Int:
    """Adds the strip between two sections unless no row of the image can show it."""
    point, width, height = scratch.point, TWO * scratch.lens[CENTRE_X], TWO * scratch.lens[CENTRE_Y]
    nearest, deepest = point[a, 0, Z], point[a, 0, Z]
    top, bottom = point[a, 0, PIXEL_Y], point[a, 0, PIXEL_Y]
    left, right = point[a, 0, PIXEL_X], point[a, 0, PIXEL_X]
    for k in range(POINTS):
        nearest = min(nearest, min(point[a, k, Z], point[b, k, Z]))
        deepest = max(deepest, max(point[a, k, Z], point[b, k, Z]))
        top = min(top, min(point[a, k, PIXEL_Y], point[b, k, PIXEL_Y]))
        bottom = max(bottom, max(point[a, k, PIXEL_Y], point[b, k, PIXEL_Y]))
        left = min(left, min(point[a, k, PIXEL_X], point[b, k, PIXEL_X]))
        right = max(right, max(point[a, k, PIXEL_X], point[b, k, PIXEL_X]))
    if deepest <= NEAR_M:
        return num_items
    is_between_rows = row_after(top, height) >= row_after(bottom, height)
    if nearest > NEAR_M and (is_between_rows or right <= ZERO or left >= width):
        return num_items
    x = point[a, EDGE_LEFT, X] + point[b, EDGE_RIGHT, X]
    y = point[a, EDGE_LEFT, Y] + point[b, EDGE_RIGHT, Y]
    z = point[a, EDGE_LEFT, Z] + point[b, EDGE_RIGHT, Z]
    item = scratch.item
    item[num_items, 0], item[num_items, 1] = STRIP + (step << 2), a
    item[num_items, 2], item[num_items, 3] = b, section
    scratch.key[num_items] = np.sqrt(x * x + y * y + z * z) * HALF
    scratch.order[num_items] = num_items
    return num_items + 1


@inlined_kernel
def paint_strip(frame: Bytes, scene: Scene, scratch: Scratch, index: Int, haze: Real) -> None:
    """Paints terrain, edge lines and road between two sections."""
    item = scratch.item
    step, section = np.int64(item[index, 0] >> 2), np.int64(item[index, 3])
    a, b = np.int64(item[index, 1]), np.int64(item[index, 2])
    ink, light = scene.ink, scene.sections[section, 13]
    band = (section // BAND_SECTIONS) & 1
    ground = shade(banded(ink, TERRAIN, band, step), light, haze, ink)
    road = shade(banded(ink, np.int64(scene.surface[section]), band, step), light, haze, ink)
    line = shade(ink[LINE], ONE, haze * HALF, ink)
    underside = shade(ink[UNDERSIDE], ONE, haze, ink)
    is_road_seen = is_seen_from_above(scratch.point, a, b, LAYERS[2, 0], LAYERS[2, 1])
    for layer in range(4):
        left, right = LAYERS[layer, 0], LAYERS[layer, 1]
        if layer < 2:
            if not is_seen_from_above(scratch.point, a, b, left, right):
                continue
            value = ground
        elif layer == 2:
            value = line if is_road_seen else underside
        else:
            value = road
            if not is_road_seen:
                continue
        paint_between(frame, scratch, a, b, left, right, value, PAD_PIXELS if layer < 2 else ZERO)


@inlined_kernel
def banded(ink: Floats, first: Int, band: Int, step: Int) -> Real:
    """Alternating shade along the road; strips longer than a band take the mean."""
    if step > BAND_SECTIONS:
        return (ink[first] + ink[first + 1]) * HALF
    return ink[first + band]


@inlined_kernel
def shade(value: Real, light: Real, haze: Real, ink: Floats) -> Real:
    """Brightness after slope and distance: far things fade into the horizon."""
    lit = value * light
    return min(max(lit + haze * (ink[GROUND_HORIZON] - lit), ZERO), np.float32(255.0))


@inlined_kernel
def is_seen_from_above(point: Floats, a: Int, b: Int, left: Int, right: Int) -> bool:
    """Whether the eye is on the upper side of the ground between two lines of points."""
    x, y, z = point[a, left, X], point[a, left, Y], point[a, left, Z]
    rx, ry, rz = point[a, right, X] - x, point[a, right, Y] - y, point[a, right, Z] - z
    tx, ty, tz = point[b, left, X] - x, point[b, left, Y] - y, point[b, left, Z] - z
    return x * (ry * tz - rz * ty) + y * (rz * tx - rx * tz) + z * (rx * ty - ry * tx) > ZERO


@inlined_kernel
def paint_between(
    frame: Bytes, scratch: Scratch, a: Int, b: Int, left: Int, right: Int, value: Real, pad: Real
) -> None:
    """Paints the quadrilateral between two lines of points and two sections."""
    point, corner = scratch.point, scratch.corner
    if min(min(point[a, left, Z], point[a, right, Z]), min(point[b, left, Z], point[b, right, Z])) > NEAR_M:
        for k in range(2):
            corner[0, k], corner[1, k] = point[a, left, PIXEL_X + k], point[a, right, PIXEL_X + k]
            corner[2, k], corner[3, k] = point[b, right, PIXEL_X + k], point[b, left, PIXEL_X + k]
        fill_quad(frame, corner, value, pad, False)
        return
    polygon = scratch.polygon
    for k in range(3):
        polygon[0, 0, k], polygon[0, 1, k] = point[a, left, k], point[a, right, k]
        polygon[0, 2, k], polygon[0, 3, k] = point[b, right, k], point[b, left, k]
    paint_polygon(frame, scratch, value, True)
