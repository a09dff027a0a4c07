"""Kernels that draw what stands on the road: gates and cars."""

from __future__ import annotations

import numpy as np

from rulka.simulator.compiling import called_kernel, inlined_kernel
from rulka.simulator.layout import GATE_FINISH, Scene
from rulka.simulator.palette import INK
from rulka.simulator.rendering.kernels import (
    CAR,
    CENTRE_X,
    FOCAL,
    GATE,
    HALF,
    NEAR_M,
    ONE,
    RIGHT,
    TWO,
    ZERO,
    Border,
    Bytes,
    Floats,
    Int,
    Real,
    Scratch,
    Vector,
    along,
    cross,
    dot,
    to_camera,
    turned,
)
from rulka.simulator.rendering.quads import border, draw_quad, fill_between
from rulka.simulator.rendering.road import shade

POST, BANNER, FINISH_DARK = INK["post"], INK["start_banner"], INK["finish_dark"]
CAR_INK, OTHER_INK = INK["car_side"], INK["other_side"]
CHEQUERS = 8
BANNER_LOW_M, BANNER_M, BANNER_PIXELS = np.float32(6.5), np.float32(1.8), np.float32(2.2)
POST_M, POST_PIXELS, POST_GAP_M = np.float32(0.8), np.float32(1.1), np.float32(1.0)
"""Far gates are widened to so many pixels, so that they stay visible."""
GATE_HIGH_M, GATE_PIXELS = np.float32(11.0), np.float32(4.0)
"""No part of a gate is further from its middle than half the road, so many metres and so many pixels."""
CAR_LEAD_M = np.float32(3.0)
"""Cars are drawn after the road this far behind them, which they stand on."""
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
"""Boxes of a car: least lateral, up and forward, then greatest, metres from its position, which is
0.36 m above the ground; paint, cabin or tyre."""


@called_kernel
def collect_objects(scene: Scene, cars: Floats, num_items: Int, scratch: Scratch) -> Int:
    """Adds gates and cars that are before the camera; they sort a little nearer than the road they stand on."""
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
    """1 where a gate lies wholly left or right of the view; far ones are widened by some pixels."""
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
    """Draws two posts and a banner across the road; the finish is chequered."""
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
    # Parts share the borders of one upright plane. Its sign says from which side it is seen.
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
    """The border along a gate so far above its foot; what is lower lies inside where the sign is the gate's."""
    return border(cross(along(base, up, metres), side), sign, lens)


@called_kernel
def plumb_border(lens: Floats, base: Vector, side: Vector, up: Vector, metres: Real, sign: Real) -> Border:
    """The upright border so far left of a gate's middle; what is left of it lies inside if the sign is the gate's."""
    return border(cross(along(base, side, metres), up), sign, lens)


@called_kernel
def draw_car(frame: Bytes, ink: Floats, lens: Floats, cars: Floats, m: Int) -> None:
    """Draws a car: boxes, the farthest first."""
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
    """The farthest box of a car that is not drawn yet."""
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
    """A place on a car in camera space."""
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
    """Draws the faces of a box that look at the eye; a convex body's faces do not hide each other."""
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
    """A corner of a box: bits of `upper` say where it is on the left, the upper and the forward side."""
    return corner_of(middle, axes, box[3 * (upper & 1)], box[1 + 3 * (upper >> 1 & 1)], box[2 + 3 * (upper >> 2 & 1)])
