"""How far the action keys of the 2020 game limited the steering.

The game stores the steering of the device and which action keys went down, not how far the car then steers: a player
toggles 20, 40, 60, 80 or 100 %. Samples hold what the car steered, so the limit is measured between one action key and
the next, and nothing has to be known of how the game counts presses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.recordings.model import Ghost

ACTION_KEYS = "ActionKeys"
"""Event whose value has a bit for each of the keys 1 to 5 that is down."""
LIMITS = np.array([1.0, 0.2, 0.4, 0.6, 0.8])
"""Share of the device's steering that the car is given; the first where nothing tells."""


def has_limits(ghost: Ghost) -> bool:
    """Whether an action key was pressed during the run."""
    return any(event.name == ACTION_KEYS and event.value for event in ghost.events)


def steer_limits(
    ghost: Ghost, time_ms: NDArray[np.int64], device: NDArray, steer: NDArray, tolerance: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Measures the limit from each press or release of an action key to the next.

    Args:
        ghost: whose action keys.
        time_ms: [S] stamp of the inputs that each sample shows.
        device: [S] steering of the device then, in [-1, 1].
        steer: [S] steering of the car.
        tolerance: difference within which both count as equal.

    Returns:
        [P] stamps, the first before all others, and [P] the limit from each on. A part in which no sample tells keeps
        the limit of the part before it.
    """
    changes = sorted({event.time_ms for event in ghost.events if event.name == ACTION_KEYS})
    starts = np.array([np.iinfo(np.int64).min, *changes], dtype=np.int64)
    part = np.searchsorted(starts, time_ms, side="right") - 1
    agrees_sl = np.abs(device[:, None] * LIMITS[None, :] - steer[:, None]) <= tolerance
    is_telling = agrees_sl.any(axis=1) & ~agrees_sl.all(axis=1)
    limits = np.ones(len(starts))
    for index in range(len(starts)):
        votes = agrees_sl[is_telling & (part == index)].sum(axis=0)
        limits[index] = LIMITS[votes.argmax()] if votes.any() else limits[max(0, index - 1)]
    return starts, limits
