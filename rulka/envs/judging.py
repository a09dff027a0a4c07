"""What a decision led to, car by car, in one kernel call; the rewards follow `rulka.envs.rewards`.

Dimensions: N cars, G gates.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.envs.paying import distance_to, manner_reward, speed_along
from rulka.envs.rules import (
    DIRECTION_WEIGHT,
    FAR_M,
    LINE_WEIGHT,
    NEAR_M,
    PAYS_MANNER,
    PER_LEAVING,
    PER_METRE,
    PER_SECOND,
)
from rulka.observation import WAYPOINT_STRIDE
from rulka.simulator.car.columns import R_ROTATION
from rulka.simulator.compiling import Array, cached_kernel
from rulka.simulator.race_end import LENGTH_M, NUM_MILESTONES, TOO_LONG, end_of_race

IS_OVER, IS_FULL_RACE, FURTHEST_M, SPEED_MPS, START_M, NUM_MARKS = range(NUM_MILESTONES, NUM_MILESTONES + 6)
"""Columns of how a race stands, behind its milestone (see `rulka.simulator.race_end`): over, begun at the start line,
furthest metre, speed after the last decision (kept where gained speed is paid for), metres along the centreline at its
start."""
TERMINATED, TRUNCATED, IS_RESET, FINISHED, OFF_TRACK, FULL_RACE, NUM_FLAGS = range(7)
"""Rows of the flags of a verdict, as in `rulka.envs.batch.VectorStep`."""
REWARD, PROGRESS_M, NUM_MEASURES = range(3)
"""Rows of the measures of a verdict."""


@cached_kernel
def judge(  # noqa: PLR0913, PLR0917 numba takes far longer over a tuple of arrays than over its parts
    progress: Array,
    places: NDArray[np.int64],
    has_gone: NDArray[np.bool_],
    rules: Array,
    rows: NDArray[np.float32],
    previous_keys: NDArray[np.float32],
    zones: NDArray[np.float32],
    marks: Array,
    measures: NDArray[np.float32],
    race_ms: NDArray[np.int64],
    flags: NDArray[np.bool_],
) -> int:
    """Finds out which races ended and what the decisions were worth.

    Args:
        progress: [4, N] of `rulka.simulator.physics.View`.
        places: [3 + G, N] its marks.
        has_gone: [2, N].
        rules: from `rulka.envs.rules.rule_array`.
        rows: [N, NUM_CAR_FIELDS] `CAR` rows.
        previous_keys: [N, K, 4] keys of the last actions, oldest first.
        zones: [Z, 3] float32.
        marks: [N, NUM_MARKS] how each race stands, updated. A race that was over has been begun anew by this decision.
        measures: [NUM_MEASURES, N] overwritten.
        race_ms: [N] overwritten: time since the start, of a finished race its time to the millisecond.
        flags: [NUM_FLAGS, N] overwritten.

    Returns:
        How many races are over now.
    """
    num_over = 0
    for n in range(marks.shape[0]):
        is_reset = marks[n, IS_OVER] > 0.0
        is_finished = has_gone[0, n]
        is_off_track = has_gone[1, n] and not is_finished
        along_m = min(progress[0, n], rules[LENGTH_M])
        now_ms = places[places.shape[0] - 1, n] if is_finished else places[1, n]
        marks[n, FURTHEST_M] = max(marks[n, FURTHEST_M], along_m)
        has_ended = is_finished or is_off_track
        end = end_of_race(is_finished, is_off_track, along_m, np.float64(now_ms), marks[n], rules)
        is_cut = end >= TOO_LONG and not is_reset
        gained_m = along_m - min(progress[2, n], rules[LENGTH_M])
        reward = rules[PER_METRE] * gained_m + rules[PER_SECOND] * ((now_ms - progress[3, n]) / 1000.0)
        reward += rules[PER_LEAVING] * (1.0 if is_off_track else 0.0)
        if rules[PAYS_MANNER] > 0.0:
            left_mps, up_mps = speed_along(rows[n], 0), speed_along(rows[n], 1)
            forward_mps = speed_along(rows[n], 2)
            speed_mps = np.sqrt(left_mps * left_mps + up_mps * up_mps + forward_mps * forward_mps)
            counts = forward_mps > 0.0 and not has_ended and not is_cut
            gained_mps = speed_mps - marks[n, SPEED_MPS] if counts else 0.0
            marks[n, SPEED_MPS] = speed_mps
            keys = previous_keys[n, previous_keys.shape[1] - 1]
            reward += manner_reward(rows[n], keys, zones[places[0, n]], gained_mps, forward_mps, rules)
        measures[REWARD, n] = 0.0 if is_reset else reward
        measures[PROGRESS_M, n] = marks[n, FURTHEST_M]
        race_ms[n] = now_ms
        flags[TERMINATED, n], flags[TRUNCATED, n], flags[IS_RESET, n] = has_ended, is_cut, is_reset
        flags[FINISHED, n], flags[OFF_TRACK, n] = is_finished, is_off_track
        flags[FULL_RACE, n] = marks[n, IS_FULL_RACE] > 0.0
        is_over = has_ended or is_cut
        marks[n, IS_OVER] = 1.0 if is_over else 0.0
        num_over += 1 if is_over else 0
    return num_over


@cached_kernel
def find_potentials(
    rows: NDArray[np.float32],
    zone_index: NDArray[np.int64],
    zones: NDArray[np.float32],
    rules: Array,
    out: NDArray[np.float32],
) -> None:
    """Writes the shaping potential of every car: that of its distance to the line, and that of its direction.

    See `potential` and `direction_potential` in `rulka.envs.rewards`; the line goes through the zones' centres.

    Args:
        rows: [N, NUM_CAR_FIELDS] `CAR` rows.
        zone_index: [N].
        zones: [Z, 3] float32.
        rules: from `rulka.envs.rules.rule_array`.
        out: [N] float32, overwritten.
    """
    weight = np.float32(-rules[LINE_WEIGHT])
    near_m, far_m = np.float32(rules[NEAR_M]), np.float32(rules[FAR_M])
    for n in range(rows.shape[0]):
        here = zones[zone_index[n]]
        value = weight * min(max(distance_to(rows[n], here), near_m), far_m)
        if rules[DIRECTION_WEIGHT] != 0.0:
            ahead = zones[zone_index[n] + WAYPOINT_STRIDE]
            x, y, z = ahead[0] - here[0], ahead[1] - here[1], ahead[2] - here[2]
            along = rows[n, R_ROTATION + 2] * x + rows[n, R_ROTATION + 5] * y + rows[n, R_ROTATION + 8] * z
            value += np.float32(rules[DIRECTION_WEIGHT]) * (along / np.sqrt(x * x + y * y + z * z) - np.float32(1.0))
        out[n] = value
