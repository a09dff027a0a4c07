"""Statistics of finish rates and times. Times are of finished races alone; a race that did not finish has no time.

Sources: Wilson 1927 for the interval of a rate; Agarwal et al. 2021, arXiv:2108.13264, for the interquartile mean with
bootstrap intervals; Mann and Whitney 1947 for the comparison of two samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054
"""Half width of the central 95 % of a standard normal distribution."""

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Maps samples [..., n] to one value for each row [...]."""


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
    if num_trials < 1 or not 0 <= num_successes <= num_trials:
        message = f"{num_successes} successes of {num_trials} trials are impossible"
        raise ValueError(message)
    rate, squared = num_successes / num_trials, Z_95**2
    middle = rate + squared / (2 * num_trials)
    half = Z_95 * math.sqrt(rate * (1 - rate) / num_trials + squared / (4 * num_trials**2))
    scale = 1 + squared / num_trials
    return Interval(max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


def median(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the median of each row of [..., n]."""
    return np.median(samples, axis=-1)


def interquartile_mean(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the mean of each row of [..., n] without its lowest and highest quarter (n // 4 values each)."""
    cut = samples.shape[-1] // 4
    return np.sort(samples, axis=-1)[..., cut : samples.shape[-1] - cut].mean(axis=-1)


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
    values = np.asarray(samples, dtype=np.float64)
    chosen = np.random.default_rng(seed).integers(0, len(values), size=(num_resamples, len(values)))
    low, high = np.percentile(statistic(values[chosen]), [2.5, 97.5])
    return Interval(float(low), float(high))


def rank_sum(first_s: Sequence[float | None], second_s: Sequence[float | None]) -> RankSum | None:
    """Compares two samples of race times by rank; None when one is empty or all races are equal.

    Args:
        first_s: [n] times in seconds, None for a race that did not finish: slower than any that did.
        second_s: [m] the same of the others.
    """
    if not first_s or not second_s:
        return None
    times = np.array([math.inf if time is None else time for time in (*first_s, *second_s)])
    num_first, num_second = len(first_s), len(second_s)
    _, group, counts = np.unique(times, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2.0)[group]
    num_slower_pairs = float(rank[:num_first].sum()) - num_first * (num_first + 1) / 2.0
    num_pairs, num_all = num_first * num_second, num_first + num_second
    ties = float((counts**3 - counts).sum()) / (num_all * (num_all - 1))
    variance = num_pairs / 12.0 * (num_all + 1 - ties)
    if variance <= 0:
        return None
    distance = max(0.0, abs(num_slower_pairs - num_pairs / 2.0) - 0.5)
    return RankSum(1.0 - num_slower_pairs / num_pairs, math.erfc(distance / math.sqrt(2.0 * variance)))
