"""Roads that overlap themselves are refused; roads over, under and beside one another are not."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.difficulty import DIFFICULTIES, UnknownDifficultyError
from rulka.tracks.generate import generate_track
from rulka.tracks.geometry import problem_in_space
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
    assert naive_overlap(driven)
    assert not naive_overlap(road(eight(8.0), 10.0))
    with pytest.raises(TrackError, match=r"runs into itself: at \d+ m it is where it is again at \d+ m"):
        road(eight(0.0), width_m=10.0)
    with pytest.raises(TrackError, match="runs into itself"):
        road(eight(2.0), width_m=10.0)


def test_legs_beside_one_another_need_room() -> None:
    """Two legs 40 m apart: roads 30 m wide leave 10 m between them, roads 38 m wide only 2."""
    wide_turn = u_turn(20.0)
    narrow = road(wide_turn, 30.0)
    assert problem_in_space(narrow.centre_m, narrow.width_m, narrow.bank_rad) is None
    with pytest.raises(TrackError, match=r"too tight|runs into itself"):
        road(wide_turn, width_m=38.0)


def naive_overlap(track: Track) -> bool:
    """Every point of a grid on the road against every other that is no neighbour along the line."""
    step = 3
    centre, half = track.centre_m[::step], track.width_m[::step] / 2.0
    ahead = np.gradient(track.centre_m, axis=0)[::step]
    left = np.stack([ahead[:, 2], 0 * ahead[:, 0], -ahead[:, 0]], axis=1)
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    across = np.linspace(-1, 1, 15)[:, None]
    grid = (centre[:, None] + across * half[:, None, None] * left[:, None]).reshape(-1, 3)
    zone = np.repeat(np.arange(len(centre)), 15) * step * ZONE_SPACING_M
    for at in range(0, len(grid), 5):
        apart = np.abs(zone - zone[at]) > 4.0 * half.max()
        if (np.linalg.norm(grid[apart] - grid[at], axis=1) < 2.0).any():
            return True
    return False


def test_generated_tracks_have_room_in_every_difficulty() -> None:
    assert list(DIFFICULTIES) == ["easy", "medium", "hard", "expert"]
    for name in DIFFICULTIES:
        assert not naive_overlap(generate_track(0, 700.0, 14.0, 0.1, 100.0, name))
    with pytest.raises(UnknownDifficultyError, match="no difficulty 'brutal'; there are easy, medium, hard, expert"):
        generate_track(1, 300.0, 14.0, 0.1, 100.0, "brutal")
