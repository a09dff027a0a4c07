"""Tracks of simple shape, and the parameters of the repository."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.actions import ActionTable, action_table
from rulka.params import Params, read_params
from rulka.simulator.params import SimulatorParams
from rulka.tracks.generate import lay_line
from rulka.tracks.track import Track

ROOT = Path(__file__).resolve().parents[2]
TrackMaker = Callable[..., Track]


@pytest.fixture(scope="session")
def params() -> Params:
    return read_params(ROOT / "params.yaml")


@pytest.fixture(scope="session")
def simulator_params(params: Params) -> SimulatorParams:
    return params.simulator


@pytest.fixture(scope="session")
def table() -> ActionTable:
    return action_table(5)


@pytest.fixture(scope="session")
def make_track() -> TrackMaker:
    """Makes a track from curvature (1/m, positive left), slope (rise for each metre) and bank along it."""

    def make(
        length_m: float = 400.0,
        curvature: Callable[[NDArray], NDArray] = np.zeros_like,
        slope: Callable[[NDArray], NDArray] = np.zeros_like,
        bank_rad: float = 0.0,
        width_m: float = 16.0,
        gates: tuple[float, ...] = (),
    ) -> Track:
        zones = round(length_m / 0.5) + 1
        along = np.arange(zones) * 0.5
        return Track(
            uid="test",
            name="test",
            centre_m=lay_line(curvature(along), slope(along)),
            width_m=np.full(zones, width_m),
            bank_rad=np.full(zones, bank_rad),
            material=np.full(zones, 16, np.uint8),
            edge=np.zeros(zones, np.uint8),
            gate_m=np.array([*gates, length_m]),
            source="test",
        )

    return make
