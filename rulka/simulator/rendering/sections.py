"""Kernels that choose which cross-sections of the road a frame needs, and bring them into camera space.

Sections are taken from the car outward, each as far from the one before as the picture allows: the road between them is
drawn straight, and may stray from its true course by `TOLERANCE_PIXELS`.
"""

from __future__ import annotations

import numpy as np

from rulka.simulator.compiling import inlined_kernel
from rulka.simulator.layout import CHUNK_SECTIONS, LIGHT, SECTION_STEPS, Scene
from rulka.simulator.rendering.kernels import (
    CENTRE_X,
    CENTRE_Y,
    FOCAL,
    HALF,
    MAX_SLOTS,
    NEAR_M,
    STRIP,
    TWO,
    ZERO,
    Floats,
    Int,
    Real,
    Scratch,
    Vector,
    along,
    cross,
    to_camera,
    turned,
)

MIDDLE, SIDE, PLANE, HALF_M, REACH_LEFT, REACH_RIGHT = 0, 3, 6, 9, 10, 11
"""Places in a slot: centre and unit vector to the left in camera space, normal of the plane through both and the eye,
half width, width of the terrain on either side."""
OUTSIDE, SHADE = 12, 13
"""Sides of the view's pyramid that both ends lie outside of; light."""
CHUNK = np.int64(CHUNK_SECTIONS)
NUM_STEPS, SMALLEST_STEP = np.int64(len(SECTION_STEPS)), np.int64(SECTION_STEPS[0])
BAND_SECTIONS = np.int64(16)
TOLERANCE_PIXELS, UNSEEN_TOLERANCE_PIXELS = np.float32(0.5), np.float32(4.0)
BAND_REACH_M = np.float32(50.0)
"""Bands of 8 m are drawn one by one as long as they are about a row high: to the square root of this many metres
times the focal length in pixels; the eye is some 4.5 m above the road."""
SECTIONS_PER_METRE = TWO
NONE = np.int64(0)


@inlined_kernel
def collect_road(scene: Scene, zone: Int, scratch: Scratch) -> Int:
    """Adds the strips ahead, behind and near in space; returns the number of items."""
    last, reach = scene.sections.shape[0] - 1, np.int64(scene.view_m * SECTIONS_PER_METRE)
    here = min(max(zone + scene.num_before, 0), last)
    start = here & ~(BAND_SECTIONS - 1)
    num_slots, num_items = NONE, NONE
    chunk = min(here // CHUNK, scene.neighbours.shape[0] - 1)
    for k in range(-2, scene.neighbours.shape[1]):  # ahead, behind, then near in space
        first, end = start, min(here + reach, last) if k == -2 else max(here - reach, NONE)
        if k >= 0:
            first, end = np.int64(scene.neighbours[chunk, k, 0]), np.int64(scene.neighbours[chunk, k, 1])
            if first < 0:
                break
        num_slots, num_items = add_run(scene, first, end, num_slots, num_items, scratch)
    return num_items


@inlined_kernel
def add_run(scene: Scene, index: Int, end: Int, num_slots: Int, num_items: Int, scratch: Scratch) -> tuple[Int, Int]:
    """Adds sections from one to another, either way, and the strips between them."""
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
    """Sections in the next strip: as long as neither its course nor its shade strays visibly."""
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
    """Brings a section into camera space; returns whether any of it is ahead."""
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
    """Bits for the sides of the view's pyramid that a point lies outside of."""
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
    """Adds the strip between two sections unless no pixel of the image can show it."""
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
