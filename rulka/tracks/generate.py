"""Tracks from a seed, in named difficulties: a line of straights and shapes over hills, from a start to a finish.

Equal seeds give equal tracks. A layout that comes too near to itself is dropped and the next one of the seed is tried.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.check import problem_in_space
from rulka.tracks.difficulty import Difficulty, difficulty_named
from rulka.tracks.elevation import add_bridges, crossings, draw_slope, lay_line
from rulka.tracks.layout import Layout, draw_layout
from rulka.tracks.surface import bank_of, draw_edges, draw_material, draw_width
from rulka.tracks.track import Track, TrackError

MAX_TRIES = 200
BRIDGE_CLEARANCE_M = 7.0
"""One part of a line may cross above another where it is this far above it."""
Line = tuple[NDArray[np.float64], NDArray[np.bool_]]
"""[Z, 3] centre and [Z] whether a zone is on a bridge."""


def generate_track(
    seed: int, length_m: float, width_m: float, max_slope: float, gate_spacing_m: float, difficulty: str = "medium"
) -> Track:
    """Makes a point-to-point track.

    Args:
        seed: which track; any number from 0.
        length_m: distance from start to finish, at least 150 m.
        width_m: road width; difficulties with a width of their own vary it.
        max_slope: steepest rise or fall, metres for each metre driven, jumps and bridges apart; below 0.5.
        gate_spacing_m: about this far apart are the checkpoints.
        difficulty: name of a `rulka.tracks.difficulty.Difficulty`; "medium" is the pipeline's.

    Raises:
        TrackError: if no layout of this seed keeps clear of itself.
        UnknownDifficultyError: if there is no such difficulty.
    """
    style = difficulty_named(difficulty)
    kind = "" if difficulty == "medium" else f"-{difficulty}"
    track = track_in_style(seed, length_m, width_m, max_slope, gate_spacing_m, style)
    uid, name = f"generated-{seed}-{length_m:.0f}{kind}", f"Generated {seed}"
    return Track(**{**vars(track), "uid": uid, "name": name, "source": f"generated from seed {seed}{kind}"})


def track_in_style(
    seed: int, length_m: float, width_m: float, max_slope: float, gate_spacing_m: float, style: Difficulty
) -> Track:
    """Makes a track in a style that need not have a name; see `generate_track`."""
    zones = round(length_m / ZONE_SPACING_M) + 1
    for attempt in range(MAX_TRIES):
        rng = np.random.default_rng([seed, attempt])
        layout = draw_layout(rng, zones, style)
        line = _laid(layout, draw_slope(rng, layout, max_slope, style), width_m, style)
        if line is None:
            continue
        centre, is_bridge = line
        material, edge = draw_material(rng, layout, style), draw_edges(rng, is_bridge, style)
        width, bank = draw_width(rng, zones, width_m, style), bank_of(layout, style)
        if problem_in_space(centre, width, bank) is None:
            break
    else:
        message = f"no track of seed {seed} and {length_m:.0f} m keeps clear of itself; take another seed"
        raise TrackError(message)
    finish_m = (zones - 1) * ZONE_SPACING_M
    num_gates = max(1, round(finish_m / gate_spacing_m))
    gate_m = np.linspace(0.0, finish_m, num_gates + 1)[1:]
    source = f"generated from seed {seed}"
    return Track(f"generated-{seed}", f"Generated {seed}", centre, width, bank, material, edge, gate_m, source)


def _laid(layout: Layout, slope: NDArray[np.float64], width_m: float, style: Difficulty) -> Line | None:
    """Returns the line with its bridges, or None where it comes too near to itself."""
    centre = lay_line(layout.curvature, slope)
    is_bridge = np.zeros(len(slope), np.bool_)
    if style.crossings[1] > 0:
        met = crossings(centre)
        if not style.crossings[0] <= len(met) <= style.crossings[1]:
            return None
        bridged = add_bridges(layout, slope, met)
        if bridged is None:
            return None
        slope, is_bridge = bridged
        centre = lay_line(layout.curvature, slope)
    is_clear = _is_clear(centre, style.clearance_widths * width_m, style.crossings[1] > 0)
    return (centre, is_bridge) if is_clear else None


def _is_clear(centre: NDArray[np.float64], clearance_m: float, may_cross: bool = False) -> bool:
    """Tells whether parts of the line that lie apart along it also lie apart on the ground, or well above it."""
    stride = 8
    points = centre[::stride, [0, 2]]
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points)))) * stride * ZONE_SPACING_M
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    is_near = (apart > np.pi * clearance_m) & (distance <= clearance_m)
    if may_cross:
        height = centre[::stride, 1]
        is_near &= np.abs(height[:, None] - height[None]) < BRIDGE_CLEARANCE_M
    return not is_near.any()
