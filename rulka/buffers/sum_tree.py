"""A sum tree: draws entries with probability proportional to their weight in O(log n).

A complete binary tree in one float64 array: node i has children 2 i and 2 i + 1, the leaves are the last half. An inner
node is always computed as the sum of its two children, never by adding a difference, so rounding errors do not pile up
and a node of empty leaves is exactly 0.
Source: Schaul et al. 2015, arXiv:1511.05952, appendix B.2.1.
Dimensions: L leaves (a power of two), B entries.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


class SumTree:
    """Weights of `num_entries` entries, all 0 at first.

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

    def check_valid(self) -> None:
        """Asserts that every inner node is exactly the sum of its children; for tests."""
        half = len(self.nodes) // 2
        inner = np.arange(1, half)
        assert np.array_equal(self.nodes[inner], self.nodes[2 * inner] + self.nodes[2 * inner + 1])
        assert not self.nodes[half + self.num_entries :].any()


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
