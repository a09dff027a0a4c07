"""Race starts: one rule for training, greedy checks, evaluation and demonstrations. The game has a fixed start.

Dimensions: N cars.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.race_settings import RaceSettings

IS_ANYWHERE, ALONG, LATERAL, HEADING, NUM_UNIFORMS = range(5)
"""Columns of the uniform random numbers that determine a start."""
START_MARGIN_M = 20.0
"""Minimum distance to the finish of races that begin anywhere on the track."""


class Starts(NamedTuple):
    """Start poses and speeds of races, [N] each, in the form that `Simulator.reset` takes.

    Attributes:
        along_m: metres from the start.
        lateral_m: metres left of the centreline.
        heading_rad: heading relative to the road, positive left.
        speed_mps: forward speed.
    """

    along_m: NDArray[np.floating]
    lateral_m: NDArray[np.floating]
    heading_rad: NDArray[np.floating]
    speed_mps: NDArray[np.floating]


def draw_starts(uniforms: NDArray[np.float64], settings: RaceSettings, length_m: float) -> Starts:
    """Returns race starts on a track of `length_m`, drawn with [N, NUM_UNIFORMS] uniform numbers in [0, 1)."""
    is_anywhere = uniforms[:, IS_ANYWHERE] < settings.start_anywhere
    return Starts(
        along_m=is_anywhere * uniforms[:, ALONG] * max(length_m - START_MARGIN_M, 0.0),
        lateral_m=(2.0 * uniforms[:, LATERAL] - 1.0) * settings.start_lateral_m,
        heading_rad=(2.0 * uniforms[:, HEADING] - 1.0) * math.radians(settings.start_heading_deg),
        speed_mps=is_anywhere * settings.start_speed_mps,
    )


def starts_from_saved_state(uniforms: NDArray[np.float64], settings: RaceSettings) -> NDArray[np.bool_]:
    """Returns [N] True for races that start from an earlier state of their car, by the numbers of `draw_starts`."""
    share = uniforms[:, IS_ANYWHERE] - settings.start_anywhere
    return (share >= 0.0) & (share < settings.start_from_earlier)
