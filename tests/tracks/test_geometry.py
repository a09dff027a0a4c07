"""Roads that overlap themselves are refused; roads over, under and beside one another are not."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.tracks.track import DRIVEN_SOURCE, Track, TrackError
from tests.conftest import plain_road


def road(points: np.ndarray, width_m: float, source: str = "made by a test") -> Track:
    """A track along a polyline of [P, 3] points."""
    along = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
    at = np.arange(0.0, along[-1], ZONE_SPACING_M)
    centre = np.stack([np.interp(at, along, points[:, k]) for k in range(3)], axis=1)
    return plain_road(centre, width_m, name="t", source=source)


def u_turn(radius_m: float, leg_m: float = 80.0) -> np.ndarray:
    angle = np.linspace(0.0, np.pi, 400)
    bend = np.stack([radius_m - radius_m * np.cos(angle), 0 * angle, leg_m + radius_m * np.sin(angle)], axis=1)
    return np.concatenate([[[0.0, 0.0, 0.0]], bend, [[2 * radius_m, 0.0, 0.0]]])


def eight(lift_m: float) -> np.ndarray:
    """Passes its middle twice, the second time `lift_m` higher than the first."""
    turn = np.linspace(0.3, 2 * np.pi - 0.3, 4000)
    height = lift_m * (turn > np.pi / 2) * np.clip((turn - np.pi / 2) / (np.pi / 4), 0.0, 1.0)
    return np.stack([90 * np.sin(turn + np.pi / 2), height, 90 * np.sin(2 * turn + np.pi)], axis=1)


def test_a_bend_may_be_as_tight_as_half_the_width_and_a_tenth() -> None:
    road(u_turn(10.0), width_m=16.0)
    with pytest.raises(
        TrackError, match=r"track 't': the bend at \d+ m has a radius of 8\.\d m, too tight.*16.0 m wide"
    ):
        road(u_turn(8.2), width_m=16.0)


def test_a_crossing_needs_height_but_where_people_drove_it() -> None:
    assert not road(eight(8.0), width_m=10.0).is_driven
    driven = road(eight(0.0), 10.0, DRIVEN_SOURCE + " of 3 of 3 recordings")
    assert driven.is_driven
    with pytest.raises(TrackError, match=r"runs into itself: at \d+ m it is where it is again at \d+ m"):
        road(eight(0.0), width_m=10.0)
    with pytest.raises(TrackError, match="runs into itself"):
        road(eight(2.0), width_m=10.0)


def test_legs_beside_one_another_need_room() -> None:
    """Two legs that come as near as 20 m: roads 14 m wide leave 6 m between them, roads 18 m wide only 2."""
    closing = u_turn(30.0, leg_m=300.0)
    closing[-1, 0] = 20.0
    road(closing, 14.0)
    with pytest.raises(TrackError, match="runs into itself"):
        road(closing, 18.0)
