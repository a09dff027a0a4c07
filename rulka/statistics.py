"""Statistics of finish rates and times. Times are of finished races alone; a race that did not finish has no time.

Sources: Wilson 1927 for the interval of a rate; Agarwal et al. 2021, arXiv:2108.13264, for the interquartile mean with
bootstrap intervals; Mann and Whitney 1947 for the comparison of two samples. The formulas are those of `scipy.stats`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Statistic = Callable[..., Any]
"""Maps samples, and the `axis` along which they lie, to one value for each row."""


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class RankSum(NamedTuple):
    """How two samples of races compare.

    Attributes:
        share_faster: chance that a race of the first is faster than one of the second, ties counted half; in [0, 1].
        p_value: two-sided, normal approximation with tie and continuity correction.
    """

    share_faster: float
    p_value: float


def wilson_interval(num_successes: int, num_trials: int) -> Interval:
    """Returns the 95 % Wilson score interval of a rate.

    Args:
        num_successes: between 0 and `num_trials`.
        num_trials: at least 1.

    Raises:
        ValueError: if the counts are impossible.
    """
    interval = stats.binomtest(num_successes, num_trials).proportion_ci(0.95, method="wilson")
    return Interval(float(interval.low), float(interval.high))


def interquartile_mean(samples: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """Returns the mean along an axis of n values without the lowest and the highest n // 4."""
    return stats.trim_mean(samples, 0.25, axis=axis)


def bootstrap_interval(
    samples: Sequence[float], statistic: Statistic, *, seed: int, num_resamples: int
) -> Interval | None:
    """Returns the 95 % percentile bootstrap interval of a statistic, None with fewer than two samples.

    Args:
        samples: [n] observed values.
        statistic: what to estimate.
        seed: makes the resampling repeatable.
        num_resamples: number of resampled data sets.
    """
    if len(samples) < 2:
        return None
    # Percentile and not BCa, scipy's default: that one has no answer where all times are equal.
    found = stats.bootstrap(
        (np.asarray(samples, dtype=np.float64),),
        statistic,
        n_resamples=num_resamples,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return Interval(float(found.confidence_interval.low), float(found.confidence_interval.high))


def rank_sum(first_s: Sequence[float | None], second_s: Sequence[float | None]) -> RankSum | None:
    """Compares two samples of race times by rank; None when one is empty or all races are equal.

    Args:
        first_s: [n] times in seconds, None for a race that did not finish: slower than any that did.
        second_s: [m] the same of the others.
    """
    first, second = (np.array([math.inf if time is None else time for time in times]) for times in (first_s, second_s))
    if not len(first) or not len(second) or len(np.unique(np.concatenate([first, second]))) == 1:
        return None
    # Always the approximation: the exact distribution, which scipy takes for small samples, knows no ties.
    found = stats.mannwhitneyu(first, second, alternative="two-sided", method="asymptotic")
    return RankSum(1.0 - float(found.statistic) / (len(first) * len(second)), float(found.pvalue))
