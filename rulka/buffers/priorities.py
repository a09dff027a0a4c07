"""Prioritised replay over the rows of a `BlockRing`: proportional priorities, and importance weights.

Source: Schaul et al. 2015, arXiv:1511.05952: P(i) = p_i^alpha / sum, weight (n P(i))^-beta over the largest of its
batch. A new transition gets the largest measured priority in the ring, so that it is soon learned from; rows that are
not transitions have none. Deviation: the paper takes the largest priority ever, starting at 1, which never falls when
errors do. The peers give new ones twice the average instead, see docs/algorithms/iqn.md.
A cumulative sum over all rows finds a row, instead of the paper's sum tree (appendix B.2.1): at 0.4 ms for 100,000
rows, a tree of our own is not worth it. torchrl's does not load with torch 2.13.
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
"""Priority of new transitions until an error is measured: sampling is then uniform, as only ratios matter."""


class DrawnRows(NamedTuple):
    """Sampled rows of a ring and their importance weights.

    Attributes:
        row: [B].
        importance: [B] float32 importance weights, divided by the largest of the batch: at most 1.
        largest: the largest P^-beta of the batch, for comparing batches of several buffers.
    """

    row: NDArray[np.int64]
    importance: NDArray[np.float32]
    largest: float


class Priorities:
    """Sampling priorities of the rows of a ring, which is empty at the start.

    Attributes:
        alpha: exponent of the priorities; 0 samples uniformly.
        epsilon: added to every error, so that no transition is starved; positive.
        measured: [rows] float64 priority |error| + epsilon; 0 if no error of the row's current transition was measured.
        largest: the largest of these, given to new transitions; unchanged if all measured rows were overwritten.
        weights: [rows] float64 priority^alpha; 0 if a row is not a transition or is held out.
    """

    def __init__(self, ring: BlockRing, alpha: float, epsilon: float) -> None:
        self._ring = ring
        self.alpha, self.epsilon = alpha, epsilon
        self.weights = np.zeros(ring.num_slots * ring.spec.num_env_steps)
        self.measured = np.zeros_like(self.weights)
        self.largest = FIRST_PRIORITY

    def enter(self, slot: int) -> None:
        """Gives the transitions of a newly written slot the largest priority; its other rows get 0."""
        written = slice(slot * self._ring.spec.num_env_steps, (slot + 1) * self._ring.spec.num_env_steps)
        self.measured[written] = 0.0  # belonged to the overwritten block
        self.largest = float(self.measured.max()) or self.largest
        arrays = self._ring.arrays
        is_transition = ~(arrays.is_reset[slot] | arrays.is_held_out[slot]).reshape(-1)
        self.weights[written] = is_transition * self.largest**self.alpha

    def draw(self, num_rows: int, beta: float, generator: torch.Generator) -> DrawnRows:
        """Draws rows, one from each of B strata of equal probability.

        Args:
            num_rows: B.
            beta: exponent of the importance weights; 1 fully corrects the sampling bias.
            generator: of the draws.

        Raises:
            ValueError: if the ring holds no transition.
        """
        sums = self.weights.cumsum()
        total = float(sums[-1])
        if total <= 0.0:
            raise ValueError("the ring holds no transition to draw")
        uniform = torch.rand(num_rows, generator=generator, dtype=torch.float64).numpy()
        mass = (np.arange(num_rows) + uniform) / num_rows * total
        # Rounding may reach the total; staying below it never finds a row of weight 0.
        row = sums.searchsorted(np.minimum(mass, np.nextafter(total, 0.0)), side="right")
        weight = self.weights[row] ** -beta  # the rest of (n P)^-beta is the same for all and cancels
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
            raise ValueError(f"errors must be finite, got {errors.min()} to {errors.max()}")
        is_first = not self.measured.any()
        self.weights[rows] = priority**self.alpha
        self.measured[rows] = priority
        self.largest = float(self.measured.max())
        if is_first:  # `FIRST_PRIORITY` was arbitrary: unmeasured transitions now get the largest priority
            self.weights[(self.weights > 0.0) & (self.measured == 0.0)] = self.largest**self.alpha


MAX_PRIORITIES = 1 << 14
"""Most priorities that are sorted; a larger ring is subsampled evenly."""
_QUANTILES = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "d9": 0.9, "c98": 0.98, "max": 1.0}


def inspect_priorities(priorities: NDArray[np.float64]) -> dict[str, float]:
    """Returns quantiles and mean of the positive priorities among [rows], by tags; empty if there are none."""
    some = priorities[:: -(-len(priorities) // MAX_PRIORITIES) or 1]
    some = some[some > 0.0]
    if not len(some):
        return {}
    values = np.quantile(some, list(_QUANTILES.values())).tolist()
    found = dict(zip(_QUANTILES, values, strict=True)) | {"mean": float(some.mean())}
    return {f"Buffer/priorities_{name}": value for name, value in found.items()}
