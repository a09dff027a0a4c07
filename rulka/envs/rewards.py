"""What a decision is worth: pure functions of arrays with one entry for each car.

The reward pays for progress and costs time, so that its sum over a race falls with the race time. The shaping
potential is reported beside it: a learner adds `gamma * potential(next) - potential(now)`, which changes how fast it
learns and not what is best (Ng et al. 1999). Engineered rewards do change what is best, so their weights are schedules
that end at 0. Weight 0 switches each term off. The formulas are Linesight's (github.com/Linesight-RL/linesight).
Dimensions: N cars. The car frame is lateral, up, forward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.observation import CAR, FROM_END, NUM_WHEELS
from rulka.params import RewardParams

MIN_DISTANCE_M, MAX_DISTANCE_M = 2.0, 25.0
"""The potential does not tell distances to the line apart below and above these."""
ENGINEERED_MIN_DISTANCE_M = 5.0
"""The engineered reward does not below this, nor above `MAX_DISTANCE_M`."""

NEO_SLIDE_MPS = 2.0
LAST_FULL_GAS_ACTION = 2
"""Actions 0 to this one accelerate without braking."""
SLIDE_SPEED_KMH = (0.0, 100.0, 200.0, 300.0, 400.0, 500.0)
SLIDE_START = (80.0, 80.0, 75.0, 67.0, 60.0, 55.0)
"""A speed slide starts where 20 times the sideways speed in m/s exceeds this, by forward speed; twice it is best."""


class Happening(NamedTuple):
    """What a decision led to, but for the manner of driving; [N] each.

    Attributes:
        gained_m: metres gained along the centreline; negative when driving back.
        duration_s: race time that passed: a decision's length, less on crossing the finish.
        left_track: the race ended here because the car left the track.
        has_ended: the race ended here, at the finish, off the track or cut by a limit.
        before_mps: speed before the decision, of any direction.
    """

    gained_m: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    left_track: NDArray[np.bool_]
    has_ended: NDArray[np.bool_]
    before_mps: NDArray[np.float64]


class Manner(NamedTuple):
    """How cars drove during a decision, after it; what the engineered rewards look at.

    Attributes:
        velocity_mps: [N, 3] in the car frame.
        num_wheels_on_ground: [N] 0 to 4.
        action: [N] index into the action table.
        distance_m: [N] from the car to the centre of its zone.
    """

    velocity_mps: NDArray[np.float64]
    num_wheels_on_ground: NDArray[np.int64]
    action: NDArray[np.int64]
    distance_m: NDArray[np.float64]


def car_frame_velocity(cars: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the velocity [N, 3] of `CAR` rows [N, NUM_CAR_FIELDS] in the car frame, the same for any N to the bit."""
    rotation = cars[:, CAR["rotation"]].reshape(-1, 3, 3).astype(np.float64)
    across, up, along = (cars[:, CAR["velocity"]].astype(np.float64)[:, k, None] for k in range(3))
    return rotation[:, 0] * across + rotation[:, 1] * up + rotation[:, 2] * along


