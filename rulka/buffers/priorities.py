"""Prioritised replay over the rows of a `BlockRing`: proportional priorities, and importance weights.

Source: Schaul et al. 2015, arXiv:1511.05952: P(i) = p_i^alpha / sum, weight (n P(i))^-beta over the largest of its
batch. A new transition has the largest priority of those in the ring whose error was measured, so that each is soon
learned from; rows that are no transitions have none. Deviation: the paper takes the largest there ever was, beginning
with 1, which never falls when errors do. The peers give new ones twice the average instead, see docs/algorithms/iqn.md.
Rows are found by sums over all of them, in place of the paper's tree (appendix B.2.1): 0.4 ms for 100,000 rows, which
a tree of our own is not worth. torchrl's does not load beside torch 2.13.
Dimensions: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.buffers.ring import BlockRing

FIRST_PRIORITY = 1.0
"""Of a new transition while no error has been measured: all are drawn alike, as only ratios matter."""


class DrawnRows(NamedTuple):
    """Rows of a ring, and how much each counts.

    Attributes:
        row: [B].
        weight: [B] float32 importance, over the largest of the batch: at most 1.
        largest: P^-beta where that is largest: what batches of several buffers are compared by.
    """

    row: NDArray[np.int64]
    weight: NDArray[np.float32]
    largest: float


class Priorities:
    """How likely each row of a ring is drawn, which holds nothing yet.

    Attributes:
        alpha: exponent of the priorities; 0 draws all alike.
        epsilon: added to every error, so that none is forgotten; positive.
        measured: [rows] float64 priority |error| + epsilon; 0 if no error of the row's present transition was measured.
        largest: the largest of these, which new transitions get; where all were written over, as it was before.
        weights: [rows] float64 priority^alpha, 0 where a row is no transition.
    """

    def __init__(self, ring: BlockRing, alpha: float, epsilon: float) -> None:
        self._ring = ring
        self.alpha, self.epsilon = alpha, epsilon
        self.weights = np.zeros(ring.num_slots * ring.rows_per_slot)
        self.measured = np.zeros_like(self.weights)
        self.largest = FIRST_PRIORITY

    def enter(self, slot: int) -> None:
        """Gives all transitions of a slot that was written to the largest priority; others get 0."""
        written = slice(slot * self._ring.rows_per_slot, (slot + 1) * self._ring.rows_per_slot)
        self.measured[written] = 0.0  # of what was there before
        self.largest = float(self.measured.max()) or self.largest
        arrays = self._ring.arrays
        is_transition = ~(arrays.is_reset[slot] | arrays.is_held_out[slot]).reshape(-1)
        self.weights[written] = is_transition * self.largest**self.alpha

    def draw(self, num_rows: int, beta: float, generator: torch.Generator) -> DrawnRows:
        """Draws rows from strata of equal probability.

        Args:
            num_rows: B.
            beta: how far the weights undo the preference; 1 wholly.
            generator: source of randomness.

        Raises:
            ValueError: if the ring holds no transition.
        """
        sums = self.weights.cumsum()
        total = float(sums[-1])
        if total <= 0.0:
            message = "the ring holds no transition to draw"
            raise ValueError(message)
        uniform = torch.rand(num_rows, generator=generator, dtype=torch.float64).numpy()
        mass = (np.arange(num_rows) + uniform) / num_rows * total
        # Below the total, which rounding may reach: so no row without weight is ever found.
        row = sums.searchsorted(np.minimum(mass, np.nextafter(total, 0.0)), side="right")
        weight = self.weights[row] ** -beta  # the rest of (n P)^-beta is the same for all and falls out
        largest = float(weight.max())
        return DrawnRows(row, (weight / largest).astype(np.float32), largest * total**beta)

    def state_dict(self) -> dict[str, Any]:
        """Returns every row's weight and its measured priority, and the largest one."""
        arrays = {"weights": self.weights, "measured": self.measured}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()} | {"largest": self.largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from the `state_dict` of a ring of the same shape.

        Raises:
            ValueError: if that ring had more rows.
        """
        self.weights[: len(state["weights"])] = state["weights"].numpy()
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
        if not priority.max() < np.inf:  # nor NaN
            message = f"errors must be finite, got {errors.min()} to {errors.max()}"
            raise ValueError(message)
        is_first = not self.measured.any()
        was_largest = self.measured[rows].max() >= self.largest
        self.weights[rows] = priority**self.alpha
        self.measured[rows] = priority
        if is_first or was_largest:  # another row may hold the largest now, which costs a look at all of them
            self.largest = float(self.measured.max())
        else:
            self.largest = max(self.largest, float(self.measured[rows].max()))
        if is_first:  # `FIRST_PRIORITY` was no measure of anything: the others wait with the largest now
            self.weights[(self.weights > 0.0) & (self.measured == 0.0)] = self.largest**self.alpha


MAX_PRIORITIES = 1 << 14
"""Priorities that are sorted; of a larger ring as many as are evenly spread over it."""
_QUANTILES = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "d9": 0.9, "c98": 0.98, "max": 1.0}


def inspect_priorities(priorities: NDArray[np.float64]) -> dict[str, float]:
    """Returns quantiles and the mean of the positive ones among priorities [rows], by tags; nothing where none is."""
    some = priorities[:: -(-len(priorities) // MAX_PRIORITIES) or 1]
    some = some[some > 0.0]
    if not len(some):
        return {}
    values = np.quantile(some, list(_QUANTILES.values())).tolist()
    found = dict(zip(_QUANTILES, values, strict=True)) | {"mean": float(some.mean())}
    return {f"Buffer/priorities_{name}": value for name, value in found.items()}
