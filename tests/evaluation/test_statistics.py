"""Statistics against hand-computed values, brute force, rliable 1.2.0, and their own stated rates by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rulka.evaluation.statistics import (
    improvement_p,
    median_interval,
    probability_of_improvement,
    rank_sum_p,
    stratified_interval,
    wilson_interval,
)


def test_wilson_interval() -> None:
    """For 20 of 20, with z^2 = 3.8415: low = 20 / (20 + z^2) = 0.83887, high = 1."""
    low, high = wilson_interval(20, 20)
    assert low == pytest.approx(20 / (20 + 3.841458820694124))
    assert high == 1.0
    # Each bound lies exactly z standard errors, computed at that bound, from the observed rate.
    for end in wilson_interval(7, 20):
        assert abs(0.35 - end) / math.sqrt(end * (1 - end) / 20) == pytest.approx(1.959964, rel=1e-5)


def test_improvement_by_hand() -> None:
    """One win of two and a tie: (1 + 0.5) / 2; rliable 1.2.0 has the second."""
    assert probability_of_improvement(np.array([2.0]), np.array([1.0, 2.0])) == pytest.approx(0.75)
    ours, theirs = np.array([0.7409, 0.8309, 0.3719, 0.4035, 0.7411]), np.array([0.5267, 0.7409, 0.7975, 0.4829])
    assert probability_of_improvement(ours, theirs) == pytest.approx(9.5 / 20)


def test_p_of_an_improvement_is_that_of_all_permutations() -> None:
    """Of the 20 ways to draw three of six runs one is as extreme on this side, and as many on the other."""
    assert improvement_p(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 20)
    assert improvement_p(np.ones(3), np.ones(3)) == 1.0


SCORES = st.lists(st.sampled_from([0.0, 0.5, 0.75, 1.0, 2.0]), min_size=2, max_size=4).map(np.array)  # with ties


@given(ours=SCORES, theirs=SCORES)
def test_improvements_are_those_of_brute_force(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    def share(first: Sequence[float], second: Sequence[float]) -> float:
        wins = [1.0 if one > other else 0.5 if one == other else 0.0 for one in first for other in second]
        return sum(wins) / len(wins)

    observed, values = share(ours, theirs), [*ours, *theirs]
    splits = [
        share([values[k] for k in chosen], [values[k] for k in range(len(values)) if k not in chosen])
        for chosen in combinations(range(len(values)), len(ours))
    ]
    assert probability_of_improvement(ours, theirs) == pytest.approx(observed)
    above = sum(split >= observed - 1e-9 for split in splits) / len(splits)
    below = sum(split <= observed + 1e-9 for split in splits) / len(splits)
    assert improvement_p(ours, theirs) == pytest.approx(min(1.0, 2 * min(above, below)))


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=12).map(np.array))
def test_the_interval_of_a_median_is_the_narrowest_pair_of_places_that_holds_it(values: NDArray[np.float64]) -> None:
    """Places k and N + 1 - k miss it where fewer than k of N fair coins, or more than N - k, fall below."""
    num, ordered = len(values), np.sort(values)
    missed = [2 * sum(math.comb(num, j) for j in range(place)) / 2**num for place in range(1, num // 2 + 1)]
    place = max(k for k, share in enumerate(missed) if share <= 0.05)
    assert median_interval(values) == (ordered[place], ordered[num - 1 - place])


def test_intervals_by_hand() -> None:
    """Of three runs 1, 2, 6: mean 3, variance 7, and t of 2 degrees is 4.30265."""
    assert stratified_interval(np.array([[1.0], [2.0], [6.0]])) == pytest.approx(
        (3 - 4.302653 * math.sqrt(7 / 3), 3 + 4.302653 * math.sqrt(7 / 3)), rel=1e-6
    )
    # On two tasks variances 2 and 8 are pooled to 5, with one degree each: t of 2 degrees again, of four scores.
    half = 4.302653 * math.sqrt(5 / 4)
    both = np.array([[1.0, 10.0], [3.0, 14.0]])
    assert stratified_interval(both) == pytest.approx((7 - half, 7 + half), rel=1e-6)
    # The least and greatest of six hold the median except with 2 / 2^6; of nine, places 2 and 8
    # do except with 20 / 2^9.
    assert median_interval(np.arange(5.0)) is None
    assert median_interval(np.arange(6.0)[::-1]) == (0.0, 5.0)
    assert median_interval(np.arange(9.0)) == (1.0, 7.0)


@pytest.mark.parametrize("num_runs", [3, 5, 9])
def test_an_interval_over_runs_holds_at_its_rate(num_runs: int) -> None:
    """Of 10,000 experiments; the rate of 0.95 is known to 0.0022."""
    scores = np.random.default_rng(num_runs).normal(0.8, 0.1, (10_000, num_runs, 1))
    intervals = np.array([stratified_interval(each) for each in scores])
    assert 0.94 <= np.mean((intervals[:, 0] <= 0.8) & (intervals[:, 1] >= 0.8)) <= 0.96


@pytest.mark.parametrize("num_runs", [3, 4, 5])
def test_equal_variants_beat_each_other_in_at_most_one_experiment_of_twenty(num_runs: int) -> None:
    """All orders of the runs of two equal variants are equally likely."""
    ranks = np.arange(2.0 * num_runs)
    splits = [np.array(ours) for ours in combinations(range(2 * num_runs), num_runs)]
    ps = np.array([improvement_p(ranks[ours], np.delete(ranks, ours)) for ours in splits])
    assert np.mean(ps < 0.05) <= 0.05
    assert (ps.min() < 0.05) == (num_runs > 3), "three runs decide nothing"


def test_median_interval_holds_at_its_rate() -> None:
    """It may be too wide, for ends can only be values, but never too narrow."""
    for num in (6, 10, 20):
        intervals = np.array([median_interval(x) for x in np.random.default_rng(num).exponential(1.0, (500, num))])
        assert 0.93 <= np.mean((intervals[:, 0] <= math.log(2)) & (intervals[:, 1] >= math.log(2))) <= 0.99


def test_rank_sum() -> None:
    # Three against three, all faster: U = 0, mean 4.5, variance 3 * 3 * 7 / 12 = 5.25. With continuity z = 4 /
    # sqrt(5.25) = 1.7457, two-sided p = erfc(z / sqrt 2) = 0.0808.
    found = rank_sum_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert found == pytest.approx(math.erfc(4 / math.sqrt(5.25) / math.sqrt(2)))
    assert found == pytest.approx(0.0808, abs=1e-4)
    assert rank_sum_p([1.0, 2.0, 3.0], [4.0, None, 6.0]) == found, "who did not finish is slower than who did"
    assert rank_sum_p([], [1.0]) is rank_sum_p([2.0], [2.0]) is None
