"""Prioritised replay over the rows of a `BlockBuffer`: proportional priorities and importance weights.

Source: Schaul et al. 2015, arXiv:1511.05952: P(i) = p_i^alpha / sum, weight (n P(i))^-beta over the largest of its
batch. A new transition has the largest priority of those in the buffer whose error was measured, so that each is soon
learned from; rows that are no transitions have none. Deviation: the paper takes the largest there ever was, beginning
with 1, which never falls when errors do. The peers give new ones twice the average instead, see docs/algorithms/iqn.md.
Dimensions: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.buffers.storage import BlockBuffer
from rulka.buffers.sum_tree import SumTree

FIRST_PRIORITY = 1.0
"""Of a new transition while no error has been measured: all are drawn alike, as only ratios matter."""


class DrawnRows(NamedTuple):
    """Rows of a buffer, and how much each counts.

    Attributes:
        row: [B].
        weight: [B] float32 importance, over the largest of the batch: at most 1.
        largest: P^-beta where that is largest: what batches of several buffers are compared by.
    """

    row: NDArray[np.int64]
    weight: NDArray[np.float32]
    largest: float


class Priorities:
    """How likely each row of a buffer is drawn.

    Attributes:
        alpha: exponent of the priorities; 0 draws all alike.
        epsilon: added to every error, so that none is forgotten; positive.
        measured: [rows] float64 priority |error| + epsilon; 0 where no error of what is there now was measured.
        largest: the largest of these, which new transitions get; where all were written over, as it was before.
        tree: [rows] priority^alpha, 0 where a row is no transition.
    """

    def __init__(self, buffer: BlockBuffer, alpha: float, epsilon: float) -> None:
        self._buffer = buffer
        self.alpha, self.epsilon = alpha, epsilon
        self.tree = SumTree(buffer.num_slots * buffer.rows_per_slot)
        self.measured = np.zeros(self.tree.num_entries)
        self.largest = FIRST_PRIORITY
        for slot in range(buffer.num_blocks):
            self.enter(slot)

    def enter(self, slot: int) -> None:
        """Gives all transitions of a slot that was written to the largest priority; others get 0."""
        start = slot * self._buffer.rows_per_slot
        is_drawable = self._buffer.is_trainable(slot)
        self.measured[start : start + self._buffer.rows_per_slot] = 0.0  # of what was there before
        self.largest = float(self.measured.max()) or self.largest
        self.tree.set_range(start, is_drawable * self.largest**self.alpha)

    def draw(self, num_rows: int, beta: float, generator: torch.Generator) -> DrawnRows:
        """Draws rows from strata of equal probability.

        Args:
            num_rows: B.
            beta: how far the weights undo the preference; 1 wholly.
            generator: source of randomness.

        Raises:
            ValueError: if the buffer holds no transition.
        """
        uniform = torch.rand(num_rows, generator=generator, dtype=torch.float64).numpy()
        row = self.tree.draw(uniform)
        weight = self.tree.weights[row] ** -beta  # the rest of (n P)^-beta is the same for all and falls out
        largest = float(weight.max())
        return DrawnRows(row, (weight / largest).astype(np.float32), largest * self.tree.total**beta)

    def clear(self) -> None:
        """Forgets all priorities, for a buffer that was cleared."""
        self.tree.set_range(0, np.zeros(self.tree.num_entries))
        self.measured[:] = 0.0
        self.largest = FIRST_PRIORITY

    def state_dict(self) -> dict[str, Any]:
        """Returns every row's weight in the tree and its measured priority, and the largest one."""
        arrays = {"weights": self.tree.weights, "measured": self.measured}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()} | {"largest": self.largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned for a buffer of the same shape.

        Raises:
            ValueError: if that buffer had more rows.
        """
        self.tree.set_range(0, state["weights"].numpy())
        self.measured[: len(state["measured"])] = state["measured"].numpy()
        self.largest = float(state["largest"])

    def update(self, rows: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """Sets priorities from the errors [B] of rows [B] that were drawn since the last `enter`.

        Raises:
            ValueError: if an error is not finite.
        """
        priority = np.abs(errors).astype(np.float64) + self.epsilon
        if not len(rows):
            return
        is_first = not self.measured.any()
        was_largest = self.measured[rows].max() >= self.largest
        self.tree.set(rows, priority**self.alpha)
        self.measured[rows] = priority
        if is_first or was_largest:  # another row may hold the largest now, which costs a look at all of them
            self.largest = float(self.measured.max())
        else:
            self.largest = max(self.largest, float(self.measured[rows].max()))
        if is_first:  # `FIRST_PRIORITY` was no measure of anything: the others wait with the largest now
            waiting = np.flatnonzero((self.tree.weights > 0.0) & (self.measured == 0.0))
            self.tree.set(waiting, np.full(len(waiting), self.largest**self.alpha))
