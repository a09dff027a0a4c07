"""Kernels that turn camera poses and a baked scene into frames: painter's algorithm, far to near.

Road is cut into strips between sections whose spacing grows with distance. Strips, gates and cars are sorted by
distance and painted as convex polygons, row by row, with smoothed left and right borders. Near ground therefore
hides what lies behind a crest, and roll, banking, crossings and bridges need no special case.

This file imports nothing of ours on purpose: numba's cache looks only at the file of the outermost kernel, so that an
imported constant or kernel would go stale unseen. What may change is passed in: scene, camera, poses.

Camera space is x right, y up, z forward, metres from the eye. Pixels have their centre at half numbers.
Dimensions: N frames, H x W pixels, S sections, M cars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rulka.simulator.scene import Scene

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]
Real = Any  # a float32 scalar: numba would turn a plain float into a float64 one
Pixel = Any  # an unsigned pixel index

kernel = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
small_kernel = njit(cache=True, nogil=True, error_model="numpy", _nrt=False, forceinline=True)

NEAR_M = np.float32(0.25)
ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
NEXT = np.uint64(1)  # pixel indices are unsigned, or every access would test for a negative one

# Places in the lens array.
EYE, RIGHT, ABOVE, AHEAD, FOCAL, CENTRE_X, CENTRE_Y, LENS_SIZE = 0, 3, 6, 9, 12, 13, 14, 15

# Points of a section, left to right: wing end, road edge, inner border of the line, and mirrored.
WING_LEFT, EDGE_LEFT, LANE_LEFT, LANE_RIGHT, EDGE_RIGHT, WING_RIGHT, POINTS = 0, 1, 2, 3, 4, 5, 6
X, Y, Z, PIXEL_X, PIXEL_Y = 0, 1, 2, 3, 4

# Inks, see palette.py.
SKY_ZENITH, SKY_HORIZON, GROUND_HORIZON, GROUND_NEAR, TERRAIN, LINE, UNDERSIDE, POST = 0, 1, 2, 3, 4, 16, 18, 19
BANNER, FINISH_DARK, CAR, OTHER = 20, 23, 24, 33

MAX_SLOTS = 1024
"""Sections in one frame; further ones are left out."""
BAND_SECTIONS, NEIGHBOUR_SECTIONS = np.int64(16), np.int64(16)
STRIP, GATE, BOX, NONE = np.int64(0), np.int64(1), np.int64(2), np.int64(0)
CAR_PARTS = np.array(
    [
        [-0.80, 0.18, -1.90, 0.80, 0.55, 1.60, 0],  # body
        [-0.40, 0.20, 1.60, 0.40, 0.45, 2.20, 0],  # nose
        [-0.55, 0.55, -1.20, 0.55, 0.95, 0.50, 1],  # cabin
        [-0.85, 0.85, -2.00, 0.85, 0.95, -1.60, 0],  # rear wing
        [0.80, 0.00, -1.75, 1.10, 0.66, -1.05, 2],  # wheels
        [-1.10, 0.00, -1.75, -0.80, 0.66, -1.05, 2],
        [0.80, 0.00, 0.95, 1.10, 0.60, 1.60, 2],
        [-1.10, 0.00, 0.95, -0.80, 0.60, 1.60, 2],
    ],
    np.float32,
)
"""Boxes of a car: least lateral, up and forward, then greatest, metres from its position; paint, cabin or tyre."""
LINE_M, LINE_PIXELS, MAX_LINE_SHARE = np.float32(0.6), np.float32(1.8), np.float32(0.3)
PAD_PIXELS = np.float32(0.5)
"""Terrain is widened by this much, so that no seam shows between it and the road."""
NOWHERE = np.float32(1e9)


LAYERS = np.array([[WING_LEFT, EDGE_LEFT], [EDGE_RIGHT, WING_RIGHT], [EDGE_LEFT, EDGE_RIGHT], [LANE_LEFT, LANE_RIGHT]])
"""Quadrilaterals of a strip in the order of painting."""


class Scratch(NamedTuple):
    """Working memory of one frame."""

    lens: Floats  # [LENS_SIZE] eye, axes, focal length, middle of the image
    point: Floats  # [slot, POINTS, 5] camera space, then pixels, which are valid past the near plane
    item: Indices  # [item, 4] kind and strip length, slot or index, slot, section
    key: Floats  # [item] distance
    order: Indices  # [item]
    polygon: Floats  # [2, 10, 3] camera space, before and after clipping
    corner: Floats  # [10, 2] pixels
    frame: Floats  # [4, 3] axes of a gate or a car, and its place, in camera space


def new_scratch() -> Scratch:
    """Returns working memory for frames of any size."""
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


@kernel
def paint_frames(
    poses: Floats,
    zone_index: NDArray[np.int64],
    scene: Scene,
    camera: Floats,
    cars: Floats,
    scratch: Scratch,
    out: Bytes,
) -> int:
    """Paints every pose; see `render.render_frames`, which checks the arguments.

    Returns the first pose that holds a value that is not finite, where it stops, or -1.

    Args:
        poses: [N, >= 12] position and rotation of each car.
        zone_index: [N] zone of each car.
        scene: from `bake_scene`.
        camera: from `camera_array`.
        cars: [M, >= 12] poses of cars to draw; the first is painted as the own car.
        scratch: from `new_scratch`, of one thread.
        out: [N, H, W], C-contiguous, overwritten.
    """
    height, width = out.shape[1], out.shape[2]
    for n in range(poses.shape[0]):
        if not is_finite(poses, n):
            return n
        place_camera(poses, n, camera, height, width, scratch.lens)
        paint_background(out[n], scratch.lens, scene.ink)
        num_items = collect_road(scene, zone_index[n], width, scratch)
        num_items = collect_objects(scene, cars, num_items, scratch)
        sort_near_to_far(scratch.key, scratch.order, num_items)
        paint_items(out[n], scene, cars, num_items, scratch)
    return -1


@small_kernel
def is_finite(poses: Floats, n: int) -> bool:
    """Whether all of a pose is numbers."""
    total = ZERO
    for k in range(12):
        total += poses[n, k] * ZERO
    return total == ZERO


@kernel
def place_camera(poses: Floats, n: int, camera: Floats, height: int, width: int, lens: Floats) -> None:
    """Fills the lens from a car's pose: behind and above it, pitched down, rolled with it."""
    back, lift, sine, cosine, focal = camera[0], camera[1], camera[2], camera[3], camera[4]
    for axis in range(3):
        left, up, forward = poses[n, 3 + 3 * axis], poses[n, 4 + 3 * axis], poses[n, 5 + 3 * axis]
        lens[EYE + axis] = poses[n, axis] + up * lift - forward * back
        lens[RIGHT + axis] = -left
        lens[ABOVE + axis] = up * cosine + forward * sine
        lens[AHEAD + axis] = forward * cosine - up * sine
    lens[FOCAL] = focal * np.float32(width) * HALF
    lens[CENTRE_X] = np.float32(width) * HALF
    lens[CENTRE_Y] = np.float32(height) * HALF


