"""Reward formulas for one car, as kernels, and their weights.

The reward pays for progress and charges for time, so that its sum over a race falls with the race time. The shaping
potential is reported separately: a learner adds `gamma * potential(next) - potential(now)`, which changes the speed of
learning but not the optimal policy (Ng et al. 1999). Engineered rewards do change the optimal policy, so their weights
are schedules that end at 0. Weight 0 switches a term off. The formulas are Linesight's
(github.com/Linesight-RL/linesight).

The kernels are inlined into those of `rulka.envs.scoring`. All weights and limits are in one array, so that changing
them needs no recompilation; numbers inside the formulas are constants.
"""

from __future__ import annotations

import numpy as np

from rulka.contracts.observation import NUM_WHEELS
from rulka.contracts.schedule import Moment
from rulka.simulator.compiling import Array, inlined_kernel
from rulka.simulator.race_end import NUM_LIMITS, limit_array
from rulka.simulator.race_params import RewardParams
from rulka.simulator.race_settings import RaceSettings

MIN_DISTANCE_M, MAX_DISTANCE_M = 2.0, 25.0
"""The potential clips the distance to the line to this range."""
ENGINEERED_MIN_DISTANCE_M = 5.0
"""The engineered reward clips it to this and `MAX_DISTANCE_M`."""
NEO_SLIDE_MPS = 2.0
SLIDE_STEP_KMH = 100.0
SLIDE_START = np.array([80.0, 80.0, 75.0, 67.0, 60.0, 55.0])
"""Threshold of a speed slide: 20 times the sideways speed in m/s, by forward speed in steps of `SLIDE_STEP_KMH`. Twice
the threshold is optimal."""

PER_METRE, PER_SECOND, PER_LEAVING, FINISH_S, LINE_WEIGHT, DIRECTION_WEIGHT, PER_GAINED_MPS = range(
    NUM_LIMITS, NUM_LIMITS + 7
)
"""Indices into the array of rules, after the race limits of `rulka.simulator.race_end`."""
SPEED_SLIDE, NEO_SLIDE, KAMIKAZE, LINE_DISTANCE = range(PER_GAINED_MPS + 1, PER_GAINED_MPS + 5)
"""Indices of the engineered rewards' scheduled weights."""
PAYS_DRIVING, NUM_RULES = LINE_DISTANCE + 1, LINE_DISTANCE + 2
"""Index of the flag that any reward for driving style is active, and the length of the array."""


def rule_array(settings: RaceSettings, length_m: float) -> Array:
    """Returns limits and weights [NUM_RULES] for a track of `length_m`, with schedules at their start."""
    rules = np.zeros(NUM_RULES)
    rules[:NUM_LIMITS] = limit_array(settings, length_m)
    if settings.rewards is not None:
        set_rewards(rules, settings.rewards)
    return rules


def set_rewards(rules: Array, rewards: RewardParams) -> None:
    """Writes reward weights into an array of rules."""
    rules[[PER_METRE, PER_SECOND, PER_LEAVING]] = rewards.per_metre, rewards.per_second, rewards.off_track
    rules[FINISH_S] = rewards.finish_as_seconds
    rules[[LINE_WEIGHT, DIRECTION_WEIGHT]] = rewards.line_distance_potential, rewards.direction_potential
    rules[PER_GAINED_MPS] = rewards.per_metre * rewards.speed_as_seconds
    set_engineered(rules, rewards, Moment(0))


def set_engineered(rules: Array, rewards: RewardParams, moment: Moment) -> None:
    """Sets the weights of the engineered rewards to those at a moment of the run."""
    weights = rewards.engineered
    rules[SPEED_SLIDE], rules[NEO_SLIDE] = weights.speed_slide.at(moment), weights.neo_slide.at(moment)
    rules[KAMIKAZE], rules[LINE_DISTANCE] = weights.kamikaze.at(moment), weights.line_distance.at(moment)
    rules[PAYS_DRIVING] = float(rules[PER_GAINED_MPS] != 0.0 or rules[SPEED_SLIDE : LINE_DISTANCE + 1].any())


@inlined_kernel
def progress_reward(gained_m: float, duration_s: float, left_track: bool, rules: Array) -> float:
    """Returns the reward for progress and time.

    Args:
        gained_m: metres gained along the centreline; negative when driving back.
        duration_s: elapsed race time: a decision's length, or less if the car crosses the finish.
        left_track: whether the race ended because the car left the track.
        rules: from `rule_array`.
    """
    reward = rules[PER_METRE] * gained_m + rules[PER_SECOND] * duration_s
    return reward + rules[PER_LEAVING] * (1.0 if left_track else 0.0)


@inlined_kernel
def finish_reward(speed_mps: float, rules: Array) -> float:
    """Returns the finish reward: that of continuing for `finish_as_seconds` at the speed over the line.

    Without it little is at stake in the last seconds, because no metres follow.
    """
    return rules[FINISH_S] * (rules[PER_METRE] * speed_mps + rules[PER_SECOND])


@inlined_kernel
def driving_reward(
    gained_mps: float,
    left_mps: float,
    forward_mps: float,
    num_wheels: int,
    is_full_gas: bool,
    distance_m: float,
    rules: Array,
) -> float:
    """Returns the reward for speed gain, slides, full gas and distance to the line, from the state after a decision.

    Args:
        gained_mps: gain in speed, in any direction; 0 if it does not count.
        left_mps: speed to the car's left.
        forward_mps: speed forward.
        num_wheels: wheels on the ground.
        is_full_gas: whether it accelerates without braking.
        distance_m: from the car to the centre of its zone.
        rules: from `rule_array`.
    """
    sideways = abs(left_mps)
    # A gain in speed pays like the metres that it brings within `speed_as_seconds`; a loss costs as much.
    reward = rules[PER_GAINED_MPS] * gained_mps
    if num_wheels == NUM_WHEELS:
        start = slide_start(forward_mps)
        amount = max(20.0 * sideways - start, 0.0) / start
        reward += rules[SPEED_SLIDE] * max(0.0, 1.0 - abs(amount - 1.0))  # 1 at the best angle, 0 far from it
    reward += rules[NEO_SLIDE] if sideways >= NEO_SLIDE_MPS else 0.0
    reward += rules[KAMIKAZE] if is_full_gas or num_wheels <= 1 else 0.0
    return reward + rules[LINE_DISTANCE] * min(max(distance_m, ENGINEERED_MIN_DISTANCE_M), MAX_DISTANCE_M)


@inlined_kernel
def slide_start(forward_mps: float) -> float:
    """Returns `SLIDE_START` at a forward speed: linearly interpolated, constant outside the table."""
    place = max(3.6 * forward_mps / SLIDE_STEP_KMH, 0.0)
    low = min(int(place), SLIDE_START.shape[0] - 2)
    share = min(place - low, 1.0)
    before, after = SLIDE_START[low], SLIDE_START[low + 1]
    return before + share * (after - before)


@inlined_kernel
def line_potential(distance_m: np.float32, rules: Array) -> np.float32:
    """Returns the potential of a distance to the line: higher when nearer; not positive."""
    near_m, far_m = np.float32(MIN_DISTANCE_M), np.float32(MAX_DISTANCE_M)
    return np.float32(-rules[LINE_WEIGHT]) * min(max(distance_m, near_m), far_m)


@inlined_kernel
def direction_potential(cosine: np.float32, rules: Array) -> np.float32:
    """Returns the potential of the cosine between car and line: 0 along it, minus twice the weight against it."""
    return np.float32(rules[DIRECTION_WEIGHT]) * (cosine - np.float32(1.0))
