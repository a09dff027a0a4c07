"""Start states of races: equal starts shared by several races, and states saved in earlier races.

Races with equal starts share all their random draws and are compared with each other. States of earlier races lie on
the agent's own path, at its own speed. TMNF-C does the same: its agents begin half of their races so, and never in the
last two seconds before a failure. Dimensions: N cars, K columns of `Simulator.save`, G races per equal start, D random
draws per race.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.car import ALONG, GATE_MS, TIME_MS
from rulka.simulator.simulator import Simulator

NUM_PLACES = 64
"""Number of equal sections of a track; the newest state of each is kept."""
EVERY_MS = 500
"""Race time between two saved states."""
NUM_HELD_BACK = 4
"""Newest states of a race that are held back, so that none close to its end is kept."""
NUM_BEGUN = 0
"""Column of `EqualStarts.rows`, before those of the random draws."""


class EarlierStates:
    """Saved states from which each car may begin; they depend only on the car's own races.

    Attributes:
        rows: [N, NUM_PLACES + NUM_HELD_BACK, K + 1] kept states by section of the track, then held-back ones, oldest
            first; the last column is 1 if the row holds a state.
    """

    def __init__(self, states: NDArray[np.float64], num_gates: int, length_m: float) -> None:
        """Allocates storage for states [N, K] of `Simulator.save`, on a track of `num_gates` and `length_m`."""
        num_cars, num_columns = states.shape
        self.rows = np.zeros((num_cars, NUM_PLACES + NUM_HELD_BACK, num_columns + 1))
        self._kept, self._held_back = self.rows[:, :NUM_PLACES], self.rows[:, NUM_PLACES:]
        self._clocks = [TIME_MS, *range(GATE_MS, GATE_MS + num_gates)]
        self._length_m = length_m

    def clear(self, which: Sequence[bool]) -> None:
        """Clears all states of the cars in a mask [N]."""
        self.rows[np.asarray(which)] = 0.0

    def drop_pending(self, which: NDArray[np.bool_]) -> None:
        """Drops the held-back states of races [N] that are over or aborted."""
        self._held_back[which] = 0.0

    def note(self, simulator: Simulator, is_over: NDArray[np.bool_]) -> None:
        """Saves the states of cars after a decision, if one is due and the race [N] is not over."""
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
        self, cars: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns the cars that have a kept state, and a random one of each, with its clocks at 0.

        Args:
            cars: [M] candidates.
            uniforms: [M] in [0, 1), selects the section of the track uniformly.
        """
        has_state = self._kept[cars, :, -1] > 0.0
        num_states = has_state.sum(axis=1)
        some = num_states > 0
        cars, number = cars[some], (uniforms[some] * num_states[some]).astype(np.int64)
        place = (has_state[some].cumsum(axis=1) > number[:, None]).argmax(axis=1)
        states = self._kept[cars, place, :-1]
        states[:, self._clocks] = 0.0
        return cars, states


class EqualStarts:
    """Assigns starts to the races of a batch: G adjacent cars form a group, which drives each start G times.

    The next car of the group to begin a race takes the group's start; after G races the group draws a new one. Thus no
    car waits for another, a car with short races drives more of them, and races from one start begin close to each
    other: during a long race, the group gets no further ahead than its cars can. With G = 1 every car has its own
    starts.

    Attributes:
        rows: [N / G, 1 + D] number of races each group has begun, and the random draws of its newest start.
    """

    def __init__(self, num_cars: int, races_per_start: int, num_uniforms: int) -> None:
        """Divides N cars into groups of G, for races with D random draws; N is a multiple of G."""
        self._races_per_start = races_per_start
        self.rows = np.zeros((num_cars // races_per_start, 1 + num_uniforms))

    def begin_anew(self) -> None:
        """Makes every group draw a new start for its next race."""
        self.rows[:, NUM_BEGUN] = 0.0

    def draw(self, which: NDArray[np.bool_], generators: list[np.random.Generator]) -> NDArray[np.float64]:
        """Returns the random draws [N, D] in [0, 1) of masked cars [N], in order of index; 0 for all others.

        A group draws its starts from the generator of its first car.
        """
        size, rows = self._races_per_start, self.rows
        random_draws = np.zeros((len(which), rows.shape[1] - 1))
        for k in np.flatnonzero(which).tolist():
            row = rows[k // size]
            if row[NUM_BEGUN] % size == 0:
                row[1:] = generators[k - k % size].random(len(row) - 1)
            random_draws[k] = row[1:]
            row[NUM_BEGUN] += 1.0
        return random_draws
