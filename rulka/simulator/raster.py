"""A picture of level ground from above, from which frames are painted: road, lines, surfaces and terrain.

The renderer itself paints it, by a camera that looks straight down. Every level has texels twice as large as the one
before, and shows the ground as it looks where a pixel is as large as a texel: with lines widened as there, and far away
without the bands along the road.

Only tracks whose road and terrain lie in one level plane have it, without walls, and only small ones: those whose
picture takes no more than `MAX_BYTES`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.layout import EDGE, SECTION_STEPS, TEXEL_M, Scene
from rulka.simulator.painting.frames import paint_frames
from rulka.simulator.painting.kernels import MAX_SLOTS, new_scratch
from rulka.simulator.palette import INK
from rulka.tracks.track import WALL

MAX_BYTES = 24_000_000
NUM_LEVELS = 7
"""The last one's texels are 8 m."""
LEVEL_M, LEVEL_SLOPE = 1e-3, 1e-4
"""Road whose height differs by less, and whose bank is less, is level."""
BANDED_LEVELS = 3
"""Levels that show the bands along the road: to pixels of 1 m, 32 m away in a frame for agents."""
BAND_STEPS = 3
"""Lengths of strips up to that of a band."""
EYE_TEXELS = 1000.0
"""The camera is so many texels above the ground."""
BORDER_TEXELS = 2
BACKGROUND = ("sky_zenith", "sky_horizon", "ground_horizon", "ground_near")
BANDED = ("terrain", "asphalt", "dirt", "grass_road", "turbo", "other_road")
LOOKS_DOWN = np.array([-1, 0, 0, 0, 0, -1, 0, -1, 0], np.float32)
"""Rotation of a pose that looks down, columns of the picture along x and rows along z."""
NO_HAZE_M = 1e9
WEIGHTS = np.uint16(16)
"""Sum of the weights with which a texel is spread over its neighbours."""
WHITE = np.uint16(255) * WEIGHTS
MOST_TEXELS = 8191
"""Columns or rows of a level."""


def bake_level_ground(scene: Scene) -> Scene:
    """Returns the scene with the picture of its ground, or as it is where that cannot be drawn."""
    at = scene.sections
    is_level = np.ptp(at[:, 1]) < LEVEL_M and np.abs(at[:, 4]).max() < LEVEL_SLOPE
    if not is_level or (at[:, EDGE] == WALL).any() or len(at) // SECTION_STEPS[0] >= MAX_SLOTS:
        return scene
    low, high = _extent(at)
    shapes = [_level_shape(high - low, TEXEL_M * 2**level) for level in range(NUM_LEVELS)]
    sizes = [rows * columns for rows, columns in shapes]
    if sum(sizes) > MAX_BYTES or max(shapes[0]) > MOST_TEXELS:
        return scene
    plane = np.array([low[0], at[:, 1].mean(), low[1]], np.float32)
    pictures = [_level_picture(scene, level, shape, plane) for level, shape in enumerate(shapes)]
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    levels = np.array([(start, columns, rows) for start, (rows, columns) in zip(first, shapes, strict=True)], np.int32)
    return scene._replace(texels=np.concatenate([p.ravel() for p in pictures]), levels=levels, plane=plane)


def _extent(at: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the lowest and highest x and z of road and terrain, with room for a border."""
    centre, left = at[:, [0, 2]].astype(np.float64), at[:, [3, 5]].astype(np.float64)
    ends = np.concatenate([centre + left * (at[:, 6:7] + at[:, 7:8]), centre - left * (at[:, 6:7] + at[:, 8:9])])
    room = BORDER_TEXELS * TEXEL_M * 2 ** (NUM_LEVELS - 1)
    return ends.min(axis=0) - room, ends.max(axis=0) + room


def _level_shape(extent: NDArray[np.float64], texel_m: float) -> tuple[int, int]:
    """Returns rows and columns."""
    columns, rows = np.ceil(extent / texel_m).astype(int).tolist()
    return rows, columns


def _level_picture(scene: Scene, level: int, shape: tuple[int, int], plane: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns [rows, columns] uint8 ground as it looks where a pixel is as large as a texel; 0 is none.

    It is painted on black and on white, which tells how much of a texel is covered.
    """
    texel_m = TEXEL_M * 2**level
    rows, columns = shape
    eye_m = EYE_TEXELS * texel_m
    place = plane + np.array([columns * texel_m / 2.0, eye_m, rows * texel_m / 2.0], np.float32)
    pose = np.concatenate([place, LOOKS_DOWN]).astype(np.float32)[None]
    # Without pitch, and so that a texel of ground is a pixel.
    camera = np.array([[0.0, 0.0, 0.0, 1.0, EYE_TEXELS / (columns / 2.0)]], np.float32)
    ink, deviation = scene.ink.copy(), scene.deviation.copy()
    if level < BANDED_LEVELS:
        deviation[BAND_STEPS:] = np.inf
    else:
        for name in BANDED:
            ink[INK[name] : INK[name] + 2] = ink[INK[name] : INK[name] + 2].mean()
    bare = scene._replace(
        deviation=deviation,
        neighbours=np.full_like(scene.neighbours, -1),
        gates=scene.gates[:0],
        view_m=NO_HAZE_M,
    )
    painted = []
    for background in (0.0, 255.0):
        ink[[INK[name] for name in BACKGROUND]] = background
        out = np.empty((1, rows, columns), np.uint8)
        no_cars = np.zeros((0, pose.shape[1]), np.float32)
        zone = np.array([-scene.num_before])
        paint_frames(pose, zone, bare._replace(ink=ink), camera, no_cars, new_scratch(), out)
        painted.append(_smoothed(out[0]))
    values = _uncovered(*painted)
    values[[0, -1]], values[:, [0, -1]] = 0, 0
    return values


def _uncovered(on_black: NDArray[np.uint16], on_white: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Returns uint8 brightness of what covers at least half of a texel, at least 1, and 0 elsewhere."""
    cover = WHITE - (on_white - on_black)
    values = np.maximum((on_black + WEIGHTS // 2) // WEIGHTS, 1).astype(np.uint8)
    partly = np.nonzero(cover < WHITE)
    share = cover[partly] / WHITE
    full = on_black[partly] / (WEIGHTS * np.maximum(share, 0.5))
    values[partly] = np.where(share > 0.5, np.clip(full + 0.5, 1.0, 255.0), 0.0).astype(np.uint8)
    return values


def _smoothed(picture: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Returns the picture with every texel spread over its neighbours, so that what moves by less than one shows.

    Sums with the weights 1, 2, 1 either way, `WEIGHTS` times the brightness.
    """
    wide = np.pad(picture, 1, mode="edge").astype(np.uint16)
    tall = wide[:-2] + 2 * wide[1:-1] + wide[2:]
    return tall[:, :-2] + 2 * tall[:, 1:-1] + tall[:, 2:]
