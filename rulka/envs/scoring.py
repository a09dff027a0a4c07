"""Outcomes and rewards of decisions, for cars of the simulator and of the game, in one kernel call each.

Dimensions: N cars, G gates, T decisions of a captured race.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import NUM_WHEELS, WAYPOINT_STRIDE
from rulka.contracts.schedule import Moment
from rulka.contracts.step_results import StepResult
from rulka.envs.rewards import (
    DIRECTION_WEIGHT,
    PAYS_DRIVING,
    PER_GAINED_MPS,
    direction_potential,
    driving_reward,
    finish_reward,
    line_potential,
    progress_reward,
    rule_array,
    set_engineered,
)
from rulka.simulator.car import R_CONTACT, R_POSITION, R_ROTATION, R_VELOCITY
from rulka.simulator.compiling import Array, cached_kernel, inlined_kernel
from rulka.simulator.physics import (
    ALONG_BEFORE_ROW,
    ALONG_ROW,
    FINISHED_ROW,
    OFF_TRACK_ROW,
    TIME_BEFORE_ROW,
    TIME_ROW,
    ZONE_ROW,
    View,
)
from rulka.simulator.race_end import LENGTH_M, MILESTONE_M, MILESTONE_MS, NUM_MILESTONES, TOO_LONG, end_of_race
from rulka.simulator.race_settings import RaceSettings
from rulka.tracks.track import Track

IS_OVER, IS_FULL_RACE, FURTHEST_M, SPEED_MPS, START_M, NUM_COUNTERS = range(NUM_MILESTONES, NUM_MILESTONES + 6)
"""Columns of the episode counters, after the milestone (see `rulka.simulator.race_end`): race is over, race began at
the start line, furthest distance, speed after the last decision (only kept with rewards for driving style), distance
along the centreline at the start."""
TERMINATED, TRUNCATED, IS_RESET, FINISHED, OFF_TRACK, FULL_RACE, NUM_FLAGS = range(7)
"""Rows of the flags, as in `StepResult`."""
REWARD, PROGRESS_M, NUM_MEASURES = range(3)
"""Rows of the measures."""


@inlined_kernel
def speed_along(row: NDArray[np.float32], axis: int) -> float:
    """Returns the velocity of a `CAR` row along a car axis: 0 is left, 1 up, 2 forward."""
    at = R_ROTATION + axis
    across = np.float64(row[at]) * np.float64(row[R_VELOCITY])
    up = np.float64(row[at + 3]) * np.float64(row[R_VELOCITY + 1])
    return across + up + np.float64(row[at + 6]) * np.float64(row[R_VELOCITY + 2])


@inlined_kernel
def length_of(x: Any, y: Any, z: Any) -> Any:
    """Returns the length of a vector, in the dtype of its components."""
    return np.sqrt(x * x + y * y + z * z)


@inlined_kernel
def speed_of(velocity_mps: NDArray[np.float32]) -> float:
    """Returns the length of a velocity [3]."""
    return length_of(np.float64(velocity_mps[0]), np.float64(velocity_mps[1]), np.float64(velocity_mps[2]))


@inlined_kernel
def distance_to(row: NDArray[np.float32], zone: NDArray[np.float32]) -> Any:
    """Returns the distance from a car to the centre of a zone, metres, float32."""
    return length_of(row[R_POSITION] - zone[0], row[R_POSITION + 1] - zone[1], row[R_POSITION + 2] - zone[2])


@inlined_kernel
def num_on_ground(has_contact: NDArray[np.float32]) -> int:
    """Returns the number of wheels on the ground."""
    count = 0
    for w in range(NUM_WHEELS):
        count += 1 if has_contact[w] > 0.5 else 0
    return count


@inlined_kernel
def driving_style_reward(
    row: NDArray[np.float32],
    keys: NDArray[np.float32],
    zone: NDArray[np.float32],
    counters: Array,
    goes_on: bool,
    rules: Array,
) -> float:
    """Returns a car's reward for driving style, and stores its speed in the counters."""
    left_mps, up_mps, forward_mps = speed_along(row, 0), speed_along(row, 1), speed_along(row, 2)
    speed_mps = length_of(left_mps, up_mps, forward_mps)
    # Speed gained in the last decision of a race brings no more metres.
    gained_mps = speed_mps - counters[SPEED_MPS] if goes_on and forward_mps > 0.0 else 0.0
    counters[SPEED_MPS] = speed_mps
    num_wheels = num_on_ground(row[R_CONTACT : R_CONTACT + NUM_WHEELS])
    is_full_gas = keys[0] > 0.5 and keys[1] <= 0.5
    return driving_reward(gained_mps, left_mps, forward_mps, num_wheels, is_full_gas, distance_to(row, zone), rules)


