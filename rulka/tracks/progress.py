"""Where a car is on a track: local search for the nearest zone, then distance along, beside and above the line.

The search starts at the last known zone and walks downhill, so that a crossing, a bridge or a parallel straight is
never mistaken for progress.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.track import Track

FRAME_COLUMNS = 9


def zone_frames(track: Track) -> NDArray[np.float64]:
    """Returns [Z + extra, 9]: unit tangent, left and normal of the road at every zone, world coordinates.

    Left is horizontal but for the bank, which lifts it where positive; the normal completes the frame
    (normal = tangent x left). The tangent is the central difference of the zone centres.
    """
    zones = np.asarray(track.zones, np.float64)
    tangent = np.gradient(zones, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    flat_left = np.stack([tangent[:, 2], np.zeros(len(zones)), -tangent[:, 0]], axis=1)
    flat_left /= np.maximum(np.linalg.norm(flat_left, axis=1, keepdims=True), 1e-9)
    flat_normal = np.cross(tangent, flat_left)
    bank = np.concatenate([track.bank_rad, np.full(len(zones) - track.num_zones, track.bank_rad[-1])])[:, None]
    left = np.cos(bank) * flat_left + np.sin(bank) * flat_normal
    return np.ascontiguousarray(np.concatenate([tangent, left, np.cross(tangent, left)], axis=1))


@njit(cache=True, nogil=True)
def nearest_zone(
    x: float, y: float, z: float, centre: NDArray[np.float64], last_index: int, max_steps: int
) -> int:
    """Walks from `last_index` to the next local minimum of the distance to a zone centre.

    Args:
        x: world position, metres; likewise `y` and `z`.
        y: see `x`.
        z: see `x`.
        centre: [Z, 3] zone centres.
        last_index: zone to start from.
        max_steps: zones walked at most; bounds the work where the car has jumped far away.

    Returns:
        Index of the zone.
    """
    index = last_index
    here = (centre[index, 0] - x) ** 2 + (centre[index, 1] - y) ** 2 + (centre[index, 2] - z) ** 2
    for step in (1, -1):
        for _ in range(max_steps):
            other = index + step
            if other < 0 or other >= centre.shape[0]:
                break
            there = (centre[other, 0] - x) ** 2 + (centre[other, 1] - y) ** 2 + (centre[other, 2] - z) ** 2
            if there >= here:
                break
            index, here = other, there
        if index != last_index:
            break
    return index


@njit(cache=True, nogil=True)
def locate(
    x: float,
    y: float,
    z: float,
    centre: NDArray[np.float64],
    frames: NDArray[np.float64],
    last_index: int,
    max_steps: int,
    spacing_m: float,
) -> tuple[int, float, float, float]:
    """Finds a position in road coordinates.

    Args:
        x: world position, metres; likewise `y` and `z`.
        y: see `x`.
        z: see `x`.
        centre: [Z, 3] zone centres.
        frames: [Z, 9] from `zone_frames`.
        last_index: zone found before.
        max_steps: see `nearest_zone`.
        spacing_m: distance between zones.

    Returns:
        Zone index; metres along the line, left of it, and above the road's surface along its normal.
    """
    index = nearest_zone(x, y, z, centre, last_index, max_steps)
    dx, dy, dz = x - centre[index, 0], y - centre[index, 1], z - centre[index, 2]
    frame = frames[index]
    along = index * spacing_m + dx * frame[0] + dy * frame[1] + dz * frame[2]
    lateral = dx * frame[3] + dy * frame[4] + dz * frame[5]
    height = dx * frame[6] + dy * frame[7] + dz * frame[8]
    return index, along, lateral, height


@njit(cache=True, nogil=True)
def _walk(
    positions: NDArray[np.float64],
    centre: NDArray[np.float64],
    frames: NDArray[np.float64],
    start_index: int,
    max_steps: int,
    spacing_m: float,
) -> NDArray[np.float64]:
    out = np.empty((positions.shape[0], 3))
    index = start_index
    for i in range(positions.shape[0]):
        index, along, lateral, _height = locate(
            positions[i, 0], positions[i, 1], positions[i, 2], centre, frames, index, max_steps, spacing_m
        )
        out[i, 0], out[i, 1], out[i, 2] = index, along, lateral
    return out


PATH_SEARCH_ZONES = 400
"""Zones searched between two samples of a driven path: 200 m, more than any car covers in 100 ms."""


def progress_along(
    track: Track, position_m: NDArray, start_index: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Follows a driven path along a track.

    Args:
        track: the track.
        position_m: [S, 3] world positions in driving order, at most 200 m apart.
        start_index: zone at which the search starts.

    Returns:
        [S] zone indices, [S] metres along the line, [S] metres left of it.
    """
    found = _walk(
        np.ascontiguousarray(position_m, np.float64),
        track.zones.astype(np.float64),
        zone_frames(track),
        start_index,
        PATH_SEARCH_ZONES,
        ZONE_SPACING_M,
    )
    return found[:, 0].astype(np.int64), found[:, 1], found[:, 2]
