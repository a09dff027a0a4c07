"""torchrl makes the environment by its name, as it makes gymnasium's own."""

import numpy as np
import pytest
import torch

import rulka  # noqa: F401 registers the environment
from rulka.envs.race import RaceEnv

pytest.importorskip("torchrl")

from torchrl.envs import GymEnv
from torchrl.envs.utils import check_env_specs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchrl_makes_and_drives_it_by_name(straight) -> None:
    """It passes a keyword that we do not have, and takes it back when the error is that of Python."""
    still = {"start_anywhere": 0.0, "start_lateral_m": 0.0, "start_heading_deg": 0.0}
    environment, twin = GymEnv("rulka/Race-v0", track=straight, **still), RaceEnv(straight, **still)
    check_env_specs(environment)
    state = environment.reset()
    twin.reset(seed=0)
    for _ in range(5):
        state = environment.step(state.set("action", torch.eye(12, dtype=torch.int64)[0]))["next"]
        observation, reward, _, _, _ = twin.step(0)
        assert state["reward"].item() == pytest.approx(reward)
        for name, values in observation.items():
            assert np.array_equal(state[name].numpy(), values), name
