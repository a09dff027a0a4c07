"""Kernels that paint level ground from its baked picture, row by row: see `rulka.simulator.raster`.

Where the camera does not roll, a row of the image is a straight line on the ground, evenly divided by the pixels, and
all of it is equally deep. So one level of the picture serves a row, and its texels are found by two linear functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rulka.simulator.layout import TEXEL_M
from rulka.simulator.painting.kernels import (
    ABOVE,
    AHEAD,
    CENTRE_X,
    CENTRE_Y,
    EYE,
    FOCAL,
    HALF,
    HAZE,
    ONE,
    RIGHT,
    SQUARE_PIXELS,
    Bytes,
    Floats,
    Indices,
    Int,
    Pixel,
    Real,
    Scratch,
    inlined_kernel,
    kernel,
)
from rulka.simulator.painting.quads import NEXT, above_zero, below
from rulka.simulator.palette import INK

if TYPE_CHECKING:
    from rulka.simulator.scene import Scene

GROUND_HORIZON, GROUND_NEAR = INK["ground_horizon"], INK["ground_near"]
MOST_ROLL = np.float32(1e-5)
"""Sine of the camera's roll, more than rounding makes; the background of a row is then of one shade."""
FINEST = np.float32(TEXEL_M)
MIN_PIXEL_SHARE = np.float32(0.5)
"""Pixels at the bottom of the image are at least so large a share of a texel, or its squares would show."""
SWITCH = np.float32(2.0)
"""A level serves pixels as large as its texels to so many times as large: edges then move by less than a pixel."""
LOWEST = np.float32(0.4)
"""Fall from which on far ground keeps its shade."""
GROUND_SLOPE = ONE / LOWEST
LEAST_EYE_M, LEAST_FALL = np.float32(0.5), np.float32(1e-4)
FIXED, FIXED_BITS = np.float32(2.0**18), np.int32(18)
"""Fixed-point numbers leave 13 bits for whole texels: `raster.MOST_TEXELS`."""
SIDE = np.float32(SQUARE_PIXELS)
SQUARE, SQUARE_COUNT = np.int64(SQUARE_PIXELS), np.uint64(SQUARE_PIXELS)
ONE_BIT, HAZE_BITS, ROUNDING = np.int16(1), np.int16(7), np.int16(64)
HAZE_STEPS = HAZE * np.float32(128.0)
"""Haze in 128ths, with which products fit into 16 bits."""


class Line(NamedTuple):
    """The ground that a row of pixels shows, x and z in metres from the picture's corner.

    A pixel shows what lies under the eye, and `depth` times the slope further, and that times the step for each pixel
    that it is right of the middle; the run of pixels begins `aside` right of it.
    """

    depth: Real
    x: Real
    z: Real
    slope_x: Real
    slope_z: Real
    step_x: Real
    step_z: Real
    aside: Real


@inlined_kernel
def fall_of(lens: Floats, row: Int) -> Real:
    """How far a row's rays fall over a metre of depth; negative where they rise."""
    above = (lens[CENTRE_Y] - HALF - np.float32(np.int32(row))) / lens[FOCAL]
    return -(lens[AHEAD + 1] + above * lens[ABOVE + 1])


@inlined_kernel
def far_ground(ink: Floats, fall: Real) -> Real:
    """Brightness of ground below which there is nothing, by how far a ray falls over a metre of depth."""
    return ink[GROUND_HORIZON] + (ink[GROUND_NEAR] - ink[GROUND_HORIZON]) * GROUND_SLOPE * min(fall, LOWEST)


@inlined_kernel
def first_level_row(scene: Scene, lens: Floats, num_rows: Int) -> Int:
    """The first row that shows level ground within view, or the number of rows where it has to be painted in strips.

    That is where none is baked, and where the camera rolls or is too near to the ground for its texels.
    """
    height = lens[EYE + 1] - scene.plane[1]
    is_upright = abs(lens[RIGHT + 1]) < MOST_ROLL and lens[ABOVE + 1] > HALF
    nearest = height / max(fall_of(lens, num_rows - 1), LEAST_FALL)
    is_fine = nearest > FINEST * MIN_PIXEL_SHARE * lens[FOCAL]
    if scene.texels.shape[0] == 0 or not (is_upright and height > LEAST_EYE_M and is_fine):
        return num_rows
    row = np.int64(0)
    while row < num_rows and fall_of(lens, row) * np.float32(scene.view_m) <= height:
        row += 1
    return row


