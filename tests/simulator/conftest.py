"""Tracks and physics that the simulator's tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rulka.observation import ZONE_SPACING_M
from rulka.params import Params, read_params
from rulka.tracks.track import Track

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def params() -> Params:
    return read_params(ROOT / "params.yaml")


def track_of(heights_m: np.ndarray, heading_rad: np.ndarray | float = 0.0, width_m: float = 16.0) -> Track:
    """A track along +z (heading 0) with given heights, zones exactly half a metre apart."""
    num = len(heights_m)
    heading = np.broadcast_to(np.asarray(heading_rad, float), num)[:-1]
    rise = np.diff(heights_m)
    run = np.sqrt(ZONE_SPACING_M**2 - rise**2)
    steps = np.stack([run * np.sin(heading), rise, run * np.cos(heading)], axis=1)
    centre = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    centre[:, 1] += heights_m[0]
    length = (num - 1) * ZONE_SPACING_M
    return Track(
        "test",
        "test",
        centre,
        np.full(num, width_m),
        np.zeros(num),
        np.full(num, 16, np.uint8),
        np.array([length / 2, length]),
        "made by a test",
    )


@pytest.fixture
def straight() -> Track:
    return track_of(np.zeros(801))


@pytest.fixture
def crest() -> Track:
    """Flat for 100 m, then a parabolic hill that drops away with a radius of curvature of 50 m at its top."""
    along = np.arange(801) * ZONE_SPACING_M
    return track_of(10.0 - np.clip(along - 100.0, 0.0, 20.0) ** 2 / 100.0 - 0.3 * np.clip(along - 120.0, 0.0, None))
