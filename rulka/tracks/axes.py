"""The axes of a line in space, from its points alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEEPEST_TANGENT = 0.999
"""A line rising more steeply than this (as a sine) has no direction on the map; it keeps the last one."""


def line_frames(centre_m: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the axes of a line without bank: a road whose left edge is level.

    Args:
        centre_m: [Z, 3] points along the line, no two neighbours alike.

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
