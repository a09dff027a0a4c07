"""What a generated road is like across: its width, roll, surface and edges.

Dimensions: Z zones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.difficulty import TURBO, Difficulty
from rulka.tracks.layout import FINISH_STRAIGHT_M, JUMP_M, START_STRAIGHT_M, Layout, eased

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

WIDTH_WAVE_M = (90.0, 220.0)
"""The width varies with wavelengths in this range."""
BANK_EASE_M = 40.0
"""Length over which a bank builds up."""
FULL_BANK_RADIUS_M = 40.0
"""Bends as tight as this have the full bank, wider ones a part of it."""
PATCH_M = (30.0, 90.0)
EDGE_M = (80.0, 240.0)
"""Lengths of stretches with one surface or one kind of edge."""
TURBO_M = 8.0
STRAIGHT_PER_M = 1e-3
"""Pads lie only where the line curves less than this."""


def draw_width(rng: np.random.Generator, zones: int, width_m: float, difficulty: Difficulty) -> Floats:
    """Returns [Z] road width: the given one, or waves about it."""
    if difficulty.width_change == 0.0:
        return np.full(zones, width_m)
    along = np.arange(zones) * ZONE_SPACING_M
    length, phase = rng.uniform(*WIDTH_WAVE_M, 3), rng.uniform(0.0, 2 * np.pi, 3)
    waves = np.sin(2 * np.pi * along / length[:, None] + phase[:, None]).mean(axis=0)
    return width_m * (1.0 + difficulty.width_change * waves / np.abs(waves).max())


def bank_of(layout: Layout, difficulty: Difficulty) -> Floats:
    """Returns [Z] roll: the inside of a bend lies lower, eased in and out; none at the start and the finish."""
    lean = np.clip(eased(layout.curvature, BANK_EASE_M) * FULL_BANK_RADIUS_M, -1.0, 1.0)
    along = np.arange(len(lean)) * ZONE_SPACING_M
    is_open = np.clip(np.minimum(along, along[-1] - along) / START_STRAIGHT_M, 0.0, 1.0)
    return -np.radians(difficulty.max_bank_deg) * lean * is_open


def draw_material(rng: np.random.Generator, layout: Layout, difficulty: Difficulty) -> Bytes:
    """Returns [Z] material ids: patches of other surfaces, and turbo pads on straights."""
    zones = len(layout.curvature)
    material = np.full(zones, difficulty.surface, np.uint8)
    if difficulty.patches:
        mean_gap_m = sum(PATCH_M) / 2.0 * (1.0 / difficulty.patch_share - 1.0)
        at_m, number = START_STRAIGHT_M + rng.uniform(0.3, 1.0) * mean_gap_m, 0
        while at_m < zones * ZONE_SPACING_M - FINISH_STRAIGHT_M:
            end_m = at_m + rng.uniform(*PATCH_M)
            laid = difficulty.patches[number % len(difficulty.patches)]
            material[_zone(at_m) : _zone(min(end_m, zones * ZONE_SPACING_M - FINISH_STRAIGHT_M))] = laid
            at_m, number = end_m + rng.uniform(0.7, 1.3) * mean_gap_m, number + 1
    for at in _pad_places(rng, layout, difficulty):
        material[at : at + _zone(TURBO_M)] = TURBO
    return material


def _pad_places(rng: np.random.Generator, layout: Layout, difficulty: Difficulty) -> list[int]:
    """Returns the first zones of turbo pads: on straights, at most one in 60 m, never on a jump."""
    zones = len(layout.curvature)
    is_free = np.abs(layout.curvature) < STRAIGHT_PER_M
    is_free[: _zone(START_STRAIGHT_M / 2)] = False
    is_free[-_zone(FINISH_STRAIGHT_M) :] = False
    for start in layout.jumps:
        is_free[start : start + _zone(JUMP_M)] = False
    # A pad fires a car into the next bend: it lies at the start of a straight, with room behind it.
    room = np.lib.stride_tricks.sliding_window_view(np.pad(is_free, (0, _zone(30.0) - 1)), _zone(30.0)).all(axis=1)
    places: list[int] = []
    for at in rng.permutation(np.flatnonzero(room)):
        if len(places) >= round(difficulty.turbos_per_km * zones * ZONE_SPACING_M / 1000.0):
            break
        if all(abs(int(at) - other) > _zone(60.0) for other in places):
            places.append(int(at))
    return places


def draw_edges(rng: np.random.Generator, is_bridge: NDArray[np.bool_], difficulty: Difficulty) -> Bytes:
    """Returns [Z] edge kinds: stretches of the difficulty's kinds, and those of bridges on them."""
    edge = np.full(len(is_bridge), difficulty.edges[0], np.uint8)
    at = 0
    while len(set(difficulty.edges)) > 1 and at < len(edge):
        end = at + _zone(rng.uniform(*EDGE_M))
        edge[at:end], at = rng.choice(difficulty.edges), end
    edge[is_bridge] = difficulty.bridge_edge
    return edge


def _zone(at_m: float) -> int:
    return round(at_m / ZONE_SPACING_M)
