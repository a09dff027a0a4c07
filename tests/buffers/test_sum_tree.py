"""The sum tree against a plain array, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.buffers.sum_tree import SumTree


def slow_draw(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """The twin: walk along all entries until the mass is used up."""
    total, drawn = weights.sum(), []
    for stratum, u in enumerate(uniform):
        mass, entry = (stratum + u) / len(uniform) * total, 0
        while mass >= weights[entry]:
            mass -= weights[entry]
            entry += 1
        drawn.append(entry)
    return np.array(drawn)


@pytest.mark.parametrize("num_entries", [1, 2, 7, 64, 100])
def test_random_operations_against_the_twin(num_entries: int):
    """Whole numbers as weights: sums are exact in any order, so both must agree on every draw."""
    rng = np.random.default_rng(num_entries)
    tree, weights = SumTree(num_entries), np.zeros(num_entries)
    for _ in range(60):
        if rng.random() < 0.5:
            entries = rng.integers(0, num_entries, rng.integers(0, 9))
            new = rng.integers(0, 5, len(entries)).astype(float)
            tree.set(entries, new)
            for entry, weight in zip(entries, new, strict=True):  # the last one counts
                weights[entry] = weight
        else:
            start = int(rng.integers(0, num_entries))
            new = rng.integers(0, 5, rng.integers(0, num_entries - start + 1)).astype(float)
            tree.set_range(start, new)
            weights[start : start + len(new)] = new
        tree.check_valid()
        np.testing.assert_array_equal(tree.weights, weights)
        assert tree.total == weights.sum()
        if weights.any():
            uniform = rng.random(17)
            np.testing.assert_array_equal(tree.draw(uniform), slow_draw(weights, uniform))


def test_rounding_does_not_pile_up():
    """After a million changes a node is still exactly the sum of its children, and an emptied tree exactly empty."""
    rng = np.random.default_rng(0)
    tree = SumTree(1000)
    for _ in range(100):
        tree.set(rng.integers(0, 1000, 10_000), 10.0 ** rng.uniform(-8, 8, 10_000))
    tree.check_valid()
    assert tree.total == pytest.approx(tree.weights.sum(), rel=1e-12)
    tree.set_range(0, np.zeros(1000))
    assert tree.total == 0.0


def test_entries_of_no_weight_are_never_drawn():
    rng = np.random.default_rng(0)
    tree = SumTree(300)
    weights = 10.0 ** rng.uniform(-9, 9, 300) * (rng.random(300) < 0.3)
    tree.set_range(0, weights)
    uniform = np.concatenate([rng.random(20_000), np.full(1000, np.nextafter(1.0, 0.0)), np.zeros(1000)])
    assert (weights[tree.draw(uniform)] > 0).all()


def test_draws_follow_the_weights():
    """Stratified: with n strata, an entry of share s is drawn n s times, give or take less than two."""
    weights = np.array([1.0, 0.0, 3.0, 4.0, 2.0])
    tree = SumTree(5)
    tree.set_range(0, weights)
    counts = np.bincount(tree.draw(np.random.default_rng(0).random(1000)), minlength=5)
    assert np.abs(counts - 100 * weights).max() < 2


def test_bad_input_is_refused():
    tree = SumTree(3)
    with pytest.raises(ValueError, match="nothing to draw"):
        tree.draw(np.array([0.5]))
    for weights in ([-1.0], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="finite"):
            tree.set(np.array([0]), np.array(weights))
        with pytest.raises(ValueError, match="finite"):
            tree.set_range(0, np.array(weights))
    for entry in (-1, 3):
        with pytest.raises(ValueError, match="0 to 2"):
            tree.set(np.array([entry]), np.array([1.0]))
    with pytest.raises(ValueError, match="below 3"):
        tree.set_range(2, np.ones(2))
    with pytest.raises(ValueError, match="at least one"):
        SumTree(0)
    assert tree.total == 0.0
