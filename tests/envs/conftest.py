"""Environments on a short straight track, so that races end soon."""

from collections.abc import Callable
from typing import Any

import pytest

from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.tracks.track import Track
from tests.conftest import along_z, plain_road


@pytest.fixture(scope="session")
def straight() -> Track:
    """80 m along +z, 16 m wide, flat."""
    return plain_road(along_z(80.0), 16.0, (40.0,), uid="straight", name="straight")


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