@cached_kernel
def score_step(  # noqa: PLR0913, PLR0917 numba takes far longer over a tuple of arrays than over its parts
    progress: Array,
    timing: NDArray[np.int64],
    ended: NDArray[np.bool_],
    rules: Array,
    rows: NDArray[np.float32],
    previous_keys: NDArray[np.float32],
    zones: NDArray[np.float32],
    counters: Array,
    measures: NDArray[np.float32],
    race_ms: NDArray[np.int64],
    flags: NDArray[np.bool_],
) -> int:
    """Computes which races ended, and the rewards of the decisions.

    Args:
        progress: [NUM_PROGRESS, N] of `rulka.simulator.physics.View`.
        timing: [NUM_TIMING + G, N] of the same.
        ended: [NUM_ENDS, N] of the same.
        rules: from `rulka.envs.rewards.rule_array`.
        rows: [N, NUM_CAR_FIELDS] `CAR` rows.
        previous_keys: [N, K, 4] keys of the last actions, oldest first.
        zones: [Z, 3] float32.
        counters: [N, NUM_COUNTERS] updated. A race marked as over has been reset by this decision.
        measures: [NUM_MEASURES, N] overwritten.
        race_ms: [N] overwritten: time since the start; the exact race time if finished.
        flags: [NUM_FLAGS, N] overwritten.

    Returns:
        Number of races that are over now.
    """
    num_over = 0
    for n in range(counters.shape[0]):
        is_reset = counters[n, IS_OVER] > 0.0
        is_finished = ended[FINISHED_ROW, n]
        is_off_track = ended[OFF_TRACK_ROW, n] and not is_finished
        along_m = min(progress[ALONG_ROW, n], rules[LENGTH_M])
        now_ms = timing[timing.shape[0] - 1, n] if is_finished else timing[TIME_ROW, n]
        counters[n, FURTHEST_M] = max(counters[n, FURTHEST_M], along_m)
        has_ended = is_finished or is_off_track
        end = end_of_race(is_finished, is_off_track, along_m, np.float64(now_ms), counters[n], rules)
        is_cut = end >= TOO_LONG and not is_reset
        gained_m = along_m - min(progress[ALONG_BEFORE_ROW, n], rules[LENGTH_M])
        reward = progress_reward(gained_m, (now_ms - progress[TIME_BEFORE_ROW, n]) / 1000.0, is_off_track, rules)
        if is_finished:
            reward += finish_reward(speed_of(rows[n, R_VELOCITY : R_VELOCITY + 3]), rules)
        if rules[PAYS_DRIVING] > 0.0:
            keys, zone = previous_keys[n, previous_keys.shape[1] - 1], zones[timing[ZONE_ROW, n]]
            reward += driving_style_reward(rows[n], keys, zone, counters[n], not has_ended and not is_cut, rules)
        measures[REWARD, n] = 0.0 if is_reset else reward
        measures[PROGRESS_M, n] = counters[n, FURTHEST_M]
        race_ms[n] = now_ms
        flags[TERMINATED, n], flags[TRUNCATED, n], flags[IS_RESET, n] = has_ended, is_cut, is_reset
        flags[FINISHED, n], flags[OFF_TRACK, n] = is_finished, is_off_track
        flags[FULL_RACE, n] = counters[n, IS_FULL_RACE] > 0.0
        is_over = has_ended or is_cut
        counters[n, IS_OVER] = 1.0 if is_over else 0.0
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
    """Writes the shaping potential of every car.

    Args:
        rows: [N, NUM_CAR_FIELDS] `CAR` rows.
        zone_index: [N].
        zones: [Z, 3] float32.
        rules: from `rulka.envs.rewards.rule_array`.
        out: [N] float32, overwritten.
    """
    for n in range(rows.shape[0]):
        here = zones[zone_index[n]]
        value = line_potential(distance_to(rows[n], here), rules)
        if rules[DIRECTION_WEIGHT] != 0.0:
            ahead = zones[zone_index[n] + WAYPOINT_STRIDE]
            x, y, z = ahead[0] - here[0], ahead[1] - here[1], ahead[2] - here[2]
            along = rows[n, R_ROTATION + 2] * x + rows[n, R_ROTATION + 5] * y + rows[n, R_ROTATION + 8] * z
            value += direction_potential(along / length_of(x, y, z), rules)
        out[n] = value


