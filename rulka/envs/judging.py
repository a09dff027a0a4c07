"""What a decision led to, car by car, in one kernel call; the rewards follow `rulka.envs.rewards`.

Dimensions: N cars, G gates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rulka.envs.rewards import MAX_DISTANCE_M, MIN_DISTANCE_M
from rulka.params import RewardParams
from rulka.simulator import compiling
from rulka.simulator.compiling import Array, cached_kernel, source_stamp

IS_OVER, IS_FULL_RACE, FURTHEST_M, FURTHEST_ZONE, PROGRESS_MS, NUM_MARKS = range(6)
"""Columns of how a race stands: over, begun at the start line, furthest metre and zone, time of the last new zone."""
TERMINATED, TRUNCATED, IS_RESET, FINISHED, OFF_TRACK, FULL_RACE, NUM_FLAGS = range(7)
"""Rows of the flags of a verdict, as in `rulka.envs.batch.VectorStep`."""
REWARD, PROGRESS_M, NUM_MEASURES = range(3)
"""Rows of the measures of a verdict."""
PER_METRE, PER_SECOND, PER_LEAVING, LENGTH_M, MAX_MS, STUCK_MS, LINE_WEIGHT, NEAR_M, FAR_M = range(9)
"""Places in the array of rules."""


def rule_array(rewards: RewardParams, length_m: float, max_race_s: float, no_progress_s: float) -> Array:
    """Returns [9] what races are judged by; kernels take every number as an argument, so that a change takes effect."""
    limits = (length_m, max_race_s * 1000.0, no_progress_s * 1000.0)
    weights = (rewards.per_metre, rewards.per_second, rewards.off_track)
    return np.array([*weights, *limits, rewards.line_distance_potential, MIN_DISTANCE_M, MAX_DISTANCE_M])


def _compile_judge(stamp: int) -> Callable[..., int]:
    """Returns the kernel `judge`; the stamp of its files is part of the key under which numba keeps it."""

    @cached_kernel
    def judge(
        progress: Array,
        places: NDArray[np.int64],
        has_gone: NDArray[np.bool_],
        rules: Array,
        marks: Array,
        measures: NDArray[np.float32],
        race_ms: NDArray[np.int64],
        flags: NDArray[np.bool_],
    ) -> int:
        num_over = 0
        for n in range(marks.shape[0] if stamp else 0):
            is_reset = marks[n, IS_OVER] > 0.0
            is_finished = has_gone[0, n]
            is_off_track = has_gone[1, n] and not is_finished
            along_m = min(progress[0, n], rules[LENGTH_M])
            now_ms = places[places.shape[0] - 1, n] if is_finished else places[1, n]
            marks[n, FURTHEST_M] = max(marks[n, FURTHEST_M], along_m)
            if places[0, n] > marks[n, FURTHEST_ZONE]:
                marks[n, FURTHEST_ZONE], marks[n, PROGRESS_MS] = places[0, n], now_ms
            has_ended = is_finished or is_off_track
            is_late = now_ms >= rules[MAX_MS] or now_ms - marks[n, PROGRESS_MS] >= rules[STUCK_MS]
            is_cut = is_late and not has_ended and not is_reset
            gained_m = along_m - min(progress[2, n], rules[LENGTH_M])
            reward = rules[PER_METRE] * gained_m + rules[PER_SECOND] * ((now_ms - progress[3, n]) / 1000.0)
            reward += rules[PER_LEAVING] * (1.0 if is_off_track else 0.0)
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

    return judge


def _compile_potentials(stamp: int) -> Callable[..., None]:
    """Returns the kernel `find_potentials`."""

    @cached_kernel
    def find_potentials(
        rows: NDArray[np.float32],
        zone_index: NDArray[np.int64],
        zones: NDArray[np.float32],
        rules: Array,
        out: NDArray[np.float32],
    ) -> None:
        weight = np.float32(-rules[LINE_WEIGHT])
        near_m, far_m = np.float32(rules[NEAR_M]), np.float32(rules[FAR_M])
        for n in range(rows.shape[0] if stamp else 0):
            # The position is the first field of a row.
            zone = zones[zone_index[n]]
            x, y, z = rows[n, 0] - zone[0], rows[n, 1] - zone[1], rows[n, 2] - zone[2]
            distance_m = np.sqrt(x * x + y * y + z * z)
            out[n] = weight * min(max(distance_m, near_m), far_m)

    return find_potentials


judge = _compile_judge(source_stamp((compiling,)))
"""Finds out which races ended and what the decisions were worth.

Args:
    progress: [4, N] of `rulka.simulator.physics.View`.
    places: [3 + G, N] its marks.
    has_gone: [2, N].
    rules: [9] from `rule_array`.
    marks: [N, NUM_MARKS] how each race stands, updated. A race that was over has been begun anew by this decision.
    measures: [NUM_MEASURES, N] overwritten.
    race_ms: [N] overwritten: time since the start, of a finished race its time to the millisecond.
    flags: [NUM_FLAGS, N] overwritten.

Returns:
    How many races are over now.
"""

find_potentials = _compile_potentials(source_stamp((compiling,)))
"""Writes the shaping potential of every car: `rulka.envs.rewards.potential` of its distance to its zone's centre.

Args:
    rows: [N, NUM_CAR_FIELDS] `CAR` rows.
    zone_index: [N].
    zones: [Z, 3] float32.
    rules: [9] from `rule_array`.
    out: [N] float32, overwritten.
"""