@kernel
def paint_background(frame: Bytes, lens: Floats, ink: Floats) -> None:
    """Paints sky and far ground by the height of each ray above the horizon."""
    focal = lens[FOCAL]
    per_x, per_y = lens[RIGHT + 1] / focal, lens[ABOVE + 1] / focal
    sky, sky_slope = ink[SKY_HORIZON], (ink[SKY_ZENITH] - ink[SKY_HORIZON]) * np.float32(1.2)
    ground, ground_slope = ink[GROUND_HORIZON], (ink[GROUND_NEAR] - ink[GROUND_HORIZON]) * np.float32(2.5)
    height, width = frame.shape
    at_row = lens[AHEAD + 1] + (lens[CENTRE_Y] - HALF) * per_y + (HALF - lens[CENTRE_X]) * per_x
    for y in range(np.uint32(height)):
        for x in range(np.uint32(width)):
            rise = at_row + np.float32(np.int32(x)) * per_x
            above = min(max(rise * focal + HALF, ZERO), ONE)
            high = sky + sky_slope * min(max(rise, ZERO), np.float32(0.83))
            low = ground + ground_slope * min(max(-rise, ZERO), np.float32(0.4))
            frame[y, x] = np.uint8(np.int32(low + above * (high - low)))
        at_row -= per_y


