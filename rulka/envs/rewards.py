"""What a decision is worth: pure functions of arrays with one entry for each car.

The reward pays for progress and costs time, so that its sum over a race falls with the race time. The shaping
potential is reported beside it: a learner adds `gamma * potential(next) - potential(now)`, which changes how fast it
learns and not what is best (Ng et al. 1999). Weight 0 switches the shaping off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.params import RewardParams

MIN_DISTANCE_M, MAX_DISTANCE_M = 2.0, 25.0
"""The potential does not tell distances to the line apart below and above these."""


def decision_reward(
    progress_delta_m: NDArray[np.float64],
    duration_s: NDArray[np.float64],
    left_track: NDArray[np.bool_],
    rewards: RewardParams,
) -> NDArray[np.float32]:
    """Rewards one decision of each car.

    Args:
        progress_delta_m: [N] metres gained along the centreline; negative when driving back.
        duration_s: [N] race time that passed: a decision's length, less on crossing the finish.
        left_track: [N] the race ended here because the car left the track.
        rewards: the weights.

    Returns:
        [N] float32 rewards, without shaping.
    """
    reward = rewards.per_metre * progress_delta_m + rewards.per_second * duration_s
    return (reward + rewards.off_track * left_track).astype(np.float32)


def potential(distance_m: NDArray[np.float64], rewards: RewardParams) -> NDArray[np.float32]:
    """Shaping potential of each car: higher the nearer it is to the line.

    Args:
        distance_m: [N] from the car to the centre of its zone.
        rewards: the weights.

    Returns:
        [N] float32 in reward units; never positive where the weight is not negative.
    """
    near = np.clip(distance_m, MIN_DISTANCE_M, MAX_DISTANCE_M)
    return (-rewards.line_distance_potential * near).astype(np.float32)
