"""Corrects a track's ground with the blocks of its Stadium map where recordings say less.

A cell is 32 x 8 x 32 m. Only the game's meshes define a block's shape, but many blocks are level, one metre above the
floor of their cell. A car hopping over such a block had road under it, and a turbo block is a pad from edge to edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import TURBO_IDS
from rulka.tracks.difficulty import ASPHALT
from rulka.tracks.track import NO_GROUND

Floats = NDArray[np.float64]

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
"""Blocks that are level in recordings; others may be level too."""
NEAR_M, HOP_M = 0.3, 1.5
"""A line this close to a level block is on it; up to `HOP_M` above it, it hops over it."""
FRONT_M, REAR_M = 0.7, 2.3
"""Distance of the wheels ahead of and behind the centre of mass; one wheel on a pad is enough."""


class MapBlock(NamedTuple):
    """A block of a map.

    Attributes:
        name: name of its model.
        floor_m: world position of the middle of its floor.
    """

    name: str
    floor_m: tuple[float, float, float]


def add_blocks(
    centre: Floats,
    material: NDArray[np.uint8],
    blocks: Sequence[MapBlock],
    *,
    has_pads: bool,
) -> tuple[Floats, NDArray[np.uint8]]:
    """Returns the line and the material of a track, corrected above level blocks.

    Args:
        centre: [Z, 3] the line on the ground; in gaps, the flight path.
        material: [Z] ids, `NO_GROUND` in gaps.
        blocks: blocks of the map.
        has_pads: True if `material` already has the turbo pads, more exactly.
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
    """Returns [K, 2] the first zone of each gap and the first zone past it."""
    is_gap = (material == NO_GROUND).astype(np.int64)
    return np.flatnonzero(np.diff(is_gap, prepend=0, append=0)).reshape(-1, 2)


def _cell(point: Sequence[float] | Floats) -> tuple[int, int]:
    return int(point[0] // CELL_M), int(point[2] // CELL_M)


def _level_block(columns: dict[tuple[int, int], list[MapBlock]], point: Floats, above_m: float) -> MapBlock | None:
    """Returns the level block at most `above_m` below a point, or None."""
    for block in columns.get(_cell(point), ()):
        if -NEAR_M <= point[1] - block.floor_m[1] - LEVEL_M <= above_m:
            return block
    return None
