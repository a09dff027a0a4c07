"""A track from above, rotated to fill the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.tracks.track import Track


@dataclass(frozen=True)
class TopView:
    """Maps world points to the page: seen from above, rotated so that the track lies along the page.

    Attributes:
        centre_m: [2] world x and z of the middle of the page.
        axes: [2, 2] page directions in world x and z; never mirrored, so that left turns look left.
    """

    centre_m: NDArray[np.float64]
    axes: NDArray[np.float64]

    def __call__(self, position_m: NDArray[np.floating]) -> NDArray[np.float64]:
        """Maps world positions [..., 3] to page coordinates [..., 2] in metres, right and up."""
        ground = np.asarray(position_m, dtype=np.float64)[..., [0, 2]]
        return (ground - self.centre_m) @ self.axes.T


def top_view(track: Track) -> TopView:
    """Returns the view with the track's longest extent horizontal and its start on the left."""
    ground = track.centre_m[:, [0, 2]]
    centre_m = ground.mean(axis=0)
    direction = np.linalg.eigh(np.cov((ground - centre_m).T))[1][:, -1]
    if (ground[-1] - ground[0]) @ direction < 0:
        direction = -direction
    # From above, with x to the right, z points down the page: up is `direction` rotated by 90 degrees toward -z.
    return TopView(centre_m, np.stack([direction, np.array([direction[1], -direction[0]])]))


def road_edges(track: Track, view: TopView) -> NDArray[np.float64]:
    """Returns page coordinates [2, Z, 2] of the left and right edges of the road."""
    centre = view(track.centre_m)
    ahead = np.gradient(centre, axis=0)
    ahead /= np.maximum(np.linalg.norm(ahead, axis=1, keepdims=True), 1e-9)
    left = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1) * (track.width_m / 2.0)[:, None]
    return np.stack([centre + left, centre - left])