@kernel
def collect_road(scene: Scene, zone: int, width: int, scratch: Scratch) -> int:
    """Adds the strips ahead, behind and near in space; returns the number of items."""
    num_sections = scene.sections.shape[0]
    here = min(max(zone + scene.num_before, 0), num_sections - 1)
    num_slots, num_items = NONE, NONE
    for sign in (np.int64(1), np.int64(-1)):
        num_slots, num_items = add_run(scene, here, width, sign, num_slots, num_items, scratch)
    chunk = min(here // NEIGHBOUR_SECTIONS, scene.neighbours.shape[0] - 1)
    for k in range(scene.neighbours.shape[1]):
        section = np.int64(scene.neighbours[chunk, k])
        if section < 0 or num_slots + 2 > MAX_SLOTS:
            break
        for end in range(NONE, NONE + 2):
            at = section + end * NEIGHBOUR_SECTIONS
            add_section(scene.sections, at, scratch.lens, scratch.point, num_slots + end)
        num_items = add_strip(num_slots, num_slots + 1, section, NEIGHBOUR_SECTIONS, num_items, scratch)
        num_slots += 2
    return num_items


@kernel
def add_run(
    scene: Scene, here: int, width: int, sign: int, num_slots: int, num_items: int, scratch: Scratch
) -> tuple[int, int]:
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


@small_kernel
def strip_length(distance: int, detail: int) -> int:
    """Sections in a strip at a distance in sections: 4 m near, doubling three times; finer for larger images."""
    if distance < 32 * (detail - 1):
        return 4
    if distance < 64 * detail:
        return 8
    if distance < 200 * detail:
        return 16
    return 32 if distance < 400 * detail else 64


@kernel
def add_section(sections: Floats, index: int, lens: Floats, point: Floats, slot: int) -> bool:
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


@small_kernel
def to_camera(lens: Floats, x: Real, y: Real, z: Real, out: Floats) -> None:
    """Moves a world point into camera space."""
    dx, dy, dz = x - lens[EYE], y - lens[EYE + 1], z - lens[EYE + 2]
    for axis in range(3):
        out[axis] = dx * lens[RIGHT + 3 * axis] + dy * lens[RIGHT + 3 * axis + 1] + dz * lens[RIGHT + 3 * axis + 2]


@small_kernel
def add_strip(a: int, b: int, section: int, step: int, num_items: int, scratch: Scratch) -> int:
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


@kernel
def collect_objects(scene: Scene, cars: Floats, num_items: int, scratch: Scratch) -> int:
    """Adds gates and cars that are before the camera; they sort a little nearer than the road they stand on."""
    position = scratch.polygon[0, 0]
    for g in range(scene.gates.shape[0]):
        section = scene.gates[g, 0]
        at = scene.sections
        to_camera(scratch.lens, at[section, 0], at[section, 1], at[section, 2], position)
        distance = length(position)
        if position[2] > -at[section, 6] and distance < scene.view_m:
            num_items = add_object(GATE, g, distance - ONE, num_items, scratch)
    for m in range(cars.shape[0]):
        to_camera(scratch.lens, cars[m, 0], cars[m, 1], cars[m, 2], position)
        distance = length(position)
        if position[2] > -TWO and distance < scene.view_m:
            num_items = add_object(BOX, m, distance - np.float32(3.0), num_items, scratch)
    return num_items


@small_kernel
def add_object(kind: int, index: int, distance: Real, num_items: int, scratch: Scratch) -> int:
    """Adds one gate or car."""
    if num_items >= scratch.key.shape[0]:
        return num_items
    scratch.item[num_items, 0], scratch.item[num_items, 1] = kind, index
    scratch.key[num_items] = distance
    scratch.order[num_items] = num_items
    return num_items + 1


@small_kernel
def length(vector: Floats) -> Real:
    """Length of a vector of three."""
    return np.sqrt(vector[0] * vector[0] + vector[1] * vector[1] + vector[2] * vector[2])


@kernel
def sort_near_to_far(key: Floats, order: Indices, count: int) -> None:
    """Sorts by rising key, by insertion: runs of road arrive nearly sorted."""
    for i in range(1, count):
        chosen = order[i]
        j = i - 1
        while j >= 0 and key[order[j]] > key[chosen]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = chosen


@kernel
def paint_items(frame: Bytes, scene: Scene, cars: Floats, num_items: int, scratch: Scratch) -> None:
    """Paints strips, gates and cars, the farthest first."""
    for k in range(num_items - 1, -1, -1):
        index = scratch.order[k]
        kind = scratch.item[index, 0] & 3
        haze = min(max(scratch.key[index] / np.float32(scene.view_m), ZERO), ONE) * np.float32(0.8)
        if kind == STRIP:
            paint_strip(frame, scene, scratch, index, haze)
        elif kind == GATE:
            paint_gate(frame, scene, scratch, scratch.item[index, 1], haze)
        else:
            paint_car(frame, scene.ink, scratch, cars, scratch.item[index, 1])


@small_kernel
def paint_strip(frame: Bytes, scene: Scene, scratch: Scratch, index: int, haze: Real) -> None:
    """Paints terrain, edge lines and road between two sections."""
    item = scratch.item
    step, section = np.int64(item[index, 0] >> 2), np.int64(item[index, 3])
    a, b = np.int64(item[index, 1]), np.int64(item[index, 2])
    ink, light = scene.ink, scene.sections[section, 13]
    band = (section // BAND_SECTIONS) & 1
    ground = shade(banded(ink, np.int64(TERRAIN), band, step), light, haze, ink)
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


@small_kernel
def banded(ink: Floats, first: int, band: int, step: int) -> Real:
    """Alternating shade along the road; strips longer than a band take the mean."""
    if step > BAND_SECTIONS:
        return (ink[first] + ink[first + 1]) * HALF
    return ink[first + band]


@small_kernel
def shade(value: Real, light: Real, haze: Real, ink: Floats) -> Real:
    """Brightness after slope and distance: far things fade into the horizon."""
    lit = value * light
    return min(max(lit + haze * (ink[GROUND_HORIZON] - lit), ZERO), np.float32(255.0))


@small_kernel
def is_seen_from_above(point: Floats, a: int, b: int, left: int, right: int) -> bool:
    """Whether the eye is on the upper side of the ground between two lines of points."""
    x, y, z = point[a, left, X], point[a, left, Y], point[a, left, Z]
    rx, ry, rz = point[a, right, X] - x, point[a, right, Y] - y, point[a, right, Z] - z
    tx, ty, tz = point[b, left, X] - x, point[b, left, Y] - y, point[b, left, Z] - z
    return x * (ry * tz - rz * ty) + y * (rz * tx - rx * tz) + z * (rx * ty - ry * tx) > ZERO


@small_kernel
def paint_between(
    frame: Bytes, scratch: Scratch, a: int, b: int, left: int, right: int, value: Real, pad: Real
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


@small_kernel
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


@small_kernel
def is_on(y: Real, y0: Real, y1: Real) -> bool:
    """Whether an edge from `y0` to `y1` crosses the height `y`."""
    return (y >= min(y0, y1)) & (y < max(y0, y1))


@small_kernel
def row_after(y: Real, height: Real) -> int:
    """The first row whose centre is not above `y`, between 0 and the height."""
    y = y if y > HALF else HALF  # written so that a number that is none stays inside the image
    y = y if y < height else height
    return np.int64(np.ceil(y - HALF))


@small_kernel
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


@small_kernel
def blend(frame: Bytes, y: Pixel, x: Pixel, cover: Real, value: Real) -> None:
    """Mixes one pixel with a value."""
    old = np.float32(frame[y, x])
    frame[y, x] = np.uint8(np.int32(old + cover * (value - old) + HALF))


@kernel
def paint_gate(frame: Bytes, scene: Scene, scratch: Scratch, gate: int, haze: Real) -> None:
    """Paints two posts and a banner across the road; the finish is chequered."""
    section, kind = scene.gates[gate, 0], scene.gates[gate, 1]
    ink, lens, at = scene.ink, scratch.lens, scene.sections
    base, side = scratch.frame[0], scratch.frame[1]
    to_camera(lens, at[section, 0], at[section, 1], at[section, 2], base)
    for axis in range(3):
        side[axis] = (
            at[section, 3] * lens[RIGHT + 3 * axis]
            + at[section, 4] * lens[RIGHT + 3 * axis + 1]
            + at[section, 5] * lens[RIGHT + 3 * axis + 2]
        )
    pixel = max(base[2], ZERO) / lens[FOCAL]
    span = at[section, 6] + ONE
    post = max(np.float32(0.8), pixel * np.float32(1.1))
    low, high = np.float32(5.0), np.float32(5.0) + max(np.float32(2.6), pixel * np.float32(2.2))
    value = shade(ink[POST], ONE, haze * HALF, ink)
    paint_upright(frame, scratch, base, side, (span, span + post, -ONE, high), value)
    paint_upright(frame, scratch, base, side, (-span - post, -span, -ONE, high), value)
    parts = 8 if kind == 2 else 1
    width = TWO * span / np.float32(parts)
    for part in range(parts):
        first = -span + np.float32(part) * width
        value = shade(ink[FINISH_DARK if part & 1 else BANNER + kind], ONE, haze * HALF, ink)
        paint_upright(frame, scratch, base, side, (first, first + width, low, high), value)


@kernel
def paint_upright(
    frame: Bytes, scratch: Scratch, base: Floats, side: Floats, extent: tuple[Real, Real, Real, Real], value: Real
) -> None:
    """Paints an upright rectangle across the road: `extent` is left, right, low, high in metres."""
    polygon, lens = scratch.polygon, scratch.lens
    left, right, low, high = extent
    for axis in range(3):
        up = lens[RIGHT + 3 * axis + 1]
        polygon[0, 0, axis] = base[axis] + side[axis] * left + up * low
        polygon[0, 1, axis] = base[axis] + side[axis] * right + up * low
        polygon[0, 2, axis] = base[axis] + side[axis] * right + up * high
        polygon[0, 3, axis] = base[axis] + side[axis] * left + up * high
    paint_polygon(frame, scratch, value, False)


@kernel
def paint_car(frame: Bytes, ink: Floats, scratch: Scratch, cars: Floats, m: int) -> None:
    """Paints a car: boxes, the farthest first."""
    lens = scratch.lens
    middle, axes = scratch.frame[3], scratch.frame
    to_camera(lens, cars[m, 0], cars[m, 1], cars[m, 2], middle)
    for k in range(3):  # column k of the rotation: a car axis, in camera space
        for axis in range(3):
            row = RIGHT + 3 * axis
            axes[k, axis] = cars[m, 3 + k] * lens[row] + cars[m, 6 + k] * lens[row + 1] + cars[m, 9 + k] * lens[row + 2]
    painted = 0
    for _ in range(CAR_PARTS.shape[0]):
        part = farthest_part(middle, axes, painted)
        painted |= 1 << part
        tone = CAR + 3 * int(CAR_PARTS[part, 6])
        paint_box(frame, ink, scratch, middle, axes, part, OTHER if m > 0 and tone == CAR else tone)


@kernel
def farthest_part(middle: Floats, axes: Floats, painted: int) -> int:
    """The farthest box of a car that is not painted yet."""
    best, farthest = 0, -ONE
    for part in range(CAR_PARTS.shape[0]):
        distance = ZERO
        for k in range(3):
            place = middle[k]
            for axis in range(3):
                place += axes[axis, k] * (CAR_PARTS[part, axis] + CAR_PARTS[part, axis + 3]) * HALF
            distance += place * place
        if not (painted >> part) & 1 and distance > farthest:
            best, farthest = part, distance
    return best


@kernel
def paint_box(frame: Bytes, ink: Floats, scratch: Scratch, middle: Floats, axes: Floats, part: int, inks: int) -> None:
    """Paints the faces of a box that look at the eye; a convex body's faces do not hide each other."""
    polygon, box = scratch.polygon, CAR_PARTS[part]
    for face in range(6):
        axis, is_upper = face >> 1, face & 1
        one, two = (axis + 1) % 3, (axis + 2) % 3
        for c in range(4):
            first = box[one] if c in (0, 3) else box[one + 3]
            second = box[two] if c < 2 else box[two + 3]
            for k in range(3):
                polygon[0, c, k] = (
                    middle[k] + axes[axis, k] * box[axis + 3 * is_upper] + axes[one, k] * first + axes[two, k] * second
                )
        outward = ZERO
        for k in range(3):
            outward += polygon[0, 0, k] * axes[axis, k]
        if (outward < ZERO) == (is_upper == 1):
            paint_polygon(frame, scratch, ink[inks + axis], True)
