"""Results: of one decision in each car of an environment, and of several races, to be compared.

This is all that the runtime learns of an environment beside what is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StepResult:
    """What one decision of every car led to, in the simulator or in the game. All arrays have N entries.

    Attributes:
        reward: float32, without shaping; 0 where a reset took the decision's place, or the connection
            to a game was lost.
        terminated: the race ended for good: finished or off the track.
        truncated: the race was cut by a limit, or its connection was lost.
        is_reset: a reset took the decision's place: the observation is the first of a new race.
        progress_m: float32 furthest distance along the centreline; counts from the start line, wherever the race began.
        start_m: float32 distance along the centreline at which the race began.
        race_time_ms: int64 time since the start; of a finished race its time to the millisecond.
        is_finished: the finish was crossed.
        is_off_track: the car left the track.
        is_full_race: the race began at the start line, and was not spoilt by a lost connection.

    In an environment without a track, see `rulka.envs.episodes`, an episode stands for a race, and has no metres, no
    time and no finish.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    is_reset: NDArray[np.bool_]
    progress_m: NDArray[np.float32]
    start_m: NDArray[np.float32]
    race_time_ms: NDArray[np.int64]
    is_finished: NDArray[np.bool_]
    is_off_track: NDArray[np.bool_]
    is_full_race: NDArray[np.bool_]

    @classmethod
    def without_track(
        cls,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        is_reset: NDArray[np.bool_],
    ) -> StepResult:
        """Returns the result of a decision in episodes that are no races: what a race has besides is 0 or false."""
        count = len(reward)
        nothing, never, no_time = np.zeros(count, np.float32), np.zeros(count, np.bool_), np.zeros(count, np.int64)
        return cls(reward, terminated, truncated, is_reset, nothing, nothing, no_time, never, never, never)


def rank_of_races(finish_rate: float, slowness: float | None, mean_progress_m: float) -> tuple[float, float]:
    """Returns how well somebody races, to be compared with the same of others; larger is better.

    Args:
        finish_rate: share of the races that were finished; the first that counts.
        slowness: mean time of these, or their mean time for each metre; counts next. None where none was finished.
        mean_progress_m: furthest point of all races; counts where none was finished.
    """
    return finish_rate, mean_progress_m if slowness is None else -slowness