@cached_kernel
def score_captured(  # noqa: PLR0913, PLR0917 as above
    gained_m: Array,
    duration_s: Array,
    is_full_gas: NDArray[np.bool_],
    velocity_mps: NDArray[np.float32],
    has_contact: NDArray[np.float32],
    waypoints_m: NDArray[np.float32],
    is_finished: bool,
    rules: Array,
    reward: NDArray[np.float32],
    potential: NDArray[np.float32],
) -> None:
    """Writes the rewards and shaping potentials of one captured race.

    The race never left the track and ends with the last decision.

    Args:
        gained_m: [T] metres gained along the centreline.
        duration_s: [T] race time that passed.
        is_full_gas: [T] True if the decision's last action accelerates without braking.
        velocity_mps: [T + 1, 3] in the car's frame, before every decision and after the last.
        has_contact: [T + 1, 4] of the wheels.
        waypoints_m: [T + 1, 6] the car's zone and the next waypoint, in the car's frame.
        is_finished: whether the last decision crosses the finish.
        rules: from `rulka.envs.rewards.rule_array`.
        reward: [T] float32, overwritten.
        potential: [T + 1] float32, overwritten.
    """
    for t in range(potential.shape[0]):
        x, y, z = waypoints_m[t, 0], waypoints_m[t, 1], waypoints_m[t, 2]
        distance_m = length_of(x, y, z)
        potential[t] = line_potential(distance_m, rules)
        if rules[DIRECTION_WEIGHT] != 0.0:
            x, y, z = waypoints_m[t, 3] - x, waypoints_m[t, 4] - y, waypoints_m[t, 5] - z
            potential[t] += direction_potential(z / length_of(x, y, z), rules)
        if t == 0:
            continue
        worth = progress_reward(gained_m[t - 1], duration_s[t - 1], False, rules)
        if is_finished and t == potential.shape[0] - 1:
            worth += finish_reward(speed_of(velocity_mps[t]), rules)
        if rules[PAYS_DRIVING] > 0.0:
            before, after = velocity_mps[t - 1], velocity_mps[t]
            counts = after[2] > 0.0 and t < potential.shape[0] - 1
            gained_mps = length_of(after[0], after[1], after[2]) - length_of(before[0], before[1], before[2])
            worth += driving_reward(
                gained_mps if counts else 0.0,
                after[0],
                after[2],
                num_on_ground(has_contact[t]),
                is_full_gas[t - 1],
                distance_m,
                rules,
            )
        reward[t - 1] = worth


