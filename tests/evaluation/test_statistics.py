"""Statistics against hand-computed values, naive implementations and rliable 1.2.0 (20,000 and 5,000 resamples)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rulka.evaluation.statistics import (
    Interval,
    bootstrap_interval,
    interquartile_mean,
    median,
    probability_of_improvement,
    rank_sum_p,
    wilson_interval,
)

OURS = np.array(
    [
        [0.7409, 0.9401, 0.5321],
        [0.8309, 0.5908, 0.6001],
        [0.3719, 0.8082, 0.759],
        [0.4035, 0.7851, 0.4683],
        [0.7411, 0.7773, 0.602],
    ]
)
THEIRS = np.array([[0.5267, 0.1619, 0.18], [0.7409, 0.822, 0.6947], [0.7975, 0.847, 0.8548], [0.4829, 0.6139, 0.5066]])


def test_wilson_interval() -> None:
    """For 20 of 20, with z^2 = 3.8415: low = 20 / (20 + z^2) = 0.83887, high = 1."""
    low, high = wilson_interval(20, 20)
    assert low == pytest.approx(20 / (20 + 3.841458820694124))
    assert high == 1.0
    # Each bound lies exactly z standard errors, computed at that bound, from the observed rate.
    for end in wilson_interval(7, 20):
        assert abs(0.35 - end) / math.sqrt(end * (1 - end) / 20) == pytest.approx(1.959964, rel=1e-5)


def test_means_by_hand() -> None:
    """Of eight values, the two lowest and two highest are dropped, whatever they are: (3 + 4 + 5 + 6) / 4 = 4.5."""
    values = np.array([100.0, 3.0, 4.0, -7.0, 5.0, 6.0, 99.0, 0.0])
    assert interquartile_mean(values[:, None]) == pytest.approx(4.5)
    assert interquartile_mean(np.array([[1.0, 2.0, 6.0]])) == pytest.approx(3.0)  # 3 // 4 = 0: none is dropped
    # On the first task one win of two and a tie, (1 + 0.5) / 2; on the second none, though 9 beats all of the first.
    ours, theirs = np.array([[2.0, 9.0]]), np.array([[1.0, 10.0], [2.0, 11.0]])
    assert probability_of_improvement(ours, theirs) == pytest.approx((0.75 + 0.0) / 2)


def test_bootstrap_interval() -> None:
    """The median of two draws from {0, 1} is 0 or 1 with probability 1/4 each, else 1/2: the interval is [0, 1]."""
    assert bootstrap_interval(median, np.array([[0.0], [1.0]]), seed=1, num_resamples=500) == Interval(0.0, 1.0)
    samples = np.array([[10.0], [10.5], [11.0], [12.0], [15.0]])
    first, again, other = (bootstrap_interval(median, samples, seed=s, num_resamples=50) for s in (1, 1, 2))
    assert first == again
    assert first != other
    # Tasks with one value each have no spread, however different the values.
    same = np.tile([0.1, 0.9], (4, 1))
    assert bootstrap_interval(interquartile_mean, same) == (0.5, 0.5)


def test_rank_sum() -> None:
    # Three against three, all faster: U = 0, mean 4.5, variance 3 * 3 * 7 / 12 = 5.25. With continuity z = 4 /
    # sqrt(5.25) = 1.7457, two-sided p = erfc(z / sqrt 2) = 0.0808.
    found = rank_sum_p([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert found == pytest.approx(math.erfc(4 / math.sqrt(5.25) / math.sqrt(2)))
    assert found == pytest.approx(0.0808, abs=1e-4)
    assert rank_sum_p([1.0, 2.0, 3.0], [4.0, None, 6.0]) == found, "who did not finish is slower than who did"
    assert rank_sum_p([], [1.0]) is rank_sum_p([2.0], [2.0]) is None


def test_values_and_intervals_are_those_of_rliable() -> None:
    assert interquartile_mean(OURS) == pytest.approx(0.6809333333333334, abs=1e-12)
    assert probability_of_improvement(OURS, THEIRS) == pytest.approx(0.5083333333333333, abs=1e-12)
    # The bootstrap is random: its bounds agree to about a hundredth.
    assert bootstrap_interval(interquartile_mean, OURS) == pytest.approx((0.5829, 0.7540), abs=0.01)
    both = bootstrap_interval(probability_of_improvement, OURS, THEIRS)
    assert both == pytest.approx((0.2667, 0.7417), abs=0.03)
