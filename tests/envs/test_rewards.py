import numpy as np
import pytest

from rulka.envs.rewards import decision_reward, potential
from rulka.params import RewardParams

WEIGHTS = RewardParams(per_metre=0.05, per_second=-0.4, off_track=-2.0, line_distance_potential=0.1)


def test_reward_by_hand() -> None:
    """2 m in 50 ms: 0.1 - 0.02. 3 m back: -0.15 - 0.02. Off the track on the spot: -0.02 - 2. A last 10 ms: -0.004."""
    reward = decision_reward(
        np.array([2.0, -3.0, 0.0, 0.0]),
        np.array([0.05, 0.05, 0.05, 0.01]),
        np.array([False, False, True, False]),
        WEIGHTS,
    )
    assert reward.dtype == np.float32
    assert reward == pytest.approx([0.08, -0.17, -2.02, -0.004], abs=1e-6)


def test_potential_by_hand() -> None:
    """0.1 for each metre, clamped to 2 and 25 m."""
    value = potential(np.array([0.0, 2.0, 10.0, 25.0, 80.0]), WEIGHTS)
    assert value.dtype == np.float32
    assert value == pytest.approx([-0.2, -0.2, -1.0, -2.5, -2.5])


def test_no_potential_without_weight() -> None:
    weights = WEIGHTS.model_copy(update={"line_distance_potential": 0.0})
    assert not potential(np.array([0.0, 10.0, 80.0]), weights).any()
