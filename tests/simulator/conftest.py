"""Tracks of simple shape, and the reference parameters."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable, action_table
from rulka.params import Params, reference_params
from rulka.simulator.params import SimulatorParams
from rulka.tracks.generate import lay_line
from rulka.tracks.track import Track
from tests.conftest import plain_road

TrackMaker = Callable[..., Track]


@pytest.fixture(scope="session")
def params() -> Params:
    return reference_params()


@pytest.fixture(scope="session")
def simulator_params(params: Params) -> SimulatorParams:
    return params.simulator


@pytest.fixture(scope="session")
def table() -> ActionTable:
    return action_table(5)


@pytest.fixture(scope="session")
def make_track() -> TrackMaker:
    """Makes a track from its curvature (1/m, positive left), slope (rise per metre) and constant bank."""

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
        return plain_road(lay_line(curvature(along), slope(along)), width_m, gates, bank_rad=np.full(zones, bank_rad))

    return make
