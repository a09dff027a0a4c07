"""Step results of a batch of cars, and the score of race results.

Apart from observations, this is all that the runtime learns from an environment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StepResult:
    """Result of one decision of every car, in the simulator or in the game. All arrays have N entries.

    Attributes:
        reward: float32, without shaping; 0 on an autoreset step or if the connection to a game was lost.
        terminated: True if the race finished or the car left the track.
        truncated: True if a limit cut the race, or its connection was lost.
        is_reset: True on an autoreset step: the action was ignored, and the observation is the first of a new race.
        progress_m: float32 furthest distance along the centreline from the start line, wherever the race began.
        start_m: float32 distance along the centreline at which the race began.
        race_time_ms: int64 time since the start; the exact race time if finished.
        is_finished: True if the car crossed the finish.
        is_off_track: True if the car left the track.
        is_full_race: True if the race began at the start line and did not lose its connection.

    In an environment without a track, see `rulka.envs.episodes`, an episode stands for a race. Distances and times are
    then 0, and the flags of a track are False.
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
