"""The rendering kernel and its parts: painter's algorithm, far to near. Called from `render.py`.

Road is cut into strips between sections whose spacing grows with distance. Strips, gates and cars are sorted by
distance and drawn as convex polygons. Near ground therefore hides what lies behind a crest, and roll, banking,
crossings and bridges need no special case. In order, this file has vectors, quadrilaterals, sections, the road, gates
and cars, and the whole frame.

Dimensions: N frames, H x W pixels, M cars.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import cached_kernel, called_kernel, inlined_kernel
from rulka.simulator.palette import INK
from rulka.simulator.scene import CHUNK_SECTIONS, EDGE, GATE_FINISH, LIGHT, SECTION_STEPS, SURFACE, Scene
from rulka.tracks.track import WALL

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.int32]
Int = Any  # an int64 scalar
Real = Any  # a float32 scalar: numba would promote a plain float to float64
Pixel = Any  # an unsigned pixel index: a signed one would be checked for a negative value at every access
Vector = tuple[Real, Real, Real]
Border = tuple[Real, Real, Real, Real, Real, Real]

ZERO, HALF, ONE, TWO = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0)
NEAR_M = np.float32(0.25)
"""Near plane: corners closer to the eye are not projected."""

EYE, RIGHT, ABOVE, AHEAD, FOCAL, CENTRE_X, CENTRE_Y, LENS_SIZE = 0, 3, 6, 9, 12, 13, 14, 15
"""Indices into the lens array: position, three axes, focal length and image centre in pixels."""
HAZE = np.float32(0.8)
"""Share of the horizon's colour at the view distance."""
MAX_SLOTS = 2048
"""Most sections per frame; further ones are dropped."""
SLOT_SIZE = 16
STRIP, GATE, CAR = np.int64(0), np.int64(1), np.int64(2)
"""Kinds of items."""


class Scratch(NamedTuple):
    """Scratch memory of one frame."""

    lens: Floats  # [LENS_SIZE]
    slot: Floats  # [slot, SLOT_SIZE] sections in camera space, see below
    item: Indices  # [item, 5] kind, slot or index, slot, section, strip length
    key: Floats  # [item] distance
    order: Indices  # [item]
    span: Floats  # [3, 2] columns, see below


def new_scratch() -> Scratch:
    """Allocates scratch memory for frames of any size; one per thread."""
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
    """Transforms the position of a section or car (its first three numbers) to camera space: m right, up, forward."""
    return turned(lens, place[0] - lens[EYE], place[1] - lens[EYE + 1], place[2] - lens[EYE + 2])


@inlined_kernel
def turned(lens: Floats, x: Real, y: Real, z: Real) -> Vector:
    """Rotates a world direction into camera space."""
    return (
        x * lens[RIGHT] + y * lens[RIGHT + 1] + z * lens[RIGHT + 2],
        x * lens[ABOVE] + y * lens[ABOVE + 1] + z * lens[ABOVE + 2],
        x * lens[AHEAD] + y * lens[AHEAD + 1] + z * lens[AHEAD + 2],
    )


@inlined_kernel
def along(start: Vector, direction: Vector, metres: Real) -> Vector:
    """Returns the point `metres` from `start` along `direction`."""
    return start[0] + direction[0] * metres, start[1] + direction[1] * metres, start[2] + direction[2] * metres


@inlined_kernel
def cross(a: Vector, b: Vector) -> Vector:
    """Cross product."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@inlined_kernel
def dot(a: Vector, b: Vector) -> Real:
    """Dot product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


# Convex quadrilaterals in camera space, filled row by row without clipping. Each edge and the eye span a plane. A pixel
# shows the quadrilateral if its ray lies on the inner side of all four planes, even if corners are behind the eye
# (M. Olano, T. Greer: Triangle Scan Conversion using 2D Homogeneous Coordinates, 1997). On each row such a plane is one
# column, a left or right border. Pixel centres have half-integer coordinates.
FAR_OFF = np.float32(1e6)
"""A row or column outside every image."""
TINY = np.float32(1e-9)
NEXT = np.uint64(1)
NOWHERE = (FAR_OFF, ZERO, -FAR_OFF, ZERO, FAR_OFF, -FAR_OFF)
"""A border with nothing inside."""


@inlined_kernel
def border(plane: Vector, sign: Real, lens: Floats) -> Border:
    """Intersects a plane through the eye with the image.

    Args:
        plane: normal in camera space.
        sign: positive if the normal points inward.
        lens: the camera.

    Returns:
        The left and the right border of the inside, each a column as start and slope over rows; one of them is far off.
        Then the first and the last row of the inside over all columns.
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
    """Fills the pixels between four borders; pixels on a border are blended by coverage."""
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
    """Fills three stacked layers of a strip of road that share its end borders.

    The road continues past its ends, so these are widened to whole pixels: partly covered pixels would show the
    background as a seam.

    Args:
        frame: [H, W].
        span: [3, 2] scratch memory.
        across: borders at both ends.
        layers: left and right borders of each layer; the third lies within the second.
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
    """Returns `x`, or 0 if it is less or NaN."""
    return x if x > ZERO else ZERO


