"""One array over several memory-mapped files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class ShardedArray:
    """Concatenated view of arrays with equal row shape.

    Indexing copies the selected rows into memory; nothing else is read.

    Args:
        shards: arrays with rows along the first dimension.
    """

    def __init__(self, shards: Sequence[NDArray]) -> None:
        self._shards = list(shards)
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the concatenated array; (0,) without shards."""
        return (len(self), *self._shards[0].shape[1:]) if self._shards else (0,)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray:
        """Returns a copy of the given rows.

        Args:
            rows: a slice, or an array [K] of row numbers from 0 to less than the length.

        Raises:
            IndexError: if a row number is negative or too large.
        """
        numbers = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise IndexError(f"row numbers must be from 0 to {len(self) - 1}")
        if not self._shards:
            return np.zeros(0)
        out = np.empty((len(numbers), *self._shards[0].shape[1:]), self._shards[0].dtype)
        shard_of_row = np.searchsorted(self._ends, numbers, side="right")
        for index in np.unique(shard_of_row):
            chosen = shard_of_row == index
            start = self._ends[index] - len(self._shards[index])
            out[chosen] = self._shards[index][numbers[chosen] - start]
        return out
