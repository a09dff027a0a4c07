"""Tracks from a seed: straights, bends, hairpins and chicanes over rolling hills, from a start to a finish.

Equal seeds give equal tracks. A layout that would cross itself is dropped and the next one of the same seed is tried.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.track import VERGE, Track, TrackError

START_STRAIGHT_M = 50.0
FINISH_STRAIGHT_M = 30.0
STRAIGHT_M = (15.0, 70.0)
"""Straights between shapes are this long."""
TRANSITION_M = 12.0
"""Length over which the curvature of a bend builds up."""
MAX_TRIES = 200
ASPHALT = 16
SHAPES = ("bend", "hairpin", "chicane", "sweeper")
"""Dealt like cards: each comes once, in any order, before any comes again."""
WAVES = ((310.0, 0.45), (170.0, 0.6), (95.0, 0.6))
"""Wavelength in metres and weight of the waves that make the hills."""
FLAT_START_M, FLAT_FINISH_M, FLAT_BLEND_M = 20.0, 10.0, 30.0
"""The road is level this far from start and finish, and as steep as it likes that much further on."""
CLEARANCE_WIDTHS = 2.5
"""Parts of the line that lie apart along it lie this many road widths apart on the ground."""


def generate_track(seed: int, length_m: float, width_m: float, max_slope: float, gate_spacing_m: float) -> Track:
    """Makes a point-to-point track.

    Args:
        seed: which track; any number from 0.
        length_m: distance from start to finish, at least 150 m.
        width_m: road width, the same everywhere.
        max_slope: steepest rise or fall, metres for each metre driven; below 0.5.
        gate_spacing_m: about this far apart are the checkpoints.

    Raises:
        TrackError: if no layout of this seed keeps clear of itself.
    """
    zones = round(length_m / ZONE_SPACING_M) + 1
    for attempt in range(MAX_TRIES):
        rng = np.random.default_rng([seed, attempt])
        centre = lay_line(_curvature(rng, zones), _slope(rng, zones, max_slope))
        if _is_clear(centre, CLEARANCE_WIDTHS * width_m):
            break
    else:
        message = f"no track of seed {seed} and {length_m:.0f} m keeps clear of itself; take another seed"
        raise TrackError(message)
    finish_m = (zones - 1) * ZONE_SPACING_M
    num_gates = max(1, round(finish_m / gate_spacing_m))
    return Track(
        uid=f"generated-{seed}-{length_m:.0f}",
        name=f"Generated {seed}",
        centre_m=centre,
        width_m=np.full(zones, width_m),
        bank_rad=np.zeros(zones),
        material=np.full(zones, ASPHALT, np.uint8),
        edge=np.full(zones, VERGE, np.uint8),
        gate_m=np.linspace(0.0, finish_m, num_gates + 1)[1:],
        source=f"generated from seed {seed}",
    )


def _curvature(rng: np.random.Generator, zones: int) -> NDArray[np.float64]:
    """Returns [Z] signed curvature (1/m, positive left) of a random row of straights and bends."""
    parts = [np.zeros(round(START_STRAIGHT_M / ZONE_SPACING_M))]
    sign, deck = rng.choice((-1.0, 1.0)), []
    while sum(map(len, parts)) < zones:
        deck = deck or list(rng.permutation(SHAPES))
        parts += _shape(rng, deck.pop(), sign)
        parts.append(np.zeros(round(rng.uniform(*STRAIGHT_M) / ZONE_SPACING_M)))
        sign = -sign if rng.random() < 0.7 else sign
    curvature = np.concatenate(parts)[:zones]
    curvature[-round(FINISH_STRAIGHT_M / ZONE_SPACING_M) :] = 0.0
    window = np.hanning(round(TRANSITION_M / ZONE_SPACING_M) + 2)
    return np.convolve(curvature, window / window.sum(), mode="same").astype(np.float64)


def _shape(rng: np.random.Generator, shape: str, sign: float) -> list[NDArray[np.float64]]:
    if shape == "hairpin":
        return [_arc(sign, rng.uniform(19.0, 25.0), rng.uniform(130.0, 175.0))]
    if shape == "sweeper":
        return [_arc(sign, rng.uniform(80.0, 130.0), rng.uniform(30.0, 60.0))]
    if shape == "chicane":
        radius, angle = rng.uniform(26.0, 38.0), rng.uniform(32.0, 48.0)
        return [_arc(sign, radius, angle), _arc(-sign, radius, 2 * angle), _arc(sign, radius, angle)]
    return [_arc(sign, rng.uniform(35.0, 60.0), rng.uniform(50.0, 110.0))]


def _arc(sign: float, radius_m: float, angle_deg: float) -> NDArray[np.float64]:
    return np.full(max(1, round(radius_m * np.radians(angle_deg) / ZONE_SPACING_M)), sign / radius_m)


def _slope(rng: np.random.Generator, zones: int, max_slope: float) -> NDArray[np.float64]:
    """Returns [Z] slope: a sum of smooth waves, flat at the start and the finish."""
    along = np.arange(zones) * ZONE_SPACING_M
    waves = sum(np.sin(2 * np.pi * along / length + rng.uniform(0, 2 * np.pi)) * weight for length, weight in WAVES)
    level = np.minimum(along - FLAT_START_M, along[-1] - along - FLAT_FINISH_M)
    flat = np.clip(level / FLAT_BLEND_M, 0.0, 1.0)
    slope = waves * flat
    return max_slope * slope / max(np.abs(slope).max(), 1e-9)


def lay_line(curvature: NDArray[np.float64], slope: NDArray[np.float64]) -> NDArray[np.float64]:
    """Integrates curvature and slope to [Z, 3] points exactly `ZONE_SPACING_M` apart."""
    heading = np.cumsum(curvature[:-1] + curvature[1:]) * 0.5 * ZONE_SPACING_M
    rise = ZONE_SPACING_M * np.sin(np.arctan(slope[:-1]))
    run = ZONE_SPACING_M * np.cos(np.arctan(slope[:-1]))
    steps = np.stack([run * np.sin(heading), rise, run * np.cos(heading)], axis=1)
    centre = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    centre[:, 1] += 10.0 - centre[:, 1].min()
    return centre


def _is_clear(centre: NDArray[np.float64], clearance_m: float) -> bool:
    """Tells whether parts of the line that lie apart along it also lie apart on the ground."""
    stride = 8
    points = centre[::stride, [0, 2]]
    apart = np.abs(np.subtract.outer(np.arange(len(points)), np.arange(len(points)))) * stride * ZONE_SPACING_M
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    return bool((distance[apart > np.pi * clearance_m] > clearance_m).all())