@kernel
def paint_level_ground(frame: Bytes, first_row: Int, scene: Scene, scratch: Scratch) -> None:
    """Paints the rows from the first.

    Square by square in three passes over all its rows, none of which waits for what it has written itself: together
    they would take half as long again.
    """
    lens, texel = scratch.lens, scratch.texel
    height = lens[EYE + 1] - scene.plane[1]
    per_focal, middle = ONE / lens[FOCAL], lens[CENTRE_Y] - HALF
    eye = lens[EYE] - scene.plane[0], lens[EYE + 2] - scene.plane[2]
    ahead, up = (lens[AHEAD], lens[AHEAD + 2]), (lens[ABOVE], lens[ABOVE + 2])
    step = lens[RIGHT] * per_focal, lens[RIGHT + 2] * per_focal
    ahead_fall, above_fall = -lens[AHEAD + 1], -lens[ABOVE + 1]
    num_rows, num_columns = np.int64(frame.shape[0]), np.int64(frame.shape[1])
    for top in range(first_row, num_rows, SQUARE):
        bottom = min(top + SQUARE, num_rows)
        for left in range(0, num_columns, SQUARE):
            count = min(num_columns - left, SQUARE)
            for row in range(top, bottom):
                above = (middle - np.float32(np.int32(row))) * per_focal
                line = Line(
                    depth=height / (ahead_fall + above * above_fall),
                    x=eye[0],
                    z=eye[1],
                    slope_x=ahead[0] + above * up[0],
                    slope_z=ahead[1] + above * up[1],
                    step_x=step[0],
                    step_z=step[1],
                    aside=HALF - lens[CENTRE_X] + np.float32(np.int32(left)),
                )
                find_texels(texel[np.uint64(row - top)], scene.levels, line, per_focal)
            for row in range(top, bottom):
                look_up(frame[np.uint64(row)], np.uint64(left), count, scene.texels, texel[np.uint64(row - top)])
    for row in range(first_row, num_rows):
        fade_row(frame[np.uint64(row)], scene, height, fall_of(lens, row))


@inlined_kernel
def find_texels(texel: Indices, levels: Indices, line: Line, per_focal: Real) -> None:
    """Finds the texels of a run of pixels; off the picture it is the border's, where there is nothing."""
    limit, per_texel, level = FINEST * SWITCH, ONE / FINEST, np.uint64(0)
    while level + NEXT < np.uint64(levels.shape[0]) and line.depth * per_focal > limit:
        limit += limit
        per_texel *= HALF
        level += NEXT
    scale = line.depth * per_texel
    step_x, step_z = line.step_x * scale, line.step_z * scale
    x = line.x * per_texel + line.slope_x * scale + line.aside * step_x
    z = line.z * per_texel + line.slope_z * scale + line.aside * step_z
    first, columns, rows = levels[level, 0], levels[level, 1], levels[level, 2]
    most_x, most_z = np.float32(columns - 1), np.float32(rows - 1)
    end_x, end_z = x + SIDE * step_x, z + SIDE * step_z
    if min(x, end_x) > ONE and min(z, end_z) > ONE and max(x, end_x) < most_x and max(z, end_z) < most_z:
        # All of it is on the picture: fixed-point numbers, of which a vector takes few steps.
        fixed_x, fixed_z = np.int32(x * FIXED), np.int32(z * FIXED)
        fixed_step_x, fixed_step_z = np.int32(step_x * FIXED), np.int32(step_z * FIXED)
        for k in range(SQUARE_COUNT):
            column, row = np.int32(fixed_x >> FIXED_BITS), np.int32(fixed_z >> FIXED_BITS)
            texel[k] = np.int32(np.int32(first + np.int32(row * columns)) + column)
            fixed_x = np.int32(fixed_x + fixed_step_x)
            fixed_z = np.int32(fixed_z + fixed_step_z)
    else:
        for k in range(SQUARE_COUNT):
            across = np.float32(np.int32(k))
            column = np.int32(below(above_zero(x + across * step_x), most_x))
            row = np.int32(below(above_zero(z + across * step_z), most_z))
            texel[k] = np.int32(np.int32(first + np.int32(row * columns)) + column)


@inlined_kernel
def look_up(pixels: Bytes, left: Pixel, count: Int, texels: Bytes, texel: Indices) -> None:
    """Copies the brightness of a run of texels into a row of the image."""
    if count == SQUARE:  # a length known to the compiler
        for k in range(SQUARE_COUNT):
            pixels[left + k] = texels[np.uint32(texel[k])]
    else:
        for k in range(np.uint64(count)):
            pixels[left + k] = texels[np.uint32(texel[k])]


@inlined_kernel
def fade_row(pixels: Bytes, scene: Scene, height: Real, fall: Real) -> None:
    """Lets a row fade into the distance, what is bright less; where there is nothing, far ground shows."""
    haze = np.int16(HAZE_STEPS * height / (fall * np.float32(scene.view_m)))
    distant, nothing = np.int16(scene.ink[GROUND_HORIZON]), np.uint8(np.int32(far_ground(scene.ink, fall)))
    for x in range(np.uint64(pixels.shape[0])):
        value = np.int16(pixels[x])
        gap = np.int16(distant - value)
        gap = max(gap, np.int16(gap >> ONE_BIT))
        faded = np.int16(value + np.int16(np.int16(np.int16(gap * haze) + ROUNDING) >> HAZE_BITS))
        pixels[x] = np.uint8(faded) if value > 0 else nothing
