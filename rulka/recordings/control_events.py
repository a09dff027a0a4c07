"""From the controls of every tick to the inputs of a recording: the counterpart of `controls`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.recordings.controls import FULL_LOCK
from rulka.recordings.errors import UnwritableError
from rulka.recordings.inputs import FINISH_LINE, RACE_RUNNING
from rulka.recordings.model import InputEvent


def controls_to_events(controls: NDArray[np.float32], race_time_ms: int | None) -> tuple[InputEvent, ...]:
    """Returns the inputs that hold the given controls.

    Steering of full lock or none throughout becomes keys, any other an axis, rounded to 1/65536; gas and brake
    likewise, on the one axis that the game has for both. `events_to_controls` with a shift of 0 gives the same
    controls back.

    Args:
        controls: [T, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1] of every tick from 0 ms.
        race_time_ms: time of the finish, where its marker stands; None leaves it out.

    Raises:
        UnwritableError: if a control is out of range, or gas and brake are both pressed and not to their ends.
    """
    steer, gas, brake = np.asarray(controls, dtype=np.float64).T
    if not (np.abs(steer) <= 1).all() or not ((gas >= 0) & (gas <= 1) & (brake >= 0) & (brake <= 1)).all():
        message = "controls out of their range: steering must be in [-1, 1], gas and brake in [0, 1]"
        raise UnwritableError(message)
    events = [InputEvent(0, RACE_RUNNING, 1)]
    if np.isin(steer, (-1, 0, 1)).all():
        events += [*_changes("SteerLeft", steer < 0), *_changes("SteerRight", steer > 0)]
    else:
        events += _changes("Steer", _analog(steer))
    if np.isin(gas, (0, 1)).all() and np.isin(brake, (0, 1)).all():
        events += [*_changes("Accelerate", gas > 0), *_changes("Brake", brake > 0)]
    elif not ((gas > 0) & (brake > 0)).any():
        events += _changes("Gas", _analog(brake - gas))  # the game stores full gas as full lock to the left
    else:
        message = "gas and brake pressed at once and not to their ends, which one axis cannot hold"
        raise UnwritableError(message)
    end = [] if race_time_ms is None else [InputEvent(race_time_ms, FINISH_LINE, 1)]
    return (*sorted(events, key=lambda event: event.time_ms), *end)


def _analog(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return -np.rint(values * FULL_LOCK).astype(np.int64) & 0xFFFFFF


def _changes(name: str, values: NDArray) -> Iterator[InputEvent]:
    """Yields an event for every tick whose value differs from the one before; all controls begin at zero."""
    stored = values.astype(np.int64)
    for tick in np.flatnonzero(np.diff(stored, prepend=0)).tolist():
        yield InputEvent(TICK_MS * tick, name, int(stored[tick]))
