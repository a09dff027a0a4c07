"""What the blocks of a Stadium map say of the ground where a recording says less.

A cell is 32 x 8 x 32 m. How a block is shaped only the game's meshes tell, but many are level, a metre above the floor
of their cell. There a car that hopped had road under it, and a turbo block is a pad from edge to edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.observation import TURBO_IDS
from rulka.tracks.difficulty import ASPHALT
from rulka.tracks.track import NO_GROUND

CELL_M, LEVEL_M = 32.0, 1.0
LEVEL_BLOCKS = tuple(
    f"Stadium{name}"
    for name in (
        "RoadMain",
        "RoadMainTurbo",
        "RoadMainCheckpoint",
        "RoadMainFinishLine",
        "RoadMainStartFinishLine",
        "RoadMainGTCurve2",
        "RoadMainGTCurve3",
        "RoadMainGTCurve4",
        "RoadMainGTCurve5",
        "PlatformToRoad",
    )
)
"""Recordings show them level; others may be, too."""
NEAR_M, HOP_M = 0.3, 1.5
"""A line so near to a level block is on it, and one this far above it hops over it."""
FRONT_M, REAR_M = 0.7, 2.3
"""The wheels are so far ahead of the centre of mass and behind it: any of them on a pad is enough."""


class MapBlock(NamedTuple):
    """A block of a map.

    Attributes:
        name: of its model.
        floor_m: world position of the middle of its floor.
    """

    name: str
    floor_m: tuple[float, float, float]


def add_blocks(
    centre: NDArray[np.float64],
    material: NDArray[np.uint8],
    blocks: Sequence[MapBlock],
    *,
    has_pads: bool,
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Returns the line of a track and its material, corrected where level blocks lie under it.

    Args:
        centre: [Z, 3] the line on the ground, in gaps the path of the flight.
        material: [Z] ids, `NO_GROUND` in gaps.
        blocks: of the map.
        has_pads: the material tells of turbo pads already, and better.
    """
    columns: dict[tuple[int, int], list[MapBlock]] = {}
    for block in blocks:
        if block.name in LEVEL_BLOCKS:
            columns.setdefault(_cell(block.floor_m), []).append(block)
    centre, material = centre.copy(), material.copy()
    if not columns:
        return centre, material
    along = np.gradient(centre, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    reach = centre[:, None] + np.array([0.0, FRONT_M, -REAR_M])[:, None] * along[:, None]
    for first, landed in gaps_of(material):
        level = [_level_block(columns, point, HOP_M) for point in centre[first:landed]]
        tops_m = [block.floor_m[1] + LEVEL_M for block in level if block is not None]
        if len(tops_m) == landed - first:
            centre[first:landed, 1], material[first:landed] = tops_m, ASPHALT
    for zone in np.flatnonzero(material != NO_GROUND) if not has_pads else ():
        under = [_level_block(columns, point, NEAR_M) for point in reach[zone]]
        if any(block is not None and block.name.endswith("Turbo") for block in under):
            material[zone] = TURBO_IDS[0]
        elif material[zone] in TURBO_IDS and under[0] is not None:  # samples are 100 ms apart
            material[zone] = ASPHALT
    return centre, material


def gaps_of(material: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns [K, 2] the first zone of each gap, and the first behind it."""
    is_gap = (material == NO_GROUND).astype(np.int64)
    return np.flatnonzero(np.diff(is_gap, prepend=0, append=0)).reshape(-1, 2)


def _cell(point: Sequence[float] | NDArray[np.float64]) -> tuple[int, int]:
    return int(point[0] // CELL_M), int(point[2] // CELL_M)


def _level_block(
    columns: dict[tuple[int, int], list[MapBlock]], point: NDArray[np.float64], above_m: float
) -> MapBlock | None:
    """Returns the level block under a point, None if there is none that is at most so far below it."""
    for block in columns.get(_cell(point), ()):
        if -NEAR_M <= point[1] - block.floor_m[1] - LEVEL_M <= above_m:
            return block
    return None
