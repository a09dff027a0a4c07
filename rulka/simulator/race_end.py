"""Race ends: one rule for training, greedy checks, evaluation, demonstrations and races in the game.

A race ends at the finish; when the car leaves the track; after `max_race_s`; or when the car has gained less than
`min_gain_m` for `no_progress_s`. The four are checked in this order after every decision.

Training, greedy checks, gymnasium and the game apply the rule in the kernel that scores a step
(`rulka.envs.scoring`); evaluation and demonstrations use `RaceWatch`. Dimensions: N cars.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import Array, cached_kernel, inlined_kernel
from rulka.simulator.race_params import RaceEndParams

RACING, FINISHED, OFF_TRACK, TOO_LONG, STUCK = range(5)
"""Race status. All but `RACING` are ends; `TOO_LONG` and `STUCK` are truncations."""
LENGTH_M, MAX_MS, NO_PROGRESS_MS, MIN_GAIN_M, NUM_LIMITS = range(5)
"""Indices into the array of limits."""
MILESTONE_M, MILESTONE_MS, NUM_MILESTONES = range(3)
"""Columns of a milestone: where and when the car last gained `min_gain_m`."""


def limit_array(end: RaceEndParams, length_m: float) -> Array:
    """Returns [NUM_LIMITS] the limits of races on a track of `length_m`."""
    limits = np.zeros(NUM_LIMITS)
    limits[LENGTH_M], limits[MIN_GAIN_M] = length_m, end.min_gain_m
    limits[MAX_MS], limits[NO_PROGRESS_MS] = end.max_race_s * 1000.0, end.no_progress_s * 1000.0
    return limits


@inlined_kernel
def end_of_race(
    is_finished: bool, is_off_track: bool, along_m: float, now_ms: float, milestone: Array, limits: Array
) -> int:
    """Returns the status of a race after a decision.

    Args:
        is_finished: the car has passed the finish.
        is_off_track: the car has left the track.
        along_m: metres along the line, capped at the finish.
        now_ms: race time.
        milestone: [NUM_MILESTONES, or more] of the car, updated in place.
        limits: [NUM_LIMITS, or more].
    """
    reached_m = min(along_m, limits[LENGTH_M])
    if reached_m >= milestone[MILESTONE_M] + limits[MIN_GAIN_M]:
        milestone[MILESTONE_M], milestone[MILESTONE_MS] = reached_m, now_ms
    if is_finished:
        return FINISHED
    if is_off_track:
        return OFF_TRACK
    if now_ms >= limits[MAX_MS]:
        return TOO_LONG
    return STUCK if now_ms - milestone[MILESTONE_MS] >= limits[NO_PROGRESS_MS] else RACING


@inlined_kernel
def is_beyond_track(
    aside_m: float,
    height_m: float,
    upright: float,
    off_road_m: float,
    fall_m: float,
    rest_m: float,
    crash_cosine: float,
) -> bool:
    """True if a car has left the track.

    Args:
        aside_m: distance beyond the edge of the road, negative on the road.
        height_m: height above the road along its normal, 0 for a car at rest on it.
        upright: cosine between the car's up axis and that normal.
        off_road_m: largest allowed `aside_m`.
        fall_m: largest allowed distance above or below the road.
        rest_m: below this height the car touches the road and `crash_cosine` applies.
        crash_cosine: smallest allowed `upright`.
    """
    return aside_m > off_road_m or abs(height_m) > fall_m or (height_m < rest_m and upright < crash_cosine)


@cached_kernel
def find_ends(
    is_finished: NDArray[np.bool_],
    is_off_track: NDArray[np.bool_],
    along_m: Array,
    now_ms: NDArray[np.int64],
    limits: Array,
    milestones: Array,
    status: NDArray[np.int64],
) -> int:
    """Updates the status of all races, see `RaceWatch`; returns the number that ended in this call."""
    num_ended = 0
    for n in range(status.shape[0]):
        if status[n] == RACING:
            status[n] = end_of_race(
                is_finished[n], is_off_track[n], along_m[n], np.float64(now_ms[n]), milestones[n], limits
            )
            num_ended += 1 if status[n] != RACING else 0
    return num_ended


class RaceWatch:
    """Tracks the status of one race per car from start to end.

    Attributes:
        status: [N] int64 status of each race; final once the race has ended.
    """

    def __init__(self, end: RaceEndParams, length_m: float, along_m: NDArray[np.floating]) -> None:
        """Starts all races at time 0.

        Args:
            end: the limits.
            length_m: length of the track.
            along_m: [N] start of each race, metres along the line.
        """
        self._limits = limit_array(end, length_m)
        self._milestones = np.zeros((len(along_m), NUM_MILESTONES))
        self._milestones[:, MILESTONE_M] = np.minimum(along_m, length_m)
        self.status = np.full(len(along_m), RACING, np.int64)

    @property
    def is_racing(self) -> NDArray[np.bool_]:
        """[N] True for races that have not ended."""
        return self.status == RACING

    def update(
        self,
        is_finished: NDArray[np.bool_],
        is_off_track: NDArray[np.bool_],
        along_m: Array,
        now_ms: NDArray[np.int64],
    ) -> int:
        """Updates the races after a decision of every car; returns the number that ended with it.

        Args:
            is_finished: [N] the car has passed the finish.
            is_off_track: [N] the car has left the track.
            along_m: [N] metres along the line.
            now_ms: [N] race time.
        """
        return find_ends(is_finished, is_off_track, along_m, now_ms, self._limits, self._milestones, self.status)
