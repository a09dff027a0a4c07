"""How a race starts: the one rule of training, greedy checks, evaluation and demonstrations. A game has one start.

Dimensions: N cars.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.race_settings import RaceSettings

IS_ANYWHERE, ALONG, LATERAL, HEADING, NUM_CHANCES = range(5)
"""Columns of the chances that a start is made of."""
START_MARGIN_M = 20.0
"""Races that begin anywhere begin at least this far before the finish."""


class Starts(NamedTuple):
    """Where and how fast races begin; [N] each, as `Simulator.reset` takes them.

    Attributes:
        along_m: metres from the start.
        lateral_m: metres left of the centreline.
        heading_rad: turned left of the road's direction by this much.
        speed_mps: forward speed.
    """

    along_m: NDArray[np.floating]
    lateral_m: NDArray[np.floating]
    heading_rad: NDArray[np.floating]
    speed_mps: NDArray[np.floating]


def draw_starts(chance: NDArray[np.float64], settings: RaceSettings, length_m: float) -> Starts:
    """Returns where races on a track of a length begin, by [N, NUM_CHANCES] numbers in [0, 1)."""
    is_anywhere = chance[:, IS_ANYWHERE] < settings.start_anywhere
    return Starts(
        along_m=is_anywhere * chance[:, ALONG] * max(length_m - START_MARGIN_M, 0.0),
        lateral_m=(2.0 * chance[:, LATERAL] - 1.0) * settings.start_lateral_m,
        heading_rad=(2.0 * chance[:, HEADING] - 1.0) * math.radians(settings.start_heading_deg),
        speed_mps=is_anywhere * settings.start_speed_mps,
    )


def is_from_earlier(chance: NDArray[np.float64], settings: RaceSettings) -> NDArray[np.bool_]:
    """Returns which races [N] begin where an earlier one of their car was, by the chances of `draw_starts`."""
    share = chance[:, IS_ANYWHERE] - settings.start_anywhere
    return (share >= 0.0) & (share < settings.start_from_earlier)
