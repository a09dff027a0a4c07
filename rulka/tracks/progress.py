"""Track coordinates: distance along, beside and above the line, by local search.

Every zone has a plane across the road. A position lies between the planes of two neighbouring zones, and progress is
interpolated between them. So progress is continuous, and driving forward never lowers it, in bends or on straights. The
search starts at the last known zone and moves plane by plane, so a crossing, a bridge or a parallel straight is never
mistaken for progress.

Dimensions: Z zones, including those extrapolated past the finish; S samples of a path.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.machine.kernels import cached_njit
from rulka.tracks.geometry import line_frames
from rulka.tracks.track import Track
from rulka.tracks.trigonometry import sin_cos

PATH_SEARCH_ZONES = 400
"""Search range in zones between two samples of a driven path: 200 m, more than any car covers in 100 ms."""


def zone_frames(track: Track) -> NDArray[np.float64]:
    """Returns [Z, 9] the unit tangent, left and normal of the road at every zone, including bank, in world axes."""
    zones = track.exact_zones
    tangent, level, upright = line_frames(zones)
    bank = np.pad(track.bank_rad, (0, len(zones) - track.num_zones), mode="edge")[:, None]
    sine, cosine = sin_cos(bank)
    left = cosine * level + sine * upright
    return np.ascontiguousarray(np.concatenate([tangent, left, np.cross(tangent, left)], axis=1))


@cached_njit
def locate(
    position: NDArray[np.float64],
    centre: NDArray[np.float64],
    frames: NDArray[np.float64],
    last_index: int,
    max_steps: int,
    spacing_m: float,
) -> tuple[int, float, float, float]:
    """Converts a position to track coordinates. `rulka.simulator.car.find_ground` does the same search for moving cars.

    Args:
        position: [3] world, metres.
        centre: [Z, 3] zone centres, at least two.
        frames: [Z, 9] from `zone_frames`.
        last_index: zone found last, where the search starts.
        max_steps: most zones searched; bounds the work if the position has jumped.
        spacing_m: distance between zones.

    Returns:
        The zone last passed; metres along the line, left of it, and above the road's surface along its normal.
    """
    index, last = min(max(last_index, 0), centre.shape[0] - 2), centre.shape[0] - 2
    here, ahead = _beyond(position, centre, frames, index), _beyond(position, centre, frames, index + 1)
    for _ in range(max_steps):
        if ahead >= 0.0 and index < last:
            index += 1
            here, ahead = ahead, _beyond(position, centre, frames, index + 1)
        elif here < 0.0 and index > 0:
            index -= 1
            here, ahead = _beyond(position, centre, frames, index), here
        else:
            break
    between = here - ahead
    share = here / between if between > 1e-9 else 0.0
    lateral, height = 0.0, 0.0
    for k in range(3):
        away = position[k] - centre[index, k] - share * (centre[index + 1, k] - centre[index, k])
        lateral += away * (frames[index, 3 + k] + share * (frames[index + 1, 3 + k] - frames[index, 3 + k]))
        height += away * (frames[index, 6 + k] + share * (frames[index + 1, 6 + k] - frames[index, 6 + k]))
    return index, (index + share) * spacing_m, lateral, height


@cached_njit
def _beyond(
    position: NDArray[np.float64], centre: NDArray[np.float64], frames: NDArray[np.float64], zone: int
) -> float:
    """Returns the signed distance of a position past the plane of a zone, metres."""
    return (
        (position[0] - centre[zone, 0]) * frames[zone, 0]
        + (position[1] - centre[zone, 1]) * frames[zone, 1]
        + (position[2] - centre[zone, 2]) * frames[zone, 2]
    )


@cached_njit
def _walk(
    position: NDArray[np.float64],
    centre: NDArray[np.float64],
    frames: NDArray[np.float64],
    max_steps: int,
    spacing_m: float,
) -> NDArray[np.float64]:
    out = np.empty((position.shape[0], 3))
    index = 0
    for i in range(position.shape[0]):
        index, along, lateral, _height = locate(position[i], centre, frames, index, max_steps, spacing_m)
        out[i, 0], out[i, 1], out[i, 2] = index, along, lateral
    return out


def progress_along(
    track: Track, position_m: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Converts a driven path to track coordinates.

    Args:
        track: the track.
        position_m: [S, 3] world positions in driving order, at most 200 m apart.

    Returns:
        [S] zone last passed, [S] metres along the line, [S] metres left of it.
    """
    position = np.ascontiguousarray(position_m, np.float64)
    found = _walk(position, track.exact_zones, zone_frames(track), PATH_SEARCH_ZONES, ZONE_SPACING_M)
    return found[:, 0].astype(np.int64), found[:, 1], found[:, 2]
