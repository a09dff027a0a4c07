"""What later races begin from: a start that several share, or a state of an earlier race.

Races with equal starts share all that is drawn for them, and are then compared with each other. States of earlier races
lie on the agent's own path, at its own speed: as in TMNF-C, whose agents begin half of their races so, and never in the
last two seconds before a failure. Dimensions: N cars, K columns of `Simulator.save`, G races that begin alike, D
chances that a race is made of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.car import ALONG, GATE_MS, TIME_MS
from rulka.simulator.simulator import Simulator

NUM_PLACES = 64
"""Parts of equal length that a track has: of each the newest state is kept."""
EVERY_MS = 500
"""Race time between two states of a race."""
NUM_HELD_BACK = 4
"""States that wait until their race has got this many further: what is nearer to its end is not kept."""
NUM_BEGUN = 0
"""Column of `EqualStarts.rows`, before those of the chances."""


class EarlierStates:
    """What each car may begin from; a car's depends on its own races alone.

    Attributes:
        rows: [N, NUM_PLACES + NUM_HELD_BACK, K + 1] states that are kept by place, then those held back, oldest
            first; the last column is 1 where there is a state.
    """

    def __init__(self, states: NDArray[np.float64], num_gates: int, length_m: float) -> None:
        """Makes room for states like those [N, K] of `Simulator.save`, on a track with so many gates and metres."""
        num_cars, num_columns = states.shape
        self.rows = np.zeros((num_cars, NUM_PLACES + NUM_HELD_BACK, num_columns + 1))
        self._kept, self._held_back = self.rows[:, :NUM_PLACES], self.rows[:, NUM_PLACES:]
        self._clocks = [TIME_MS, *range(GATE_MS, GATE_MS + num_gates)]
        self._length_m = length_m

    def forget(self, which: Sequence[bool]) -> None:
        """Forgets all states of some cars [N]."""
        self.rows[np.asarray(which)] = 0.0

    def break_off(self, which: NDArray[np.bool_]) -> None:
        """Drops what is held back of races [N] that are over, or are broken off."""
        self._held_back[which] = 0.0

    def note(self, simulator: Simulator, is_over: NDArray[np.bool_]) -> None:
        """Takes in the states of cars after a decision, where one is due and the race [N] is not over."""
        is_due = simulator.time_ms // EVERY_MS > simulator.time_before_ms // EVERY_MS
        cars = np.flatnonzero(is_due & ~is_over)
        if not cars.size:
            return
        oldest = self._held_back[cars, 0]
        is_old_enough = oldest[:, -1] > 0.0
        share = oldest[is_old_enough, ALONG] / self._length_m
        place = np.clip(share * NUM_PLACES, 0, NUM_PLACES - 1).astype(np.int64)
        self._kept[cars[is_old_enough], place] = oldest[is_old_enough]
        self._held_back[cars, :-1] = self._held_back[cars, 1:]
        self._held_back[cars, -1, :-1], self._held_back[cars, -1, -1] = simulator.save()[cars], 1.0

    def draw(
        self, cars: NDArray[np.int64], chance: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns those of some cars [M] that have a state to begin from, and one of each, with its clocks at 0.

        Args:
            cars: [M].
            chance: [M] in [0, 1) says which place, each as likely.
        """
        has_state = self._kept[cars, :, -1] > 0.0
        num_states = has_state.sum(axis=1)
        some = num_states > 0
        cars, number = cars[some], (chance[some] * num_states[some]).astype(np.int64)
        place = (has_state[some].cumsum(axis=1) > number[:, None]).argmax(axis=1)
        states = self._kept[cars, place, :-1]
        states[:, self._clocks] = 0.0
        return cars, states


class EqualStarts:
    """Deals starts to the races of a batch: G cars side by side are a group, which drives each start G times.

    Whichever car of the group is next to begin a race takes the group's start, and the race after G of them draws a new
    one. So no car waits for another, a car with short races drives more of them, and the races from one start began
    close to each other: while a long one lasts, the group does not get ahead by more than its cars can. With G = 1
    each car has starts of its own.

    Attributes:
        rows: [N / G, 1 + D] how many races each group has begun, and the chances of its newest start.
    """

    def __init__(self, num_cars: int, races_per_start: int, num_chances: int) -> None:
        """Divides N cars into groups of G, for races of D chances; N is a multiple of G."""
        self._races_per_start = races_per_start
        self.rows = np.zeros((num_cars // races_per_start, 1 + num_chances))

    def begin_anew(self) -> None:
        """Lets every group draw a new start for its next race."""
        self.rows[:, NUM_BEGUN] = 0.0

    def draw(self, which: NDArray[np.bool_], generators: list[np.random.Generator]) -> NDArray[np.float64]:
        """Returns the chances [N, D] in [0, 1) of chosen cars [N], dealt by their numbers; 0 for all others.

        A group's starts come from the generator of its first car.
        """
        size, rows = self._races_per_start, self.rows
        chances = np.zeros((len(which), rows.shape[1] - 1))
        for k in np.flatnonzero(which).tolist():
            row = rows[k // size]
            if row[NUM_BEGUN] % size == 0:
                row[1:] = generators[k - k % size].random(len(row) - 1)
            chances[k] = row[1:]
            row[NUM_BEGUN] += 1.0
        return chances
