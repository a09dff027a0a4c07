"""Checks a race time against its checkpoints and samples."""

from __future__ import annotations

from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.model import Ghost

MAX_RACE_MS = 3 * 3_600_000
MAX_AFTER_LAST_SAMPLE_MS = 200
"""Maximum time from the last sample to the finish: no game samples less often."""
_HINT = "The file is damaged or was made by hand: fetch it again, or use another one."


def check_times(ghost: Ghost) -> None:
    """Checks the time of a finished race; an unfinished race always passes.

    Raises:
        ContradictoryTimeError: if the time differs from the last checkpoint, a checkpoint lies outside the race, the
            samples end before the finish, or the time is not in (0, `MAX_RACE_MS`].
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
    outside = [time for time in times if time is not None and not 0 <= time <= race_time_ms]
    if outside:
        return f"a checkpoint was at {outside[0]} ms"
    samples = ghost.samples
    if samples is not None and len(samples) and race_time_ms > samples.time_ms[-1] + MAX_AFTER_LAST_SAMPLE_MS:
        return f"the last sample was at {samples.time_ms[-1]} ms"
    return None
