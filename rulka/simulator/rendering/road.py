"""Kernels that draw the road, the terrain beside it and its walls, strip by strip between two sections.

All of a section lies on one line: terrain, road edge, inner border of the painted line, and mirrored. So the terrain,
the lines and the lane of a strip share the borders across the road.
"""

from __future__ import annotations

import numpy as np

from rulka.simulator.compiling import called_kernel, inlined_kernel
from rulka.simulator.layout import EDGE, SURFACE, Scene
from rulka.simulator.palette import INK
from rulka.simulator.rendering.kernels import (
    FOCAL,
    HALF,
    ONE,
    RIGHT,
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
)
from rulka.simulator.rendering.quads import NOWHERE, border, draw_quad, fill_strip
from rulka.simulator.rendering.sections import (
    BAND_SECTIONS,
    HALF_M,
    MIDDLE,
    PLANE,
    REACH_LEFT,
    REACH_RIGHT,
    SHADE,
    SIDE,
)
from rulka.tracks.track import WALL

TERRAIN, LINE, UNDERSIDE = INK["terrain"], INK["line"], INK["underside"]
GROUND_HORIZON = INK["ground_horizon"]
WALL_INK = INK["wall"]
LINE_M, LINE_PIXELS, MAX_LINE_SHARE = np.float32(0.6), np.float32(2.4), np.float32(0.35)
"""Painted lines are this wide, at least so many pixels, and at most this share of half the road."""
WALL_M = np.float32(1.0)
THIN_M = np.float32(0.05)
"""Narrower terrain is not drawn."""
WHITE = np.float32(255.0)


@inlined_kernel
def point(slot: Floats, metres: Real) -> Vector:
    """The point of a section that is so far left of its centre, in camera space."""
    return (
        slot[MIDDLE] + slot[SIDE] * metres,
        slot[MIDDLE + 1] + slot[SIDE + 1] * metres,
        slot[MIDDLE + 2] + slot[SIDE + 2] * metres,
    )


@inlined_kernel
def plane_of(slot: Floats) -> Vector:
    """Normal of the plane through the eye and a section."""
    return slot[PLANE], slot[PLANE + 1], slot[PLANE + 2]


@inlined_kernel
def lane_m(slot: Floats, focal: Real) -> Real:
    """Half the width between the painted lines."""
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
    """The borders along the road through points so far left of `a` and `b`, and so far right of them."""
    left = border(cross(point(a, metres[0]), point(b, metres[1])), sign, lens)
    return left, border(cross(point(a, -metres[2]), point(b, -metres[3])), -sign, lens)


@called_kernel
def draw_wall(frame: Bytes, lens: Floats, a: Vector, b: Vector, value: Real) -> None:
    """Draws an upright wall on an edge of the road."""
    up = lens[RIGHT + 1], lens[RIGHT + 4], lens[RIGHT + 7]
    draw_quad(frame, lens, a, b, along(b, up, WALL_M), along(a, up, WALL_M), value)


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
    return min(max(lit + haze * (ink[GROUND_HORIZON] - lit), ZERO), WHITE)
