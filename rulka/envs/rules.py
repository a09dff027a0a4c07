"""What races are judged by, as one array: kernels take every number as an argument, so that a change takes effect."""

from __future__ import annotations

import numpy as np

from rulka.envs.rewards import (
    ENGINEERED_MIN_DISTANCE_M,
    MAX_DISTANCE_M,
    MIN_DISTANCE_M,
    NEO_SLIDE_MPS,
    SLIDE_SPEED_KMH,
    SLIDE_START,
)
from rulka.params import RaceEndParams, RewardParams
from rulka.simulator.compiling import Array
from rulka.simulator.race_end import NUM_LIMITS, limit_array

PER_METRE, PER_SECOND, PER_LEAVING, LINE_WEIGHT, NEAR_M, FAR_M = range(NUM_LIMITS, NUM_LIMITS + 6)
"""The first places are those of the limits of races, see `rulka.simulator.race_end`."""
DIRECTION_WEIGHT, PER_GAINED_MPS, NEO_MPS, MANNER_NEAR_M, SLIDE_STEP_KMH = range(FAR_M + 1, FAR_M + 6)
SPEED_SLIDE, NEO_SLIDE, KAMIKAZE, LINE_DISTANCE = range(SLIDE_STEP_KMH + 1, SLIDE_STEP_KMH + 5)
"""Places of the engineered rewards' weights, which follow their schedules."""
PAYS_MANNER, SLIDE_TABLE = LINE_DISTANCE + 1, LINE_DISTANCE + 2
"""Whether any reward looks at the manner of driving; and the first number of the table of speed slides."""
NUM_SLIDE_POINTS = len(SLIDE_START)


def rule_array(rewards: RewardParams, end: RaceEndParams, length_m: float) -> Array:
    """Returns [SLIDE_TABLE + NUM_SLIDE_POINTS] what races are judged by, with the schedules at their start."""
    rules = np.zeros(SLIDE_TABLE + NUM_SLIDE_POINTS)
    rules[[PER_METRE, PER_SECOND, PER_LEAVING]] = rewards.per_metre, rewards.per_second, rewards.off_track
    rules[:NUM_LIMITS] = limit_array(end, length_m)
    rules[[LINE_WEIGHT, NEAR_M, FAR_M]] = rewards.line_distance_potential, MIN_DISTANCE_M, MAX_DISTANCE_M
    rules[DIRECTION_WEIGHT] = rewards.direction_potential
    rules[PER_GAINED_MPS] = rewards.per_metre * rewards.speed_as_seconds
    rules[[NEO_MPS, MANNER_NEAR_M, SLIDE_STEP_KMH]] = NEO_SLIDE_MPS, ENGINEERED_MIN_DISTANCE_M, SLIDE_SPEED_KMH[1]
    rules[SLIDE_TABLE:] = SLIDE_START
    set_engineered(rules, rewards, env_steps=0)
    return rules


def set_engineered(rules: Array, rewards: RewardParams, env_steps: int) -> None:
    """Sets the weights of the engineered rewards to those at an environment step of the run."""
    weights = rewards.engineered
    rules[SPEED_SLIDE], rules[NEO_SLIDE] = weights.speed_slide.at(env_steps), weights.neo_slide.at(env_steps)
    rules[KAMIKAZE], rules[LINE_DISTANCE] = weights.kamikaze.at(env_steps), weights.line_distance.at(env_steps)
    rules[PAYS_MANNER] = float(rules[PER_GAINED_MPS] != 0.0 or rules[SPEED_SLIDE : LINE_DISTANCE + 1].any())
