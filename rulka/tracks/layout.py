"""Where a generated line goes: a row of straights and shapes as curvature, and where its jumps are.

Dimensions: Z zones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.difficulty import Arc, Difficulty

Floats = NDArray[np.float64]

START_STRAIGHT_M = 50.0
FINISH_STRAIGHT_M = 30.0
TRANSITION_M = 12.0
"""Length over which the curvature of a bend builds up."""
JUMP_M = 130.0
"""Length of the straight on which a jump lies; see `rulka.tracks.elevation`."""


@dataclass(frozen=True)
class Layout:
    """A line seen from above.

    Attributes:
        curvature: [Z] 1/m, positive left.
        jumps: zones at which the straights of its jumps begin.
    """

    curvature: Floats
    jumps: tuple[int, ...]


def draw_layout(rng: np.random.Generator, zones: int, difficulty: Difficulty) -> Layout:
    """Draws a random row of straights and shapes."""
    parts = [np.zeros(round(START_STRAIGHT_M / ZONE_SPACING_M))]
    sign, deck, heading, jumps = rng.choice((-1.0, 1.0)), [], 0.0, []
    while (laid := sum(map(len, parts))) < zones:
        deck = deck or list(rng.permutation(np.array(difficulty.shapes)))
        shape = deck.pop()
        if shape == "jump" and laid + _zones_of(JUMP_M + FINISH_STRAIGHT_M) < zones:
            jumps.append(laid)
        arcs = _shape(rng, shape, sign, difficulty)
        general = np.radians(difficulty.sweep_deg) * laid / zones
        if _strays(heading - general, _turned(arcs), difficulty.wander_deg):
            arcs, sign = [-arc for arc in arcs], -sign
        parts += arcs
        heading += _turned(arcs)
        parts.append(np.zeros(_zones_of(rng.uniform(*difficulty.straight_m))))
        sign = -sign if rng.random() < difficulty.turn_back else sign
    curvature = np.concatenate(parts)[:zones]
    curvature[-_zones_of(FINISH_STRAIGHT_M) :] = 0.0
    return Layout(eased(curvature, TRANSITION_M), tuple(jumps))


def eased(values: Floats, over_m: float) -> Floats:
    """Returns [Z] values whose steps are spread over a length."""
    window = np.hanning(_zones_of(over_m) + 2)
    return np.convolve(values, window / window.sum(), mode="same").astype(np.float64)


def _zones_of(length_m: float) -> int:
    return round(length_m / ZONE_SPACING_M)


def _shape(rng: np.random.Generator, shape: str, sign: float, difficulty: Difficulty) -> list[Floats]:
    if shape == "jump":
        return [np.zeros(_zones_of(JUMP_M))]
    if shape == "chicane":
        radius, angle = _drawn(rng, difficulty.chicane)
        return [_arc(sign, radius, angle), _arc(-sign, radius, 2 * angle), _arc(sign, radius, angle)]
    kinds = {"bend": difficulty.bend, "hairpin": difficulty.hairpin, "sweeper": difficulty.sweeper}
    return [_arc(sign, *_drawn(rng, kinds[shape]))]


def _drawn(rng: np.random.Generator, arc: Arc) -> tuple[float, float]:
    return rng.uniform(*arc.radius_m), rng.uniform(*arc.angle_deg)


def _arc(sign: float, radius_m: float, angle_deg: float) -> Floats:
    return np.full(max(1, _zones_of(radius_m * np.radians(angle_deg))), sign / radius_m)


def _turned(arcs: list[Floats]) -> float:
    return float(sum(arc.sum() for arc in arcs)) * ZONE_SPACING_M


def _strays(away: float, turn: float, wander_deg: float | None) -> bool:
    """Whether a turn leads too far from the general direction and its mirror image less so; angles in radians."""
    if wander_deg is None:
        return False
    return abs(away + turn) > np.radians(wander_deg) and abs(away - turn) < abs(away + turn)
