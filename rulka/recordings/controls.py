"""From stored inputs to the controls of every tick, and from those to labels in the action table.

With a `shift_ticks` of 0, row t holds what is pressed once all events stamped 10 t or before have happened. When the
car feels that differs between games: `rulka.recordings.alignment` measures it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS, ActionTable, shares_of_ticks
from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.inputs import RACE_RUNNING
from rulka.recordings.model import InputEvent

FULL_LOCK = 65536
"""Raw analog value of full lock or full gas."""
FULL_BYTE = 127
DONT_INVERT = "_FakeDontInverseAxis"
MAX_TICKS = 1_100_000
"""A little more than three hours, the longest race that is read."""
TAP_TICKS = 2.0
"""Taps last 30 ms or more then. The wheels need 70 ms to turn, so that shorter ones steer by less than their share, and
with longer ones the car strays further; measured, see docs/recordings.md."""
_FIRST_PATCHED_MARKER, _LAST_PATCHED_MARKER = 2, 3
_PATCHED_PHASES_MS = {"SteerLeft": (1, 2, 3), "SteerRight": (1, 2, 3), "Steer": (2, 3, 9)}
"""Sub-tick phases of the stamps that count in recordings of the competition patch; the others repeat them."""


def analog_value(raw: int) -> float:
    """Decodes an analog input: the low 24 bits are a negated signed number; returns [-1, 1], positive right."""
    signed = ((raw & 0xFFFFFF) ^ 0x800000) - 0x800000
    return min(1.0, max(-1.0, -signed / FULL_LOCK))


@dataclass
class _Pedals:
    """The state of every control after an event.

    With both direction keys down the one pressed last counts, as the samples of recordings show.
    """

    left: bool = False
    right: bool = False
    accelerate: bool = False
    brake: bool = False
    steer: float = 0.0
    gas: float = 0.0
    real_gas: float = 0.0
    real_brake: float = 0.0
    last_key: float = 0.0

    def row(self) -> tuple[float, float, float]:
        """Returns steer in [-1, 1], gas and brake in [0, 1]; a pressed key outweighs an axis."""
        steer = self.steer
        if self.left or self.right:
            steer = self.last_key if self.left and self.right else float(self.right) - float(self.left)
        gas = max(float(self.accelerate), self.gas, self.real_gas)
        brake = max(float(self.brake), -self.gas, self.real_brake)
        return steer, min(1.0, max(0.0, gas)), min(1.0, max(0.0, brake))

    def apply(self, event: InputEvent, sign: float) -> bool:
        """Takes an event in; returns whether it concerns the driving."""
        keys = {"SteerLeft": "left", "SteerRight": "right", "Accelerate": "accelerate", "Brake": "brake"}
        axes = {"Steer": "steer", "Gas": "gas", "AccelerateReal": "real_gas", "BrakeReal": "real_brake"}
        if event.name in keys:
            setattr(self, keys[event.name], event.value != 0)
            if event.value != 0 and event.name.startswith("Steer"):
                self.last_key = 1.0 if event.name == "SteerRight" else -1.0
        elif event.name in axes:
            pull = -1.0 if event.name == "Gas" else 1.0  # the game stores full gas as full lock to the left
            setattr(self, axes[event.name], pull * sign * analog_value(event.value))
        elif event.name == "SteerByte":
            self.steer = max(-1.0, event.value / FULL_BYTE)
        else:
            return False
        return True


def events_to_controls(events: Iterable[InputEvent], *, num_ticks: int, shift_ticks: int) -> NDArray[np.float32]:
    """Returns the controls that are held in every tick.

    Args:
        events: in any order; none gives released controls throughout.
        num_ticks: number of rows; at least 0.
        shift_ticks: ticks between the stamp of an event and the first row that shows it; may be negative.

    Returns:
        [num_ticks, 3] float32 steer in [-1, 1] (positive right), gas and brake in [0, 1].

    Raises:
        ContradictoryTimeError: if more ticks are asked for than any race has.
    """
    if num_ticks > MAX_TICKS:
        message = f"inputs of {num_ticks} ticks are asked for, {MAX_TICKS} is the most"
        raise ContradictoryTimeError(message)
    ordered = sorted(_quantised(tuple(events)), key=lambda event: event.time_ms)
    sign = -1.0 if any(event.name == DONT_INVERT and event.value for event in ordered) else 1.0
    pedals = _Pedals()
    first_ticks, rows = [0], [pedals.row()]
    for event in ordered:
        tick = max(0, -(-event.time_ms // TICK_MS) + shift_ticks)
        if pedals.apply(event, sign):
            first_ticks.append(tick)
            rows.append(pedals.row())
    held = np.searchsorted(np.array(first_ticks), np.arange(num_ticks), side="right") - 1
    return np.array(rows, dtype=np.float32)[held]


def _quantised(events: tuple[InputEvent, ...]) -> Iterable[InputEvent]:
    """Brings recordings of the competition patch, whose marker is 2 or 3, back to whole ticks."""
    marker = next((event.value for event in events if event.name == RACE_RUNNING), 1)
    if not _FIRST_PATCHED_MARKER <= marker <= _LAST_PATCHED_MARKER:
        return events
    kept = []
    for event in events:
        phases = _PATCHED_PHASES_MS.get(event.name)
        if phases is None:
            kept.append(event)
        elif event.time_ms % TICK_MS in phases:
            kept.append(event._replace(time_ms=-(-event.time_ms // TICK_MS) * TICK_MS))
    return kept


def tapped_steer(steer: NDArray[np.float32], dead_zone: float) -> NDArray[np.float32]:
    """Turns analog steering into direction keys that are down for as large a share of the time, in taps.

    A key goes down once the steering that it has not given adds up to `TAP_TICKS` of it, and up once it has given as
    much too much. Full steering and none are keys as they are.

    Args:
        steer: [T] in [-1, 1].
        dead_zone: steering of at most this size counts as none; in [0, 1).

    Returns:
        [T] -1, 0 or 1.
    """
    keys = np.where(np.abs(steer) > dead_zone, np.sign(steer), np.float32(0))
    is_partial = (keys != 0) & (np.abs(steer) < 1)
    key, missing = 0.0, 0.0
    for tick in np.flatnonzero(is_partial).tolist():
        if tick == 0 or not is_partial[tick - 1]:
            key, missing = float(keys[tick - 1]) if tick else 0.0, 0.0
        side = float(keys[tick])
        key = key if key == side else 0.0
        missing += float(steer[tick])
        if key == 0.0 and side * missing >= TAP_TICKS:
            key = side
        elif key != 0.0 and side * (missing - key) <= -TAP_TICKS:
            key = 0.0
        missing -= key
        keys[tick] = key
    return keys


class Labels(NamedTuple):
    """What was done in D decisions, in actions of the table.

    Attributes:
        share: [D, num_actions] float32 share of each action in the decision's ticks, summing to 1.
        action: [D] int64 the action with the largest share, the earliest held of equals.
        by_tick: [D, ticks_per_action] int64 the action of every tick.
    """

    share: NDArray[np.float32]
    action: NDArray[np.int64]
    by_tick: NDArray[np.int64]


def label_decisions(
    controls: NDArray[np.float32], table: ActionTable, tick: NDArray[np.int64], dead_zone: float
) -> Labels:
    """Labels decisions: which actions of the table were held in the ticks that follow, and for how long.

    Analog steering is tapped first, see `tapped_steer`.

    Args:
        controls: [T, 3] steer, gas and brake of every tick.
        table: the actions; each decision lasts `table.ticks_per_action` ticks.
        tick: [D] int64 first tick of each decision, in [0, T).
        dead_zone: steering of at most this size counts as none; in [0, 1).

    Returns:
        The labels. Ticks past the last row count as the last row.
    """
    action = table.index_of(controls[:, 1], controls[:, 2], tapped_steer(controls[:, 0], dead_zone), 0.0)
    rows = np.minimum(tick[:, None] + np.arange(table.ticks_per_action), len(action) - 1)
    held = action[rows]
    return Labels(*shares_of_ticks(held, table.num_actions), held)