def length_of(velocity_mps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the lengths [N] of vectors [N, 3], the same for any N to the bit."""
    left, up, forward = velocity_mps.T
    return np.sqrt(left * left + up * up + forward * forward)


def manner_from_floats(floats: NDArray[np.float32], action: NDArray) -> Manner:
    """Returns how cars drove, from the floats [N, F] seen after their decisions and the last action [N] of each."""
    seen = floats.astype(np.float64)
    return Manner(
        velocity_mps=seen[:, FROM_END["velocity"]],
        num_wheels_on_ground=(floats[:, FROM_END["has_contact"]] > 0.5).sum(axis=1),
        action=np.asarray(action, np.int64),
        distance_m=length_of(seen[:, FROM_END["waypoints"]][:, :3]),
    )


def whole_reward(happening: Happening, manner: Manner, rewards: RewardParams, env_steps: int) -> NDArray[np.float32]:
    """Returns all that decisions are worth [N] at an environment step of the run, without shaping."""
    reward = decision_reward(happening.gained_m, happening.duration_s, happening.left_track, rewards)
    reward = reward + speed_reward(happening.before_mps, manner.velocity_mps, happening.has_ended, rewards)
    return reward + engineered_reward(manner, rewards, env_steps)


def potential_from_floats(floats: NDArray[np.float32], rewards: RewardParams) -> NDArray[np.float32]:
    """Returns both shaping potentials together [N], from floats [N, F]."""
    waypoints = floats[:, FROM_END["waypoints"]].astype(np.float64)
    here, ahead = waypoints[:, :3], waypoints[:, 3:6]
    if not rewards.direction_potential:
        return potential(length_of(here), rewards)
    return potential(length_of(here), rewards) + direction_potential(ahead - here, rewards)


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


def speed_reward(
    before_mps: NDArray[np.float64],
    velocity_mps: NDArray[np.float64],
    has_ended: NDArray[np.bool_],
    rewards: RewardParams,
) -> NDArray[np.float32]:
    """Rewards a gain in speed [N] as the metres that it brings within `speed_as_seconds`; a loss costs as much.

    Args:
        before_mps: [N] speed before the decision, of any direction.
        velocity_mps: [N, 3] after it, in the car frame.
        has_ended: [N] the race ended with this decision, which is worth nothing then.
        rewards: the weights.
    """
    gain = np.sqrt((velocity_mps * velocity_mps).sum(axis=1)) - before_mps
    counts = (velocity_mps[:, 2] > 0.0) & ~has_ended
    return (rewards.per_metre * rewards.speed_as_seconds * gain * counts).astype(np.float32)


def engineered_reward(manner: Manner, rewards: RewardParams, env_steps: int) -> NDArray[np.float32]:
    """Rewards the manner of driving [N], with the weights at an environment step."""
    weights = rewards.engineered
    terms = (
        (weights.speed_slide, slide_quality(manner.velocity_mps) * (manner.num_wheels_on_ground == NUM_WHEELS)),
        (weights.neo_slide, np.abs(manner.velocity_mps[:, 0]) >= NEO_SLIDE_MPS),
        (weights.kamikaze, (manner.action <= LAST_FULL_GAS_ACTION) | (manner.num_wheels_on_ground <= 1)),
        (weights.line_distance, np.clip(manner.distance_m, ENGINEERED_MIN_DISTANCE_M, MAX_DISTANCE_M)),
    )
    return sum((weight.at(env_steps) * term for weight, term in terms), np.zeros(len(manner.action))).astype(np.float32)


def slide_quality(velocity_mps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns how well cars with all wheels on the ground slide [N]: 1 for the best angle, 0 for none or far too much.

    Args:
        velocity_mps: [N, 3] in the car frame.
    """
    start = np.interp(3.6 * velocity_mps[:, 2], SLIDE_SPEED_KMH, SLIDE_START)
    amount = np.maximum(20.0 * np.abs(velocity_mps[:, 0]) - start, 0.0) / start
    return np.maximum(0.0, 1.0 - np.abs(amount - 1.0))


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


def direction_potential(line_in_car_frame: NDArray[np.float64], rewards: RewardParams) -> NDArray[np.float32]:
    """Shaping potential of each car: higher the better it points along the line; to be added to `potential`.

    Args:
        line_in_car_frame: [N, 3] from the first waypoint, the centre of the car's zone, to the second, 10 m further
            along the line; of any length but 0.
        rewards: the weights.

    Returns:
        [N] float32: 0 where the car points along the line, minus twice the weight where it points back.
    """
    forward = line_in_car_frame[:, 2] / np.sqrt((line_in_car_frame * line_in_car_frame).sum(axis=1))
    return (rewards.direction_potential * (forward - 1.0)).astype(np.float32)
