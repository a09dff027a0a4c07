"""The action table: what one decision of an agent does to the controls of the car.

Twelve actions, {none, left, right} x {gas, coast, brake, gas and brake}, each held for a fixed number of
10 ms ticks. Index 0 is plain "forward", as in Linesight's `inputs_list`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TICK_MS = 10
"""Length of one physics tick in milliseconds, in the game and in the simulator."""

FORWARD = 0
"""Index of the action that only accelerates; stands for the actions before the start."""


class Controls(NamedTuple):
    """Keyboard state of one action."""

    accelerate: bool
    brake: bool
    left: bool
    right: bool


@dataclass(frozen=True)
class ActionTable:
    """The discrete actions and how long each is held.

    Attributes:
        controls: one entry for each action index.
        ticks_per_action: number of 10 ms ticks for which one action is held; positive.
    """

    controls: tuple[Controls, ...]
    ticks_per_action: int

    @property
    def num_actions(self) -> int:
        """Number of discrete actions."""
        return len(self.controls)

    @property
    def duration_ms(self) -> int:
        """Length of one decision in milliseconds."""
        return self.ticks_per_action * TICK_MS

    def keys(self) -> NDArray[np.float32]:
        """Returns [A, 4] accelerate, brake, left, right as 0 or 1, in the order the observation holds them."""
        return np.array(self.controls, dtype=np.float32)

    def analog(self) -> NDArray[np.float32]:
        """Returns [A, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1]."""
        keys = self.keys()
        return np.stack([keys[:, 3] - keys[:, 2], keys[:, 0], keys[:, 1]], axis=1)

    def index_of(self, accelerate: NDArray, brake: NDArray, steer: NDArray, dead_zone: float) -> NDArray[np.int64]:
        """Finds the action nearest to analog or digital controls.

        Args:
            accelerate: [N] gas; above 0.5 counts as pressed.
            brake: [N] brake; above 0.5 counts as pressed.
            steer: [N] steering in [-1, 1], positive right.
            dead_zone: steering of at most this size counts as none; in [0, 1).

        Returns:
            [N] action indices.
        """
        left, right = steer < -dead_zone, steer > dead_zone
        pressed = np.stack([accelerate > 0.5, brake > 0.5, left, right], axis=1)
        return _INDEX_OF_KEYS[pressed @ _KEY_BITS]


def _standard_controls() -> tuple[Controls, ...]:
    pedals = ((True, False), (False, False), (False, True), (True, True))
    directions = ((False, False), (True, False), (False, True))
    return tuple(Controls(*pedal, *direction) for pedal in pedals for direction in directions)


CONTROLS = _standard_controls()
"""The twelve rows of the table, `spec/TRACKMANIA_FACTS.md` 4.5."""

_KEY_BITS = np.array([1, 2, 4, 8])
_INDEX_OF_KEYS = np.full(16, FORWARD, dtype=np.int64)
_INDEX_OF_KEYS[np.array(CONTROLS) @ _KEY_BITS] = np.arange(len(CONTROLS))


def action_table(ticks_per_action: int) -> ActionTable:
    """Returns the standard twelve actions, each held for `ticks_per_action` ticks of 10 ms."""
    return ActionTable(CONTROLS, ticks_per_action)
