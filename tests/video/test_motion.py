"""A race between its samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rulka.contracts.observation import CAR
from rulka.evaluation.results import RaceResult
from rulka.video.motion import POSE, Motion

MakeRace = Callable[..., RaceResult]


def test_positions_by_hand(make_race: MakeRace) -> None:
    """At 20 m/s and 1.025 s, half way between two samples, the car is at 20.5 m: zone 40 (the last sample's, 20 m)."""
    moment = Motion(make_race(20)).at(1025)
    np.testing.assert_allclose(moment.pose[:3], [0.0, 0.5, 20.5], atol=1e-5)
    assert (moment.time_ms, moment.zone_index, moment.seen) == (1025, 40, 20)
    assert moment.speed_mps == pytest.approx(20.0)
    assert moment.controls == (0.0, 1.0, 0.0)
    motion = Motion(make_race(20))
    np.testing.assert_array_equal(motion.at(-500).pose, motion.race.cars[0, POSE])
    last = motion.at(60_000)
    np.testing.assert_allclose(last.pose, motion.race.cars[-1, POSE], atol=1e-6)
    assert last.time_ms == 5000  # the clock stops at the finish


def test_rotation_between_samples_is_a_rotation(make_race: MakeRace) -> None:
    """Half way between no turn and a turn of 40 degrees to the left lies a turn of 20 degrees."""
    race = make_race(20)
    angle = np.radians(40)
    turned = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    race.cars[1, CAR["rotation"]] = turned.ravel()
    rotation = Motion(race).at(25).pose[3:].reshape(3, 3)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-6)
    assert np.linalg.det(rotation) == pytest.approx(1.0)
    np.testing.assert_allclose(rotation[:, 2], [np.sin(angle / 2), 0, np.cos(angle / 2)], atol=1e-6)
