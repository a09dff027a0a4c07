"""A sharded array behaves like the array it was cut from."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.datasets.formats.sharded import ShardedArray

WHOLE = np.arange(60).reshape(20, 3)


@pytest.mark.parametrize("cuts", [[], [7], [1, 2, 19], [5, 5, 12]])
def test_indexing_equals_the_whole(cuts: list[int]) -> None:
    sharded = ShardedArray(np.split(WHOLE, cuts))
    rng = np.random.default_rng(1)
    assert sharded.shape == WHOLE.shape
    for part in (slice(None), slice(3, 15), slice(0, 20, 6), slice(10, 10), slice(18, 40)):
        np.testing.assert_array_equal(sharded[part], WHOLE[part])
    for _ in range(20):
        rows = rng.integers(0, 20, size=int(rng.integers(0, 30)))
        np.testing.assert_array_equal(sharded[rows], WHOLE[rows])


def test_rows_are_copies_of_what_there_is() -> None:
    whole = WHOLE.copy()
    ShardedArray([whole])[:][0, 0] = 99
    assert whole[0, 0] == 0
    for row in (-1, 20):
        with pytest.raises(IndexError, match="from 0 to 19"):
            ShardedArray([WHOLE])[np.array([row])]
    assert (len(ShardedArray([])), ShardedArray([])[:].shape) == (0, (0,))
