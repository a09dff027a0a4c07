"""Kernels that paint level ground from its baked picture, row by row: see `rulka.simulator.raster`.

Where the camera does not roll, a row of the image is a straight line on the ground, evenly divided by the pixels, and
all of it is equally deep. So one level of the picture serves a row, and its texels are found by two linear functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    ONE,
    RIGHT,
    TEXEL_RUN,
    ZERO,
    Bytes,
    Floats,
    Indices,
    Int,
    Real,
    Scratch,
    inlined_kernel,
    kernel,
)
from rulka.simulator.painting.quads import above_zero, below
from rulka.simulator.palette import INK

if TYPE_CHECKING:
    from rulka.simulator.scene import Scene

GROUND_HORIZON = INK["ground_horizon"]
LEVEL_PIXELS = np.float32(0.1)
"""The horizon may be so far off level at the sides of the image."""
FINEST = np.float32(TEXEL_M)
MIN_PIXEL_SHARE = np.float32(0.5)
"""Pixels at the bottom of the image are at least so large a share of a texel, or its squares would show."""
SWITCH = np.float32(np.sqrt(2.0))
"""A level serves pixels of its texels' size divided and multiplied by this."""
LEAST_EYE_M, LEAST_FALL = np.float32(0.5), np.float32(1e-4)
RUN = np.int64(TEXEL_RUN)
ONE_BIT, EIGHT_BITS, ROUNDING = np.int32(1), np.int32(8), np.int32(128)
HAZE_STEPS = np.float32(0.8 * 256.0)
"""Share of the horizon's colour in what is as far as the view reaches, as in frames.py, in 256ths."""


@inlined_kernel
def fall_of(lens: Floats, row: Int) -> Real:
    """How far a row's rays fall over a metre of depth; negative where they rise."""
    above = (lens[CENTRE_Y] - HALF - np.float32(row)) / lens[FOCAL]
    return -(lens[AHEAD + 1] + above * lens[ABOVE + 1])


@inlined_kernel
def sees_level_ground(scene: Scene, lens: Floats) -> bool:
    """Whether baked ground can be painted: there is some, and the camera stands upright above it, not too near."""
    height = lens[EYE + 1] - scene.plane[1]
    is_upright = abs(lens[RIGHT + 1]) * lens[CENTRE_X] < LEVEL_PIXELS and lens[ABOVE + 1] > HALF
    nearest = height / max(fall_of(lens, np.int64(lens[CENTRE_Y] * np.float32(2.0))), LEAST_FALL)
    is_fine = nearest > FINEST * MIN_PIXEL_SHARE * lens[FOCAL]
    return scene.texels.shape[0] > 0 and is_upright and height > LEAST_EYE_M and is_fine


@kernel
def paint_level_ground(frame: Bytes, scene: Scene, scratch: Scratch) -> None:
    """Paints all rows that show ground within view over the background, which shows where there is none."""
    lens, levels, plane = scratch.lens, scene.levels, scene.plane
    height, focal = lens[EYE + 1] - plane[1], lens[FOCAL]
    distant = np.int32(scene.ink[GROUND_HORIZON])
    for row in range(frame.shape[0]):
        fall = fall_of(lens, row)
        depth = height / max(fall, LEAST_FALL)
        if fall < LEAST_FALL or not depth < np.float32(scene.view_m):
            continue
        pixel, size, level = depth / focal, FINEST, np.int64(0)
        while level + 1 < levels.shape[0] and pixel > size * SWITCH:
            size += size
            level += 1
        above, per_texel = (lens[CENTRE_Y] - HALF - np.float32(row)) / focal, ONE / size
        x = lens[EYE] - plane[0] + depth * (lens[AHEAD] + above * lens[ABOVE])
        z = lens[EYE + 2] - plane[2] + depth * (lens[AHEAD + 2] + above * lens[ABOVE + 2])
        step_x, step_z = pixel * lens[RIGHT] * per_texel, pixel * lens[RIGHT + 2] * per_texel
        haze = np.int32(HAZE_STEPS * depth / np.float32(scene.view_m))
        for first in range(0, frame.shape[1], TEXEL_RUN):
            aside = HALF - lens[CENTRE_X] + np.float32(first)
            count = min(np.int64(frame.shape[1]) - first, RUN)
            start = x * per_texel + aside * step_x, z * per_texel + aside * step_z
            find_texels(scratch.texel, start, (step_x, step_z), levels[level], count)
            paint_run(frame[row, first : first + count], scene.texels, scratch.texel, haze, distant)


@inlined_kernel
def find_texels(
    texel: Indices, start: tuple[Real, Real], step: tuple[Real, Real], level: Indices, count: Int
) -> None:
    """Finds the texels of a run of pixels; off the picture it is the border's, where there is nothing."""
    first, columns, most_x, most_z = level[0], level[1], np.float32(level[1] - 1), np.float32(level[2] - 1)
    for k in range(np.uint64(count)):
        across = np.float32(np.int32(k))
        x = below(above_zero(start[0] + across * step[0]), most_x)
        z = below(above_zero(start[1] + across * step[1]), most_z)
        texel[k] = np.int32(first + np.int32(np.int32(z) * columns) + np.int32(x))


@inlined_kernel
def paint_run(pixels: Bytes, texels: Bytes, texel: Indices, haze: Int, distant: Int) -> None:
    """Paints a run of pixels with their texels, which fade into the distance, bright ones less."""
    # Two loops: the second one runs in vectors, which loads from all over an array cannot.
    for k in range(np.uint64(pixels.shape[0])):
        texel[k] = np.int32(texels[np.uint32(texel[k])])
    for k in range(np.uint64(pixels.shape[0])):
        value = texel[k]
        gap = np.int32(distant - value)
        gap = max(gap, np.int32(gap >> ONE_BIT))
        faded = np.int32(value + np.int32(np.int32(np.int32(gap * haze) + ROUNDING) >> EIGHT_BITS))
        pixels[k] = np.uint8(faded if value > 0 else np.int32(pixels[k]))