class Scores:
    """Race states of a batch of cars, and results of their last decisions.

    Attributes:
        counters: [N, NUM_COUNTERS] float64.
        start_m: [N] metres along the centreline at which each race began; a float64 view holding float32 values.
        measures: [NUM_MEASURES, N] float32, `race_ms`: [N] int64 and `flags`: [NUM_FLAGS, N] of the last decision;
            overwritten by the next one.
        num_over: number of races that are over.
    """

    def __init__(self, settings: RaceSettings, track: Track, view: View) -> None:
        """Compiles the kernels if necessary: a race in the game could not wait for that.

        Args:
            settings: end and rewards of the races.
            track: of the races.
            view: the cars; the simulator or the game writes into it.
        """
        self._settings, self._track, self._view = settings, track, view
        self._rules = rule_array(settings, track.length_m)
        num_cars = len(view.rows)
        self.counters = np.zeros((num_cars, NUM_COUNTERS))
        self.start_m = self.counters[:, START_M]
        self.measures = np.zeros((NUM_MEASURES, num_cars), np.float32)
        self.race_ms = np.zeros(num_cars, np.int64)
        self.flags = np.zeros((NUM_FLAGS, num_cars), np.bool_)
        self.score()
        self.find_potentials(np.empty(num_cars, np.float32))
        for written in (self.counters, self.measures, self.race_ms, self.flags):
            written[:] = 0
        self.num_over = 0

    def set_moment(self, moment: Moment) -> None:
        """Sets the engineered rewards' weights to those at a moment of the run.

        They stay until the next call. Before the first call they are those at the start of the run.
        """
        if self._settings.rewards is not None:
            set_engineered(self._rules, self._settings.rewards, moment)

    @property
    def is_over(self) -> NDArray[np.bool_]:
        """[N] True if the race has ended and was not reset yet."""
        return self.counters[:, IS_OVER] > 0.0

    def begin(self, which: NDArray[np.bool_], is_full_race: NDArray[np.bool_]) -> None:
        """Sets the counters of masked races [N] that have just begun, at the start line or not.

        Does not clear `is_over`: `score` reads it to detect an autoreset step.
        """
        counters, along_m = self.counters, np.minimum(self._view.progress[ALONG_ROW], self._track.length_m)
        counters[which, IS_FULL_RACE] = is_full_race[which]
        counters[which, FURTHEST_M] = counters[which, MILESTONE_M] = along_m[which]
        counters[which, MILESTONE_MS] = 0.0
        counters[which, START_M] = along_m[which].astype(np.float32)
        if self._rules[PER_GAINED_MPS] != 0.0:
            for n in np.flatnonzero(which):
                counters[n, SPEED_MPS] = length_of(*(speed_along(self._view.rows[n], axis) for axis in range(3)))

    def set_over(self, is_over: NDArray[np.bool_]) -> None:
        """Sets which races [N] are over."""
        self.counters[:, IS_OVER] = is_over
        self.num_over = int(is_over.sum())

    def score(self) -> None:
        """Scores the last decision of every car."""
        view = self._view
        self.num_over = score_step(
            view.progress,
            view.timing,
            view.ended,
            self._rules,
            view.rows,
            view.previous_keys,
            self._track.zones,
            self.counters,
            self.measures,
            self.race_ms,
            self.flags,
        )

    def find_potentials(self, out: NDArray[np.float32]) -> None:
        """Writes the shaping potential [N] of every car."""
        find_potentials(self._view.rows, self._view.timing[ZONE_ROW], self._track.zones, self._rules, out)

    def result(self) -> StepResult:
        """Returns the result of every car's last decision as new arrays."""
        measures, flags = self.measures.copy(), self.flags.copy()
        return StepResult(
            reward=measures[REWARD],
            terminated=flags[TERMINATED],
            truncated=flags[TRUNCATED],
            is_reset=flags[IS_RESET],
            progress_m=measures[PROGRESS_M],
            start_m=self.start_m.astype(np.float32),
            race_time_ms=self.race_ms.copy(),
            is_finished=flags[FINISHED],
            is_off_track=flags[OFF_TRACK],
            is_full_race=flags[FULL_RACE],
        )

    def facts(self) -> dict[str, NDArray]:
        """Returns the current info of all cars, arrays of N entries; also valid right after a reset."""
        view = self._view
        is_finished, is_off_track = view.ended
        return {
            "progress_m": self.counters[:, FURTHEST_M].astype(np.float32),
            "start_m": self.start_m.astype(np.float32),
            "time_ms": np.where(is_finished, view.timing[-1], view.timing[TIME_ROW]),
            "is_finished": is_finished.copy(),
            "is_off_track": is_off_track & ~is_finished,
        }