@inlined_kernel
def clamp_below(x: Real, limit: Real) -> Real:
    """Returns `x`, or the limit if it is greater or NaN."""
    return x if x < limit else limit


@inlined_kernel
def fill_row(frame: Bytes, y: Pixel, left: Real, right: Real, value: Real) -> None:
    """Fills a row from `left` to `right`, blending the two border pixels by coverage."""
    first, last = np.uint64(np.int64(left)), np.uint64(np.int64(right))
    blend(frame, y, first, min(np.float32(np.int64(first + NEXT)), right) - left, value)
    ink = np.uint8(np.int32(value + HALF))
    for x in range(first + NEXT, last):
        frame[y, x] = ink
    if last > first and last < np.uint64(frame.shape[1]):
        blend(frame, y, last, right - np.float32(np.int64(last)), value)


@inlined_kernel
def blend(frame: Bytes, y: Pixel, x: Pixel, cover: Real, value: Real) -> None:
    """Blends one pixel with a value."""
    old = np.float32(frame[y, x])
    frame[y, x] = np.uint8(np.int32(old + cover * (value - old) + HALF))


@inlined_kernel
def row_after(y: Real, height: Real) -> Int:
    """Returns the first row whose centre is not above `y`, clipped to 0 to `height`."""
    y = y if y > HALF else HALF  # maps NaN to 0, inside the image
    y = y if y < height else height
    return np.int64(np.ceil(y - HALF))


@called_kernel
def draw_quad(frame: Bytes, lens: Floats, a: Vector, b: Vector, c: Vector, d: Vector, value: Real) -> None:
    """Fills a planar convex quadrilateral, given by its corners in camera space in order."""
    if max(max(a[2], b[2]), max(c[2], d[2])) <= NEAR_M:
        return
    lower = cross(a, b)
    sign = ONE if dot(lower, c) > ZERO else -ONE
    one, two = border(lower, sign, lens), border(cross(b, c), sign, lens)
    three, four = border(cross(c, d), sign, lens), border(cross(d, a), sign, lens)
    fill_between(frame, one, two, three, four, value)


# Selects the cross-sections for a frame, from the car outward, and transforms them to camera space. The road between
# two sections is drawn straight; their spacing is as large as a deviation of `TOLERANCE_PIXELS` allows.
MIDDLE, SIDE, PLANE, HALF_M, REACH_LEFT, REACH_RIGHT = 0, 3, 6, 9, 10, 11
"""Indices into a slot: centre and unit vector to the left in camera space, normal of the plane through both and the
eye, half width, width of the terrain on either side."""
OUTSIDE, SHADE = 12, 13
"""Sides of the view frustum that both ends lie outside of, as bits; light."""
CHUNK = np.int64(CHUNK_SECTIONS)
NUM_STEPS, SMALLEST_STEP = np.int64(len(SECTION_STEPS)), np.int64(SECTION_STEPS[0])
BAND_SECTIONS = np.int64(16)
TOLERANCE_PIXELS, UNSEEN_TOLERANCE_PIXELS = np.float32(0.5), np.float32(4.0)
BAND_REACH_M = np.float32(50.0)
"""Bands of 8 m are drawn separately while they are about a row high: up to the square root of this times the focal
length in pixels; the eye is some 4.5 m above the road."""
SECTIONS_PER_METRE = TWO
NONE = np.int64(0)


