"""Checks the times of a race, of its checkpoints and of its samples against each other."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.model import Ghost

MAX_RACE_MS = 3 * 3_600_000
MIN_PERIOD_MS, MAX_PERIOD_MS = 10, 200
"""Range of the time between two samples, and the maximum from the last one to the finish: games sample every 50 or 100
ms, tools also at other periods, none more often than the game's clock ticks."""
_HINT = "The file is damaged or was made by hand: fetch it again, or use another one."


def check_times(ghost: Ghost) -> None:
    """Checks the time of a finished race; an unfinished race always passes.

    Raises:
        ContradictoryTimeError: if the time differs from the last checkpoint, a checkpoint lies outside the race or not
            after the one before, the samples end before the finish or are not `MIN_PERIOD_MS` to `MAX_PERIOD_MS` apart,
            or the time is not in (0, `MAX_RACE_MS`].
    """
    problem = None if ghost.race_time_ms is None else _problem(ghost, ghost.race_time_ms)
    if problem is not None:
        raise ContradictoryTimeError(f"the race time {ghost.race_time_ms} ms cannot be: {problem}", hint=_HINT)


def _problem(ghost: Ghost, race_time_ms: int) -> str | None:
    if not 0 < race_time_ms <= MAX_RACE_MS:
        return f"races last from 1 ms to {MAX_RACE_MS // 3_600_000} hours"
    times = ghost.checkpoint_times_ms
    if times and times[-1] != race_time_ms:
        return f"the last checkpoint was at {times[-1]} ms" if times[-1] is not None else "it has no last checkpoint"
    reached = [time for time in times if time is not None]
    if outside := [time for time in reached if not 0 < time <= race_time_ms]:
        return f"a checkpoint was at {outside[0]} ms"
    if unordered := [pair for pair in pairwise(reached) if pair[0] >= pair[1]]:
        return "a checkpoint at {} ms was followed by one at {} ms".format(*unordered[0])
    if ghost.samples is None or not len(ghost.samples):
        return None
    time_ms = ghost.samples.time_ms
    apart_ms = np.diff(time_ms)
    if (is_absurd := (apart_ms < MIN_PERIOD_MS) | (apart_ms > MAX_PERIOD_MS)).any():
        return f"two samples lie {apart_ms[is_absurd.argmax()]} ms apart, {MIN_PERIOD_MS} to {MAX_PERIOD_MS} can be"
    return f"the last sample was at {time_ms[-1]} ms" if race_time_ms > time_ms[-1] + MAX_PERIOD_MS else None
