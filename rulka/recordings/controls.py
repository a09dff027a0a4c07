"""Converts stored inputs to controls per tick, and controls to labels in the action table.

With a `shift_ticks` of 0, row t holds the controls after all events stamped 10 t ms or earlier. When the car reacts to
them differs between games: `rulka.recordings.alignment` measures it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS, ActionTable, shares_of_ticks
from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.inputs import RACE_RUNNING
from rulka.recordings.model import InputEvent

FULL_LOCK = 65536
"""Raw analog value of full lock or full gas."""
FULL_BYTE = 127
DONT_INVERT = "_FakeDontInverseAxis"
"""Marker of a steering axis with the opposite sign; pedals are not affected."""
MAX_TICKS = 1_100_000
"""A little more than three hours, the longest race that is read."""
TAP_TICKS = 2.0
"""Makes taps last 30 ms or more. The wheels need 70 ms to turn: shorter taps steer less than their share, with longer
ones the car strays further (measured, see docs/recordings.md)."""
_FIRST_PATCHED_MARKER, _LAST_PATCHED_MARKER = 2, 3
_PATCHED_PHASES_MS = {"SteerLeft": (1, 2, 3), "SteerRight": (1, 2, 3), "Steer": (2, 3, 9)}
"""Sub-tick phases of the timestamps that count in competition-patch recordings; other phases are duplicates."""


def analog_value(raw: int) -> float:
    """Decodes an analog input to [-1, 1], positive right: the low 24 bits are a negated signed number."""
    signed = ((raw & 0xFFFFFF) ^ 0x800000) - 0x800000
    return min(1.0, max(-1.0, -signed / FULL_LOCK))


@dataclass
class _Pedals:
    """State of every control after an event.

    With both direction keys down the last one pressed wins, as recorded samples show.
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
        """Returns steer in [-1, 1], gas and brake in [0, 1]; a pressed key overrides an axis."""
        steer = self.steer
        if self.left or self.right:
            steer = self.last_key if self.left and self.right else float(self.right) - float(self.left)
        gas = max(float(self.accelerate), self.gas, self.real_gas)
        brake = max(float(self.brake), -self.gas, self.real_brake)
        return steer, min(1.0, max(0.0, gas)), min(1.0, max(0.0, brake))

    def apply(self, event: InputEvent, steer_sign: float, pedal_sign: float) -> bool:
        """Applies an event; returns True if it is a driving control."""
        keys = {"SteerLeft": "left", "SteerRight": "right", "Accelerate": "accelerate", "Brake": "brake"}
        axes = {"Steer": "steer", "Gas": "gas", "AccelerateReal": "real_gas", "BrakeReal": "real_brake"}
        if event.name in keys:
            setattr(self, keys[event.name], event.value != 0)
            if event.value != 0 and event.name.startswith("Steer"):
                self.last_key = 1.0 if event.name == "SteerRight" else -1.0
        elif event.name in axes:
            # Full gas and full brake are stored as full lock to the left is, with and without the steering's marker.
            sign = steer_sign if event.name == "Steer" else -pedal_sign
            setattr(self, axes[event.name], sign * analog_value(event.value))
        elif event.name == "SteerByte":
            self.steer = max(-1.0, event.value / FULL_BYTE)
        else:
            return False
        return True


def events_to_controls(
    events: Iterable[InputEvent], *, num_ticks: int, shift_ticks: int, pedal_sign: float = 1.0
) -> NDArray[np.float32]:
    """Returns the controls held in every tick.

    Args:
        events: in any order; without events all controls are released.
        num_ticks: number of rows; at least 0.
        shift_ticks: ticks between the timestamp of an event and the first row that shows it; may be negative.
        pedal_sign: 1, or -1 if the analog pedals are stored the other way round.

    Returns:
        [num_ticks, 3] float32 steer in [-1, 1] (positive right), gas and brake in [0, 1].

    Raises:
        ContradictoryTimeError: if `num_ticks` exceeds `MAX_TICKS`.
    """
    if num_ticks > MAX_TICKS:
        raise ContradictoryTimeError(f"inputs of {num_ticks} ticks are asked for, {MAX_TICKS} is the most")
    ordered = sorted(_quantised(tuple(events)), key=lambda event: event.time_ms)
    steer_sign = -1.0 if any(event.name == DONT_INVERT and event.value for event in ordered) else 1.0
    pedals = _Pedals()
    first_ticks, rows = [0], [pedals.row()]
    for event in ordered:
        tick = max(0, -(-event.time_ms // TICK_MS) + shift_ticks)
        if pedals.apply(event, steer_sign, pedal_sign):
            first_ticks.append(tick)
            rows.append(pedals.row())
    held = np.searchsorted(np.array(first_ticks), np.arange(num_ticks), side="right") - 1
    return np.array(rows, dtype=np.float32)[held]


def _quantised(events: tuple[InputEvent, ...]) -> Iterable[InputEvent]:
    """Reduces competition-patch recordings (marker 2 or 3) to whole ticks and drops duplicates."""
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


def steer_to_key_taps(steer: NDArray[np.float32], dead_zone: float) -> NDArray[np.float32]:
    """Converts analog steering to direction-key taps with the same duty cycle.

    A key goes down once the accumulated steering deficit reaches `TAP_TICKS`, and up at the same excess. Full and zero
    steering become keys directly.

    Args:
        steer: [T] in [-1, 1].
        dead_zone: steering up to this magnitude counts as zero; in [0, 1).

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
    """Action labels of D decisions.

    Attributes:
        share: [D, num_actions] float32 share of each action in the decision's ticks, summing to 1.
        action: [D] int64 the action with the largest share; ties go to the one held first.
        by_tick: [D, ticks_per_action] int64 the action of every tick.
    """

    share: NDArray[np.float32]
    action: NDArray[np.int64]
    by_tick: NDArray[np.int64]


def label_decisions(
    controls: NDArray[np.float32], table: ActionTable, tick: NDArray[np.int64], dead_zone: float
) -> Labels:
    """Labels decisions with the actions held in their ticks and the share of each.

    Analog steering is converted to taps first, see `steer_to_key_taps`.

    Args:
        controls: [T, 3] steer, gas and brake of every tick.
        table: the actions; each decision lasts `table.decision_ticks` ticks.
        tick: [D] int64 first tick of each decision, in [0, T).
        dead_zone: steering up to this magnitude counts as zero; in [0, 1).

    Returns:
        The labels. Ticks past the last row repeat it.
    """
    action = table.index_of(controls[:, 1], controls[:, 2], steer_to_key_taps(controls[:, 0], dead_zone), 0.0)
    rows = np.minimum(tick[:, None] + np.arange(table.decision_ticks), len(action) - 1)
    held = action[rows]
    return Labels(*shares_of_ticks(held, table.num_actions), held)
