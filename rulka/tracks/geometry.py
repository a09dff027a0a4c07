"""The axes of a line in space, and a check that a road along it does not overlap itself.

Bends must not be too tight for the road's width, and no two parts of the road may be in one place.

Dimensions: Z zones, S every `STRIDE`-th of them, L points across the road.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.tracks.trigonometry import sin_cos

Floats = NDArray[np.float64]

STEEPEST_TANGENT = 0.999
"""A line steeper than this (sine) has no usable horizontal direction and keeps the last one."""
STRIDE = 4
BEND_REACH = 4
"""Curvature is measured over this many zones each way, 2 m, so that rounding in a file does not look like a bend."""
TIGHTEST = 1.1
"""Minimum radius of a bend, in half road widths, so that inner edges do not overlap."""
NEAREST_M = 3.0
"""Road surfaces closer than this, beside or above one another, count as overlapping."""
NEIGHBOUR_WIDTHS = 2.0
"""Parts of the road at most this many widths apart along it are neighbours and may be close."""
NUM_ACROSS = 7
MAX_AT_ONCE = 200_000


def line_frames(centre_m: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the axes of a road along a line without bank, so that its left axis is horizontal.

    Args:
        centre_m: [Z, 3] points along the line, no two neighbours equal.

    Returns:
        [Z, 3] each: unit tangent (central difference), left (horizontal), and normal = tangent x left.
    """
    tangent = np.gradient(np.asarray(centre_m, np.float64), axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    level = np.stack([tangent[:, 2], np.zeros(len(tangent)), -tangent[:, 0]], axis=1)
    known = np.abs(tangent[:, 1]) < STEEPEST_TANGENT
    if not known[0]:
        level[0], known[0] = (1.0, 0.0, 0.0), True
    level = level[np.maximum.accumulate(np.where(known, np.arange(len(level)), 0))]
    level -= (level * tangent).sum(axis=1, keepdims=True) * tangent
    level /= np.linalg.norm(level, axis=1, keepdims=True)
    return tangent, level, np.cross(tangent, level)


def problem_in_space(centre: Floats, width: Floats, bank: Floats) -> str | None:
    """Checks whether a road overlaps itself.

    Args:
        centre: [Z, 3] zone centres, metres.
        width: [Z] full width, metres.
        bank: [Z] roll, radians.

    Returns:
        A message with the place of the overlap, or None.
    """
    tangent, level, upright = line_frames(centre)
    sine, cosine = sin_cos(bank)
    left = cosine[:, None] * level + sine[:, None] * upright
    return _tight_bend(tangent, left, width) or _overlap(centre, left, width)


def _tight_bend(tangent: Floats, left: Floats, width: Floats) -> str | None:
    if len(tangent) <= 2 * BEND_REACH:
        return None
    change = tangent[2 * BEND_REACH :] - tangent[: -2 * BEND_REACH]
    turn = np.abs((change * left[BEND_REACH:-BEND_REACH]).sum(axis=1)) / (2 * BEND_REACH * ZONE_SPACING_M)
    use = turn * TIGHTEST * width[BEND_REACH:-BEND_REACH] / 2.0
    at = int(use.argmax())
    if use[at] <= 1.0:
        return None
    wide = width[at + BEND_REACH]
    return (
        f"the bend at {(at + BEND_REACH) * ZONE_SPACING_M:.0f} m has a radius of {1.0 / turn[at]:.1f} m, too tight for"
        f" a road {wide:.1f} m wide: its inner edges overlap"
    )


def _overlap(centre: Floats, left: Floats, width: Floats) -> str | None:
    centre, left, half = centre[::STRIDE], left[::STRIDE], width[::STRIDE] / 2.0
    first, second = _candidates(centre, half)
    across = np.linspace(-1.0, 1.0, NUM_ACROSS)
    surface = centre[:, None] + across[:, None] * (half[:, None, None] * left[:, None])
    for start in range(0, len(first), MAX_AT_ONCE // NUM_ACROSS):
        i, j = first[start : start + MAX_AT_ONCE // NUM_ACROSS], second[start : start + MAX_AT_ONCE // NUM_ACROSS]
        near = _nearest(surface[i], centre[j], left[j], half[j]) < NEAREST_M
        if near.any():
            k = int(near.argmax())
            at_m = np.array([i[k], j[k]]) * STRIDE * ZONE_SPACING_M
            return f"the road runs into itself: at {at_m[0]:.0f} m it is where it is again at {at_m[1]:.0f} m"
    return None


def _candidates(centre: Floats, half: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns pairs of zones, the earlier first, that are not neighbours but close enough for their roads to touch."""
    found: list[NDArray[np.int64]] = []
    size, widest = len(centre), half.max()
    gap = int(np.ceil(NEIGHBOUR_WIDTHS * 2.0 * widest / (STRIDE * ZONE_SPACING_M)))
    rows = max(1, MAX_AT_ONCE * 4 // size)
    for start in range(0, size, rows):
        here = centre[start : start + rows]
        later = centre[start + gap :]
        if len(later) == 0:
            break
        away2 = sum((here[:, None, k] - later[None, :, k]) ** 2 for k in range(3))
        near = np.asarray(away2) < (half[start : start + rows, None] + half[start + gap :][None] + NEAREST_M) ** 2
        pairs = np.argwhere(near)
        pairs[:, 0] += start
        pairs[:, 1] += start + gap
        found.append(pairs[pairs[:, 1] - pairs[:, 0] >= gap])
    pairs = np.concatenate(found) if found else np.zeros((0, 2), np.int64)
    return pairs[:, 0], pairs[:, 1]


def _nearest(points: Floats, centre: Floats, left: Floats, half: Floats) -> Floats:
    """Returns [P] the minimum distance from [P, L, 3] points to the lines across the road at [P, 3] zones."""
    away = points - centre[:, None]
    aside = np.clip((away * left[:, None]).sum(axis=2), -half[:, None], half[:, None])
    return np.linalg.norm(away - aside[..., None] * left[:, None], axis=2).min(axis=1)
