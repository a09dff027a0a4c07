"""Equal starts: all that is drawn for a race, shared by several races that are then compared with each other.

Dimensions: N cars, G races that begin alike, D chances that a race is made of.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_BEGUN = 0
"""Column of `EqualStarts.rows`, before those of the chances."""


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
