"""Small races: a short straight track, so that races end soon."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.tracks.track import Track


@pytest.fixture(scope="session")
def straight() -> Track:
    """80 m along +z, 16 m wide, flat."""
    zones = 161
    centre = np.stack([np.zeros(zones), np.zeros(zones), np.arange(zones) * 0.5], axis=1)
    flat, material = np.zeros(zones), np.full(zones, 16, np.uint8)
    return Track(
        "straight", "straight", centre, flat + 16.0, flat, material, 0 * material, np.array([40.0, 80.0]), "test"
    )


@pytest.fixture
def make_env(straight) -> Callable[..., RaceEnv]:
    def make(**options: Any) -> RaceEnv:
        return RaceEnv(straight, **({"start_anywhere": 0.0} | options))

    return make


@pytest.fixture
def make_vector(straight) -> Callable[..., RaceVectorEnv]:
    def make(num_envs: int, **options: Any) -> RaceVectorEnv:
        return RaceVectorEnv(num_envs, straight, **({"start_anywhere": 0.0} | options))

    return make