@inlined_kernel
def collect_road(scene: Scene, zone: Int, scratch: Scratch) -> Int:
    """Adds the strips ahead, behind and nearby in space; returns the number of items."""
    last, reach = scene.sections.shape[0] - 1, np.int64(scene.view_m * SECTIONS_PER_METRE)
    here = min(max(zone + scene.num_before, 0), last)
    start = here & ~(BAND_SECTIONS - 1)
    num_slots, num_items = NONE, NONE
    chunk = min(here // CHUNK, scene.neighbours.shape[0] - 1)
    for k in range(-2, scene.neighbours.shape[1]):  # ahead, behind, then nearby in space
        first, end = start, min(here + reach, last) if k == -2 else max(here - reach, NONE)
        if k >= 0:
            first, end = np.int64(scene.neighbours[chunk, k, 0]), np.int64(scene.neighbours[chunk, k, 1])
            if first < 0:
                break
        num_slots, num_items = add_run(scene, first, end, num_slots, num_items, scratch)
    return num_items


@inlined_kernel
def add_run(scene: Scene, index: Int, end: Int, num_slots: Int, num_items: Int, scratch: Scratch) -> tuple[Int, Int]:
    """Adds the sections from `index` to `end`, in either direction, and the strips between them."""
    sign = np.int64(1) if end >= index else np.int64(-1)
    slot, focal = scratch.slot, scratch.lens[FOCAL]
    band_reach_m = np.sqrt(BAND_REACH_M * focal)
    step, previous, was_ahead = NONE, index, False
    while num_slots < MAX_SLOTS:
        is_ahead = add_section(scene.sections, index, scratch.lens, slot[num_slots])
        if step > 0 and (is_ahead or was_ahead):
            near, far = (num_slots - 1, num_slots) if sign > 0 else (num_slots, num_slots - 1)
            num_items = add_strip(near, far, min(index, previous), step, num_items, scratch)
        num_slots += 1
        step = strip_length(scene, index, sign, slot[num_slots - 1], focal, band_reach_m)
        while step > abs(end - index):
            step >>= 1
        if step < SMALLEST_STEP:
            break
        previous, was_ahead = index, is_ahead
        index += sign * step
    return num_slots, num_items


@inlined_kernel
def strip_length(scene: Scene, index: Int, sign: Int, slot: Floats, focal: Real, band_reach_m: Real) -> Int:
    """Returns the most sections in the next strip without a visible error in its course or shade."""
    distance = max(abs(slot[MIDDLE]), abs(slot[MIDDLE + 2]))
    allowed_m = (TOLERANCE_PIXELS if slot[OUTSIDE] == ZERO else UNSEEN_TOLERANCE_PIXELS) * distance / focal
    step, level = SMALLEST_STEP, NONE
    while level + 1 < NUM_STEPS:
        longer = step << 1
        first = index if sign > 0 else index - longer
        if index & (longer - 1) or first < 0:
            break
        if longer > BAND_SECTIONS and (distance < band_reach_m or np.float32(longer) > TWO * distance):
            break
        if scene.deviation[level + 1, first // SMALLEST_STEP] > allowed_m:
            break
        step, level = longer, level + 1
    return step


@inlined_kernel
def add_section(sections: Floats, index: Int, lens: Floats, slot: Floats) -> bool:
    """Transforms a section to camera space; returns True if any of it is ahead."""
    section = sections[index]
    middle, side = to_camera(lens, section), turned(lens, section[3], section[4], section[5])
    half, reach_left, reach_right = section[6], section[7], section[8]
    plane = cross(middle, side)
    for k in range(3):
        slot[MIDDLE + k], slot[SIDE + k], slot[PLANE + k] = middle[k], side[k], plane[k]
    slot[HALF_M], slot[REACH_LEFT], slot[REACH_RIGHT], slot[SHADE] = half, reach_left, reach_right, section[LIGHT]
    left, right = half + reach_left, half + reach_right
    ends = along(middle, side, left), along(middle, side, -right)
    slot[OUTSIDE] = np.float32(outside(lens, ends[0]) & outside(lens, ends[1]))
    return max(ends[0][2], ends[1][2]) > NEAR_M


@inlined_kernel
def outside(lens: Floats, place: Vector) -> Int:
    """Returns as bits the sides of the view frustum that a point lies outside of."""
    wide, high = place[2] * lens[CENTRE_X], place[2] * lens[CENTRE_Y]
    x, y = place[0] * lens[FOCAL], place[1] * lens[FOCAL]
    return (
        np.int32(x > wide)
        | np.int32(x < -wide) << 1
        | np.int32(y > high) << 2
        | np.int32(y < -high) << 3
        | np.int32(place[2] <= NEAR_M) << 4
    )


@inlined_kernel
def add_strip(a: Int, b: Int, section: Int, step: Int, num_items: Int, scratch: Scratch) -> Int:
    """Adds the strip between two sections unless it lies wholly outside the view."""
    slot = scratch.slot
    if np.int32(slot[a, OUTSIDE]) & np.int32(slot[b, OUTSIDE]):
        return num_items
    x = slot[a, MIDDLE] + slot[b, MIDDLE]
    y = slot[a, MIDDLE + 1] + slot[b, MIDDLE + 1]
    z = slot[a, MIDDLE + 2] + slot[b, MIDDLE + 2]
    item = scratch.item
    item[num_items, 0], item[num_items, 1], item[num_items, 2] = STRIP, a, b
    item[num_items, 3], item[num_items, 4] = section, step
    scratch.key[num_items] = np.sqrt(x * x + y * y + z * z) * HALF
    scratch.order[num_items] = num_items
    return num_items + 1


# Draws the road, the terrain beside it and its walls, strip by strip between two sections. All of a section lies on one
# line: terrain, road edge, inner border of the painted line, and mirrored. So the terrain, lines and lane of a strip
# share its end borders.
TERRAIN, LINE, UNDERSIDE = INK["terrain"], INK["line"], INK["underside"]
GROUND_HORIZON = INK["ground_horizon"]
WALL_INK = INK["wall"]
LINE_M, LINE_PIXELS, MAX_LINE_SHARE = np.float32(0.6), np.float32(2.4), np.float32(0.35)
"""Width of painted lines: in metres, at least in pixels, and at most as a share of half the road."""
WALL_M = np.float32(1.0)
THIN_M = np.float32(0.05)
"""Terrain narrower than this is not drawn."""
WHITE = np.float32(255.0)


@inlined_kernel
def point(slot: Floats, metres: Real) -> Vector:
    """Returns the point of a section `metres` left of its centre, in camera space."""
    return (
        slot[MIDDLE] + slot[SIDE] * metres,
        slot[MIDDLE + 1] + slot[SIDE + 1] * metres,
        slot[MIDDLE + 2] + slot[SIDE + 2] * metres,
    )


@inlined_kernel
def plane_of(slot: Floats) -> Vector:
    """Returns the normal of the plane through the eye and a section."""
    return slot[PLANE], slot[PLANE + 1], slot[PLANE + 2]


@inlined_kernel
def lane_m(slot: Floats, focal: Real) -> Real:
    """Returns half the width between the painted lines."""
    line = max(LINE_M, LINE_PIXELS * slot[MIDDLE + 2] / focal)
    return slot[HALF_M] - min(line, MAX_LINE_SHARE * slot[HALF_M])


@inlined_kernel
def draw_strip(frame: Bytes, scene: Scene, scratch: Scratch, index: Int, haze: Real) -> None:
    """Draws terrain, edge lines, road and walls between two sections."""
    lens, item = scratch.lens, scratch.item
    a, b = scratch.slot[item[index, 1]], scratch.slot[item[index, 2]]
    section, step = np.int64(item[index, 3]), np.int64(item[index, 4])
    ink, light, band = scene.ink, a[SHADE], (section // BAND_SECTIONS) & 1
    sign = ONE if dot(cross(point(a, a[HALF_M]), point(b, b[HALF_M])), point(a, -a[HALF_M])) > ZERO else -ONE
    across = border(plane_of(a), sign, lens), border(plane_of(b), -sign, lens)
    edges = sides(lens, a, b, (a[HALF_M], b[HALF_M], a[HALF_M], b[HALF_M]), sign)
    nothing = NOWHERE, NOWHERE
    if sign < ZERO:
        out_a, out_b, out_c, out_d = a[REACH_LEFT], b[REACH_LEFT], a[REACH_RIGHT], b[REACH_RIGHT]
        if max(out_a + out_b, out_c + out_d) > THIN_M:
            reach = a[HALF_M] + out_a, b[HALF_M] + out_b, a[HALF_M] + out_c, b[HALF_M] + out_d
            terrain = sides(lens, a, b, reach, sign)
        else:
            terrain = nothing
        lane_a, lane_b = lane_m(a, lens[FOCAL]), lane_m(b, lens[FOCAL])
        lanes = sides(lens, a, b, (lane_a, lane_b, lane_a, lane_b), sign)
        ground = shade(banded(ink, TERRAIN, band, step), light, haze, ink)
        road = shade(banded(ink, np.int64(scene.sections[section, SURFACE]), band, step), light, haze, ink)
        values = ground, shade(ink[LINE], ONE, haze * HALF, ink), road
    else:
        terrain, lanes = nothing, nothing
        value = shade(ink[UNDERSIDE], ONE, haze, ink)
        values = value, value, value
    fill_strip(frame, scratch.span, across, (terrain, edges, lanes), values)
    if scene.sections[section, EDGE] == np.float32(WALL):
        draw_wall(frame, lens, point(a, a[HALF_M]), point(b, b[HALF_M]), shade(ink[WALL_INK + band], ONE, haze, ink))
        draw_wall(frame, lens, point(a, -a[HALF_M]), point(b, -b[HALF_M]), shade(ink[WALL_INK + band], ONE, haze, ink))


@inlined_kernel
def sides(
    lens: Floats, a: Floats, b: Floats, metres: tuple[Real, Real, Real, Real], sign: Real
) -> tuple[Border, Border]:
    """Returns the left and right borders along the road, through points left (2) and right (2) of `a` and `b`."""
    left = border(cross(point(a, metres[0]), point(b, metres[1])), sign, lens)
    return left, border(cross(point(a, -metres[2]), point(b, -metres[3])), -sign, lens)


@called_kernel
def draw_wall(frame: Bytes, lens: Floats, a: Vector, b: Vector, value: Real) -> None:
    """Draws an upright wall on an edge of the road."""
    up = lens[RIGHT + 1], lens[RIGHT + 4], lens[RIGHT + 7]
    draw_quad(frame, lens, a, b, along(b, up, WALL_M), along(a, up, WALL_M), value)


@inlined_kernel
def banded(ink: Floats, first: Int, band: Int, step: Int) -> Real:
    """Returns the alternating shade along the road; strips longer than a band take the mean."""
    if step > BAND_SECTIONS:
        return (ink[first] + ink[first + 1]) * HALF
    return ink[first + band]


@inlined_kernel
def shade(value: Real, light: Real, haze: Real, ink: Floats) -> Real:
    """Applies light and haze to a brightness: distant objects fade into the horizon."""
    lit = value * light
    return min(max(lit + haze * (ink[GROUND_HORIZON] - lit), ZERO), WHITE)


# Gates and cars.
POST, BANNER, FINISH_DARK = INK["post"], INK["start_banner"], INK["finish_dark"]
CAR_INK, OTHER_INK = INK["car_side"], INK["other_side"]
CHEQUERS = 8
BANNER_LOW_M, BANNER_M, BANNER_PIXELS = np.float32(6.5), np.float32(1.8), np.float32(2.2)
POST_M, POST_PIXELS, POST_GAP_M = np.float32(0.8), np.float32(1.1), np.float32(1.0)
"""Distant gates are widened to this many pixels to stay visible."""
GATE_HIGH_M, GATE_PIXELS = np.float32(11.0), np.float32(4.0)
"""A gate extends at most half the road plus these metres and pixels from its middle."""
CAR_LEAD_M = np.float32(5.5)
"""Cars are sorted this much nearer, so that they are drawn after the road under them."""
CAR_PARTS = np.array(
    [
        [-0.80, -0.18, -1.90, 0.80, 0.19, 1.60, 0],  # body
        [-0.40, -0.16, 1.60, 0.40, 0.09, 2.20, 0],  # nose
        [-0.55, 0.19, -1.20, 0.55, 0.59, 0.50, 1],  # cabin
        [-0.85, 0.49, -2.00, 0.85, 0.59, -1.60, 0],  # rear wing
        [0.80, -0.36, -1.75, 1.10, 0.30, -1.05, 2],  # wheels
        [-1.10, -0.36, -1.75, -0.80, 0.30, -1.05, 2],
        [0.80, -0.36, 0.95, 1.10, 0.24, 1.60, 2],
        [-1.10, -0.36, 0.95, -0.80, 0.24, 1.60, 2],
    ],
    np.float32,
)
"""Boxes of a car: minimum left, up and forward, then maximum, metres from its position, which is 0.36 m above the
ground; then 0 paint, 1 cabin or 2 tyre."""


@called_kernel
def collect_objects(scene: Scene, cars: Floats, num_items: Int, scratch: Scratch) -> Int:
    """Adds gates and cars in front of the camera, sorted slightly nearer than the road under them."""
    at, lens = scene.sections, scratch.lens
    for g in range(scene.gates.shape[0]):
        section = scene.gates[g, 0]
        position = to_camera(lens, at[section])
        distance = np.sqrt(dot(position, position))
        is_in_reach = position[2] > -at[section, 6] and distance < np.float32(scene.view_m)
        if is_in_reach and is_beside_view(lens, position, at[section, 6] + GATE_HIGH_M) == 0:
            num_items = add_object(GATE, g, distance - ONE, num_items, scratch)
    for m in range(cars.shape[0]):
        position = to_camera(lens, cars[m])
        distance = np.sqrt(dot(position, position))
        if position[2] > -TWO and distance < scene.view_m:
            num_items = add_object(CAR, m, distance - CAR_LEAD_M, num_items, scratch)
    return num_items


@inlined_kernel
def is_beside_view(lens: Floats, middle: Vector, radius: Real) -> Int:
    """Returns 1 if a gate lies wholly left or right of the view, with a margin of some pixels."""
    focal, half_width = lens[FOCAL], lens[CENTRE_X]
    radius += GATE_PIXELS * max(middle[2], ZERO) / focal
    beyond = abs(middle[0]) * focal - middle[2] * half_width
    return np.int64(beyond > radius * np.sqrt(focal * focal + half_width * half_width))


@inlined_kernel
def add_object(kind: Int, index: Int, distance: Real, num_items: Int, scratch: Scratch) -> Int:
    """Adds one gate or car."""
    if num_items >= scratch.key.shape[0]:
        return num_items
    scratch.item[num_items, 0], scratch.item[num_items, 1] = kind, index
    scratch.key[num_items] = distance
    scratch.order[num_items] = num_items
    return num_items + 1


@called_kernel
def draw_gate(frame: Bytes, scene: Scene, lens: Floats, gate: Int, haze: Real) -> None:
    """Draws a gate: two posts and a banner across the road; the finish is chequered."""
    section, kind = scene.gates[gate, 0], scene.gates[gate, 1]
    ink, at = scene.ink, scene.sections
    base = to_camera(lens, at[section])
    side = turned(lens, at[section, 3], at[section, 4], at[section, 5])
    pixel = max(base[2], ZERO) / lens[FOCAL]
    span = at[section, 6] + POST_GAP_M
    post = max(POST_M, pixel * POST_PIXELS)
    low, high = BANNER_LOW_M, BANNER_LOW_M + max(BANNER_M, pixel * BANNER_PIXELS)
    parts = np.int64(CHEQUERS if kind == GATE_FINISH else 1)
    width = TWO * span / np.float32(parts)
    up = lens[RIGHT + 1], lens[RIGHT + 4], lens[RIGHT + 7]
    if base[2] + span + post <= NEAR_M:
        return
    # Parts share the borders of one upright plane. `sign` says from which side it is seen.
    sign = ONE if dot(cross(base, up), side) > ZERO else -ONE
    ground, under = level_border(lens, base, side, up, -ONE, -sign), level_border(lens, base, side, up, low, -sign)
    top = level_border(lens, base, side, up, high, sign)
    value = shade(ink[POST], ONE, haze * HALF, ink)
    for end in range(2):
        right = span if end == 0 else -span - post
        sides = plumb_border(lens, base, side, up, right, sign), plumb_border(lens, base, side, up, right + post, -sign)
        fill_between(frame, sides[0], sides[1], ground, top, value)
    for part in range(parts):
        right = -span + np.float32(part) * width
        sides = (
            plumb_border(lens, base, side, up, right, sign),
            plumb_border(lens, base, side, up, right + width, -sign),
        )
        value = shade(ink[FINISH_DARK if part & 1 else BANNER + kind], ONE, haze * HALF, ink)
        fill_between(frame, sides[0], sides[1], under, top, value)


@called_kernel
def level_border(lens: Floats, base: Vector, side: Vector, up: Vector, metres: Real, sign: Real) -> Border:
    """Returns the horizontal border of a gate `metres` above its foot; lower is inside if `sign` is the gate's."""
    return border(cross(along(base, up, metres), side), sign, lens)


@called_kernel
def plumb_border(lens: Floats, base: Vector, side: Vector, up: Vector, metres: Real, sign: Real) -> Border:
    """Returns the upright border `metres` left of a gate's middle; left is inside if `sign` is the gate's."""
    return border(cross(along(base, side, metres), up), sign, lens)


@called_kernel
def draw_car(frame: Bytes, ink: Floats, lens: Floats, cars: Floats, m: Int) -> None:
    """Draws the boxes of a car, farthest first."""
    middle = to_camera(lens, cars[m])
    axes = (
        turned(lens, cars[m, 3], cars[m, 6], cars[m, 9]),
        turned(lens, cars[m, 4], cars[m, 7], cars[m, 10]),
        turned(lens, cars[m, 5], cars[m, 8], cars[m, 11]),
    )
    drawn = 0
    for _ in range(CAR_PARTS.shape[0]):
        part = farthest_part(middle, axes, drawn)
        drawn |= 1 << part
        tone = CAR_INK + 3 * int(CAR_PARTS[part, 6])
        draw_box(frame, ink, lens, middle, axes, part, OTHER_INK if m > 0 and tone == CAR_INK else tone)


@called_kernel
def farthest_part(middle: Vector, axes: tuple[Vector, Vector, Vector], drawn: Int) -> Int:
    """Returns the farthest box of a car that is not drawn yet."""
    best, farthest = 0, -ONE
    for part in range(CAR_PARTS.shape[0]):
        box = CAR_PARTS[part]
        place = corner_of(middle, axes, (box[0] + box[3]) * HALF, (box[1] + box[4]) * HALF, (box[2] + box[5]) * HALF)
        distance = dot(place, place)
        if not (drawn >> part) & 1 and distance > farthest:
            best, farthest = part, distance
    return best


@inlined_kernel
def corner_of(middle: Vector, axes: tuple[Vector, Vector, Vector], left: Real, up: Real, forward: Real) -> Vector:
    """Returns a point on a car in camera space."""
    return along(along(along(middle, axes[0], left), axes[1], up), axes[2], forward)


@called_kernel
def draw_box(
    frame: Bytes,
    ink: Floats,
    lens: Floats,
    middle: Vector,
    axes: tuple[Vector, Vector, Vector],
    part: Int,
    inks: Int,
) -> None:
    """Draws the faces of a box that face the eye; in a convex body these do not hide each other."""
    box = CAR_PARTS[part]
    for face in range(6):
        axis, is_upper = face >> 1, face & 1
        one, two = 1 << (axis + 1) % 3, 1 << (axis + 2) % 3
        lower = is_upper << axis
        a, b = box_corner(middle, axes, box, lower), box_corner(middle, axes, box, lower + one)
        c, d = box_corner(middle, axes, box, lower + one + two), box_corner(middle, axes, box, lower + two)
        if (dot(cross(a, b), d) > ZERO) == (is_upper == 1):
            draw_quad(frame, lens, a, b, c, d, ink[inks + axis])


@called_kernel
def box_corner(middle: Vector, axes: tuple[Vector, Vector, Vector], box: Floats, upper: Int) -> Vector:
    """Returns a corner of a box: the bits of `upper` select the left, the upper and the forward side."""
    return corner_of(middle, axes, box[3 * (upper & 1)], box[1 + 3 * (upper >> 1 & 1)], box[2 + 3 * (upper >> 2 & 1)])


# The whole frame: camera, background, and all items sorted by distance.
SKY_ZENITH, SKY_HORIZON = INK["sky_zenith"], INK["sky_horizon"]
GROUND_HORIZON, GROUND_NEAR = INK["ground_horizon"], INK["ground_near"]
HIGHEST = np.float32(0.83)
"""Rise of a ray above which the sky's shade is constant."""
LEVEL = np.float32(0.01)
"""Grey-level change below which a row gets one shade: without camera roll, rounding errors are of this size."""
LOWEST = np.float32(0.4)
"""Fall of a ray above which the far ground's shade is constant."""
GROUND_SLOPE = ONE / LOWEST
LOWEST_EYE_M = np.float32(0.5)
"""Minimum height of the eye above the ground under it."""
EYE_SECTIONS = 128
"""Search range for the ground under the eye, in sections (64 m) along the road from the car: far more than the length
of the camera arm."""


@inlined_kernel
def is_finite(poses: Floats, n: Int) -> bool:
    """True if all numbers of a pose are finite."""
    total = ZERO
    for k in range(12):
        total += poses[n, k] * ZERO
    return total == ZERO


@inlined_kernel
def place_camera(poses: Floats, n: Int, camera: Floats, height: Int, width: Int, lens: Floats) -> None:
    """Fills the lens for a camera behind and above the car, pitched down and rolled with it."""
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


@inlined_kernel
def lift_eye(scene: Scene, zone: Int, lens: Floats) -> None:
    """Lifts an eye below the road or its terrain to just above it.

    The camera arm turns with the car. In a jump the nose may point far above the course. The camera then falls below
    the road, whose line follows the recorded flight, and the frame would show little but the road's underside.
    """
    sections = scene.sections
    index = section_at_eye(sections, zone + scene.num_before, lens)
    if index < 0:
        return
    ahead = course_at(sections, index)
    left = sections[index, 3], sections[index, 4], sections[index, 5]
    upright, away = cross(ahead, left), eye_from(sections, index, lens)
    length, aside = np.sqrt(dot(upright, upright)), dot(away, left)
    on_left, on_right = sections[index, 6] + sections[index, 7], sections[index, 6] + sections[index, 8]
    if length == ZERO or aside > on_left or aside < -on_right:
        return
    per_length = ONE / length
    missing = LOWEST_EYE_M - dot(away, upright) * per_length
    if missing > ZERO:
        for axis in range(3):
            lens[EYE + axis] += upright[axis] * per_length * missing


@inlined_kernel
def section_at_eye(sections: Floats, start: Int, lens: Floats) -> Int:
    """Finds the section that the eye has last passed, starting from the car's; -1 if none is within range."""
    last = sections.shape[0] - 2
    index = np.int64(min(max(start, 1), last))
    for _ in range(EYE_SECTIONS):
        if index > 1 and dot(eye_from(sections, index, lens), course_at(sections, index)) < ZERO:
            index -= 1
        elif index < last and dot(eye_from(sections, index + 1, lens), course_at(sections, index + 1)) >= ZERO:
            index += 1
        else:
            return index
    return np.int64(-1)


@inlined_kernel
def course_at(sections: Floats, index: Int) -> Vector:
    """Returns the direction of the road at an inner section; not of unit length."""
    a, b = sections[index - 1], sections[index + 1]
    return b[0] - a[0], b[1] - a[1], b[2] - a[2]


@inlined_kernel
def eye_from(sections: Floats, index: Int, lens: Floats) -> Vector:
    """Returns the vector from the middle of a section to the eye."""
    middle = sections[index]
    return lens[EYE] - middle[0], lens[EYE + 1] - middle[1], lens[EYE + 2] - middle[2]


@inlined_kernel
def draw_background(frame: Bytes, lens: Floats, ink: Floats) -> None:
    """Draws sky and far ground, shaded by each ray's rise above the horizon."""
    focal = lens[FOCAL]
    per_x, per_y = lens[RIGHT + 1] / focal, lens[ABOVE + 1] / focal
    sky, sky_slope = ink[SKY_HORIZON], (ink[SKY_ZENITH] - ink[SKY_HORIZON]) * np.float32(1.2)
    ground_slope = (ink[GROUND_NEAR] - ink[GROUND_HORIZON]) * GROUND_SLOPE
    width = frame.shape[1]
    at_row = lens[AHEAD + 1] + (lens[CENTRE_Y] - HALF) * per_y + (HALF - lens[CENTRE_X]) * per_x
    is_level = abs(per_x) * np.float32(width) * max(abs(sky_slope), abs(ground_slope)) < LEVEL
    for y in range(np.uint32(frame.shape[0])):
        num = np.uint32(1 if is_level else width)
        at_end = at_row + np.float32(width) * per_x
        if min(at_row, at_end) * focal >= HALF:
            for x in range(num):
                rise = at_row + np.float32(np.int32(x)) * per_x
                frame[y, x] = np.uint8(np.int32(sky + sky_slope * min(rise, HIGHEST)))
        elif max(at_row, at_end) * focal <= -HALF:
            for x in range(num):
                rise = at_row + np.float32(np.int32(x)) * per_x
                frame[y, x] = np.uint8(np.int32(far_ground(ink, -rise)))
        else:
            for x in range(num):
                rise = at_row + np.float32(np.int32(x)) * per_x
                above = min(max(rise * focal + HALF, ZERO), ONE)
                high = sky + sky_slope * min(max(rise, ZERO), HIGHEST)
                low = far_ground(ink, max(-rise, ZERO))
                frame[y, x] = np.uint8(np.int32(low + above * (high - low)))
        if is_level:
            shade = frame[y, 0]
            for x in range(np.uint32(1), np.uint32(width)):
                frame[y, x] = shade
        at_row -= per_y


@inlined_kernel
def far_ground(ink: Floats, fall: Real) -> Real:
    """Returns the brightness of the far ground, by a ray's fall per metre of depth."""
    return ink[GROUND_HORIZON] + (ink[GROUND_NEAR] - ink[GROUND_HORIZON]) * GROUND_SLOPE * min(fall, LOWEST)


@inlined_kernel
def sort_near_to_far(key: Floats, order: Indices, count: Int) -> None:
    """Insertion sort by rising key: runs of road arrive nearly sorted."""
    for i in range(1, count):
        chosen = order[i]
        j = i - 1
        while j >= 0 and key[order[j]] > key[chosen]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = chosen


@inlined_kernel
def draw_items(frame: Bytes, scene: Scene, cars: Floats, num_items: Int, scratch: Scratch) -> None:
    """Draws strips, gates and cars, farthest first."""
    for k in range(num_items - 1, -1, -1):
        index = scratch.order[k]
        kind = scratch.item[index, 0]
        haze = min(max(scratch.key[index] / np.float32(scene.view_m), ZERO), ONE) * HAZE
        if kind == STRIP:
            draw_strip(frame, scene, scratch, index, haze)
        elif kind == GATE:
            draw_gate(frame, scene, scratch.lens, scratch.item[index, 1], haze)
        else:
            draw_car(frame, scene.ink, scratch.lens, cars, scratch.item[index, 1])


@cached_kernel
def draw_frames(
    poses: Floats,
    zone_index: NDArray[np.int64],
    scene: Scene,
    camera: Floats,
    cars: Floats,
    scratch: Scratch,
    out: Bytes,
) -> int:
    """Draws every pose; `rulka.simulator.render` checks the arguments.

    Args:
        poses: [N, >= 12] position and rotation of each car.
        zone_index: [N] zone of each car.
        scene: from `bake_scene`.
        camera: [5] from `camera_array`.
        cars: [M, >= 12] poses of cars to draw; the first is the own car.
        scratch: from `new_scratch`, one per thread.
        out: [N, H, W], C-contiguous, overwritten.

    Returns:
        -1, or the first pose with a value that is not finite; drawing stops there.
    """
    height, width = out.shape[1], out.shape[2]
    for n in range(poses.shape[0]):
        if not is_finite(poses, n):
            return n
        place_camera(poses, n, camera, height, width, scratch.lens)
        lift_eye(scene, zone_index[n], scratch.lens)
        draw_background(out[n], scratch.lens, scene.ink)
        num_items = collect_road(scene, zone_index[n], scratch)
        num_items = collect_objects(scene, cars, num_items, scratch)
        sort_near_to_far(scratch.key, scratch.order, num_items)
        draw_items(out[n], scene, cars, num_items, scratch)
    return -1
