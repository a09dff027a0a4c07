"""The benchmark of labels of analog steering, on a made drive: keys of a keyboard lose nothing, the others in order."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.analog_labels import apart_m, keys_by_name
from rulka.calibration.windows import cut_windows
from rulka.datasets.races import Race
from rulka.observation import CAR, NUM_CAR_FIELDS
from rulka.params import read_params
from tests.conftest import straight_track

SPEED_MPS = 20.0


def drive(steer: float) -> Race:
    """Five seconds along a straight line, whatever the steering says: only where cars set out counts."""
    time_ms = 100 * np.arange(51, dtype=np.int64)
    state = np.zeros((51, NUM_CAR_FIELDS), np.float32)
    state[:, CAR["rotation"]], state[:, CAR["has_contact"]], state[:, CAR["material"]] = np.eye(3).ravel(), 1.0, 16.0
    state[:, CAR["position"]] = np.stack([0 * time_ms, 0 * time_ms + 0.36, SPEED_MPS * time_ms / 1000], axis=1)
    state[:, CAR["velocity"]] = [0.0, 0.0, SPEED_MPS]
    controls = np.tile(np.array([steer, 1.0, 0.0], np.float32), (500, 1))
    return Race("x", "recording", "x.Gbx", "", "straight", 5000, True, (5000,), None, controls, time_ms, state)


@pytest.mark.parametrize("steer", [0.2, -1.0])
def test_labels_lead_astray_by_what_they_lose(steer: float) -> None:
    params, races = read_params(), [drive(steer)]
    windows = cut_windows(straight_track(), races, 0)
    apart = {name: np.median(apart_m(windows, races, k, params)[:, 0]) for name, k in keys_by_name(params).items()}
    full, half, taps, decided = apart.values()
    if steer == -1.0:
        assert apart == dict.fromkeys(apart, 0.0)
    else:
        assert taps < 0.5 * half < 0.5 * full
        assert decided < 0.5 * full
