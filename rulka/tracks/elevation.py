"""How a generated line rises and falls: hills, jumps, and bridges where it crosses itself.

A jump is a ramp followed by a landing that falls away. A car leaves the ground where speed squared over the radius of
the crest is more than gravity: with a ramp of 0.16 at about 31 m/s.

Dimensions: Z zones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.difficulty import Difficulty
from rulka.tracks.layout import JUMP_M, Layout

Floats = NDArray[np.float64]

WAVES = ((310.0, 0.45), (170.0, 0.6), (95.0, 0.6))
"""Wavelength in metres and weight of the waves that make the hills."""
FLAT_START_M, FLAT_FINISH_M, FLAT_BLEND_M = 20.0, 10.0, 30.0
"""The road is level this far from start and finish, and as steep as it likes that much further on."""
JUMP_PROFILE = ((0.0, 0.0), (15.0, 0.0), (27.0, 1.0), (32.0, 1.0), (44.0, -0.9), (88.0, -0.9), (115.0, 0.0))
"""Metres into a jump, and slope there in parts of the ramp's."""
BRIDGE_TOP_M, BRIDGE_RAMP_M = 24.0, 95.0
"""A bridge is level this far each way from where the roads cross, and its ramps are this long."""
BRIDGE_HEIGHT_M = 9.0
"""The upper of two roads that cross is this far above the lower where they do."""
MIN_BRIDGE_M = 1.0
"""A road lifted by more than this is on a bridge."""
CROSSING_STRIDE = 16
"""Lines are compared in pieces of this many zones."""


def draw_slope(rng: np.random.Generator, layout: Layout, max_slope: float, difficulty: Difficulty) -> Floats:
    """Returns [Z] slope: a sum of smooth waves, flat at the start and the finish, with jumps in between."""
    zones = len(layout.curvature)
    along = np.arange(zones) * ZONE_SPACING_M
    waves = sum(np.sin(2 * np.pi * along / length + rng.uniform(0, 2 * np.pi)) * weight for length, weight in WAVES)
    level = np.minimum(along - FLAT_START_M, along[-1] - along - FLAT_FINISH_M)
    flat = np.clip(level / FLAT_BLEND_M, 0.0, 1.0)
    slope = waves * flat
    slope = max_slope * slope / max(np.abs(slope).max(), 1e-9)
    for start in layout.jumps:
        into = along - start * ZONE_SPACING_M
        slope *= np.clip(np.maximum(-into, into - JUMP_M) / FLAT_BLEND_M, 0.0, 1.0)
        slope += difficulty.kicker_slope * np.interp(into, *np.array(JUMP_PROFILE).T)
    return slope


def lay_line(curvature: Floats, slope: Floats) -> Floats:
    """Integrates curvature and slope to [Z, 3] points exactly `ZONE_SPACING_M` apart."""
    heading = np.cumsum(curvature[:-1] + curvature[1:]) * 0.5 * ZONE_SPACING_M
    rise = ZONE_SPACING_M * np.sin(np.arctan(slope[:-1]))
    run = ZONE_SPACING_M * np.cos(np.arctan(slope[:-1]))
    steps = np.stack([run * np.sin(heading), rise, run * np.cos(heading)], axis=1)
    centre = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    centre[:, 1] += 10.0 - centre[:, 1].min()
    return centre


def crossings(centre: Floats) -> list[tuple[int, int]]:
    """Returns the pairs of zones, the earlier first, near which a line crosses itself as seen from above."""
    ground = centre[::CROSSING_STRIDE, [0, 2]]
    first, step = ground[:-1], np.diff(ground, axis=0)
    between = first[None] - first[:, None]
    area = step[:, None, 0] * step[None, :, 1] - step[:, None, 1] * step[None, :, 0]
    area = np.where(np.abs(area) < 1e-6, np.nan, area)  # parallel, also on one line: they do not cross
    here = (between[..., 0] * step[None, :, 1] - between[..., 1] * step[None, :, 0]) / area
    there = (between[..., 0] * step[:, None, 1] - between[..., 1] * step[:, None, 0]) / area
    is_met = (here >= 0) & (here < 1) & (there >= 0) & (there < 1)
    is_met &= np.subtract.outer(np.arange(len(step)), np.arange(len(step))) < -1
    return [
        (round((i + here[i, j]) * CROSSING_STRIDE), round((j + there[i, j]) * CROSSING_STRIDE))
        for i, j in np.argwhere(is_met)
    ]


def add_bridges(layout: Layout, slope: Floats, met: list[tuple[int, int]]) -> tuple[Floats, NDArray[np.bool_]] | None:
    """Lifts the line over itself where it crosses.

    Args:
        layout: the line from above.
        slope: [Z] slope without bridges.
        met: from `crossings`.

    Returns:
        [Z] slope with bridges and [Z] whether a zone is on one; None where there is no room for one.
    """
    along = np.arange(len(slope)) * ZONE_SPACING_M
    lift, is_bridge = np.zeros(len(slope)), np.zeros(len(slope), np.bool_)
    reach_m = BRIDGE_TOP_M + BRIDGE_RAMP_M
    jumps_m = np.array([start * ZONE_SPACING_M + JUMP_M / 2 for start in layout.jumps])
    for pair in met:
        height = lay_line(layout.curvature, slope + np.gradient(lift, ZONE_SPACING_M))[:, 1]
        lower, upper = sorted(pair, key=lambda zone: height[zone])
        missing_m = BRIDGE_HEIGHT_M - (height[upper] - height[lower])
        at_m = upper * ZONE_SPACING_M
        is_near_jump = len(jumps_m) > 0 and np.abs(jumps_m - at_m).min() < reach_m + JUMP_M / 2
        has_room = reach_m < at_m < along[-1] - reach_m and abs(upper - lower) * ZONE_SPACING_M > reach_m
        if missing_m > 0 and (is_near_jump or not has_room):
            return None
        climb = np.clip((reach_m - np.abs(along - at_m)) / BRIDGE_RAMP_M, 0.0, 1.0)
        lift += max(missing_m, 0.0) * 0.5 * (1.0 - np.cos(np.pi * climb))
        is_bridge |= np.abs(along - at_m) < BRIDGE_TOP_M
    return slope + np.gradient(lift, ZONE_SPACING_M), is_bridge | (lift > MIN_BRIDGE_M)
