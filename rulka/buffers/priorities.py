"""Prioritised replay over the rows of a `BlockRing`: proportional priorities, importance weights, and a sum tree.

Source: Schaul et al. 2015, arXiv:1511.05952: P(i) = p_i^alpha / sum, weight (n P(i))^-beta over the largest of its
batch. A new transition has the largest priority of those in the ring whose error was measured, so that each is soon
learned from; rows that are no transitions have none. Deviation: the paper takes the largest there ever was, beginning
with 1, which never falls when errors do. The peers give new ones twice the average instead, see docs/algorithms/iqn.md.
The sum tree is that of appendix B.2.1; torchrl's does not load beside torch 2.13.
Dimensions: B batch, L leaves of the tree (a power of two).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
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
    """How likely each row of a ring is drawn.

    Attributes:
        alpha: exponent of the priorities; 0 draws all alike.
        epsilon: added to every error, so that none is forgotten; positive.
        measured: [rows] float64 priority |error| + epsilon; 0 if no error of the row's present transition was measured.
        largest: the largest of these, which new transitions get; where all were written over, as it was before.
        tree: [rows] priority^alpha, 0 where a row is no transition.
    """

    def __init__(self, ring: BlockRing, alpha: float, epsilon: float) -> None:
        self._ring = ring
        self.alpha, self.epsilon = alpha, epsilon
        self.tree = SumTree(ring.num_slots * ring.rows_per_slot)
        self.measured = np.zeros(self.tree.num_entries)
        self.largest = FIRST_PRIORITY
        for slot in range(ring.num_blocks):
            self.enter(slot)

    def enter(self, slot: int) -> None:
        """Gives all transitions of a slot that was written to the largest priority; others get 0."""
        start = slot * self._ring.rows_per_slot
        is_drawable = self._ring.is_trainable(slot)
        self.measured[start : start + self._ring.rows_per_slot] = 0.0  # of what was there before
        self.largest = float(self.measured.max()) or self.largest
        self.tree.set_range(start, is_drawable * self.largest**self.alpha)

    def draw(self, num_rows: int, beta: float, generator: torch.Generator) -> DrawnRows:
        """Draws rows from strata of equal probability.

        Args:
            num_rows: B.
            beta: how far the weights undo the preference; 1 wholly.
            generator: source of randomness.

        Raises:
            ValueError: if the ring holds no transition.
        """
        uniform = torch.rand(num_rows, generator=generator, dtype=torch.float64).numpy()
        row = self.tree.draw(uniform)
        weight = self.tree.weights[row] ** -beta  # the rest of (n P)^-beta is the same for all and falls out
        largest = float(weight.max())
        return DrawnRows(row, (weight / largest).astype(np.float32), largest * self.tree.total**beta)

    def state_dict(self) -> dict[str, Any]:
        """Returns every row's weight in the tree and its measured priority, and the largest one."""
        arrays = {"weights": self.tree.weights, "measured": self.measured}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()} | {"largest": self.largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from the `state_dict` of a ring of the same shape.

        Raises:
            ValueError: if that ring had more rows.
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


class SumTree:
    """Weights of `num_entries` entries, all 0 at first; draws one with probability proportional to its weight.

    A complete binary tree in one float64 array: node i has children 2 i and 2 i + 1, the leaves are the last half. An
    inner node is always computed as the sum of its two children, never by adding a difference, so rounding errors do
    not pile up and a node of empty leaves is exactly 0.

    Attributes:
        num_entries: entries, numbered from 0.
        nodes: [2 L] float64, the root at 1; entry 0 of the array is not used.
    """

    def __init__(self, num_entries: int) -> None:
        """Reserves the tree.

        Raises:
            ValueError: if there are no entries.
        """
        if num_entries < 1:
            message = f"a sum tree needs at least one entry, got {num_entries}"
            raise ValueError(message)
        self.num_entries = num_entries
        self.nodes: NDArray[np.float64] = np.zeros(2 << (num_entries - 1).bit_length())

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.nodes[1])

    @property
    def weights(self) -> NDArray[np.float64]:
        """[num_entries] weight of every entry; a view, not to be written to."""
        first = len(self.nodes) // 2
        return self.nodes[first : first + self.num_entries]

    def set(self, entries: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Gives entries [B] new weights [B]; where an entry occurs twice, the last one counts.

        Raises:
            ValueError: if an entry does not exist, or a weight is negative or not finite.
        """
        if len(entries) and not (entries.min() >= 0 and entries.max() < self.num_entries):
            message = f"entries must be 0 to {self.num_entries - 1}, got {entries.min()} to {entries.max()}"
            raise ValueError(message)
        _check_weights(weights)
        _set(self.nodes, entries, weights)

    def set_range(self, start: int, weights: NDArray[np.float64]) -> None:
        """Gives the entries from `start` on new weights [B], in O(B + log n).

        Raises:
            ValueError: if the range reaches beyond the entries, or a weight is negative or not finite.
        """
        if not 0 <= start <= start + len(weights) <= self.num_entries:
            message = f"entries {start} to {start + len(weights) - 1} are not all below {self.num_entries}"
            raise ValueError(message)
        _check_weights(weights)
        if len(weights):
            _set_range(self.nodes, start, weights)

    def draw(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draws one entry from each of B strata of equal total weight.

        Args:
            uniform: [B] numbers in [0, 1): where in its stratum each draw falls.

        Returns:
            [B] entries, none of weight 0, in rising order.

        Raises:
            ValueError: if all weights are 0.
        """
        if self.total <= 0.0:
            message = "no entry has any weight: there is nothing to draw"
            raise ValueError(message)
        entries = np.empty(len(uniform), np.int64)
        _draw(self.nodes, uniform, entries)
        return entries


def _check_weights(weights: NDArray[np.float64]) -> None:
    if len(weights) and not (weights.min() >= 0.0 and weights.max() < np.inf):  # also false for NaN
        message = f"weights must be finite and not negative, got {weights.min()} to {weights.max()}"
        raise ValueError(message)


@njit(cache=True, nogil=True)
def _set(nodes: NDArray[np.float64], entries: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
    half = nodes.shape[0] // 2
    for b in range(entries.shape[0]):
        node = half + entries[b]
        nodes[node] = weights[b]
        node //= 2
        while node:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            node //= 2


@njit(cache=True, nogil=True)
def _set_range(nodes: NDArray[np.float64], start: int, weights: NDArray[np.float64]) -> None:
    first = nodes.shape[0] // 2 + start
    last = first + weights.shape[0] - 1
    nodes[first : last + 1] = weights
    while first > 1:
        first, last = first // 2, last // 2
        for node in range(first, last + 1):
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


@njit(cache=True, nogil=True)
def _draw(nodes: NDArray[np.float64], uniform: NDArray[np.float64], entries: NDArray[np.int64]) -> None:
    half, count = nodes.shape[0] // 2, uniform.shape[0]
    for b in range(count):
        mass = (b + uniform[b]) / count * nodes[1]
        node = 1
        while node < half:
            node *= 2
            # Rounding may leave a mass as large as the node: a child of weight 0 is never entered.
            if mass >= nodes[node] and nodes[node + 1] > 0.0:
                mass -= nodes[node]
                node += 1
        entries[b] = node - half
