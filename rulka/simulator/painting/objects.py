"""Kernels that paint what stands on the road: gates and cars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rulka.simulator.painting.kernels import (
    CAR,
    FOCAL,
    GATE,
    HALF,
    ONE,
    RIGHT,
    TWO,
    ZERO,
    Bytes,
    Floats,
    Int,
    Real,
    Scratch,
    inlined_kernel,
    kernel,
    length,
    to_camera,
)
from rulka.simulator.painting.polygons import paint_polygon
from rulka.simulator.painting.road import shade
from rulka.simulator.palette import INK
from rulka.simulator.scene import GATE_FINISH

if TYPE_CHECKING:
    from rulka.simulator.scene import Scene

POST, BANNER, FINISH_DARK = INK["post"], INK["start_banner"], INK["finish_dark"]
CAR_INK, OTHER_INK = INK["car_side"], INK["other_side"]
CHEQUERS = 8
BANNER_LOW_M, BANNER_M, BANNER_PIXELS = np.float32(6.5), np.float32(1.8), np.float32(2.2)
POST_M, POST_PIXELS, POST_GAP_M = np.float32(0.8), np.float32(1.1), np.float32(1.0)
"""Far gates are widened to so many pixels, so that they stay visible."""
CAR_LEAD_M = np.float32(3.0)
"""Cars are painted after the road this far behind them, which they stand on."""
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


@kernel
def collect_objects(scene: Scene, cars: Floats, num_items: Int, scratch: Scratch) -> Int:
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
            num_items = add_object(CAR, m, distance - CAR_LEAD_M, num_items, scratch)
    return num_items


@inlined_kernel
def add_object(kind: Int, index: Int, distance: Real, num_items: Int, scratch: Scratch) -> Int:
    """Adds one gate or car."""
    if num_items >= scratch.key.shape[0]:
        return num_items
    scratch.item[num_items, 0], scratch.item[num_items, 1] = kind, index
    scratch.key[num_items] = distance
    scratch.order[num_items] = num_items
    return num_items + 1


@kernel
def paint_gate(frame: Bytes, scene: Scene, scratch: Scratch, gate: Int, haze: Real) -> None:
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
    span = at[section, 6] + POST_GAP_M
    post = max(POST_M, pixel * POST_PIXELS)
    low, high = BANNER_LOW_M, BANNER_LOW_M + max(BANNER_M, pixel * BANNER_PIXELS)
    value = shade(ink[POST], ONE, haze * HALF, ink)
    paint_upright(frame, scratch, base, side, (span, span + post, -ONE, high), value)
    paint_upright(frame, scratch, base, side, (-span - post, -span, -ONE, high), value)
    parts = CHEQUERS if kind == GATE_FINISH else 1
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
def paint_car(frame: Bytes, ink: Floats, scratch: Scratch, cars: Floats, m: Int) -> None:
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
        tone = CAR_INK + 3 * int(CAR_PARTS[part, 6])
        paint_box(frame, ink, scratch, middle, axes, part, OTHER_INK if m > 0 and tone == CAR_INK else tone)


@kernel
def farthest_part(middle: Floats, axes: Floats, painted: Int) -> Int:
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
def paint_box(frame: Bytes, ink: Floats, scratch: Scratch, middle: Floats, axes: Floats, part: Int, inks: Int) -> None:
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
