"""Statistics of races and of runs: rates, times and scores, with 95 % intervals.

Only finished races have a time. A score matrix is [R, T]: R runs (or races) on each of T tasks (tracks). With one task,
a statistic stratified by task is the plain statistic.

Sources: Wilson 1927 for the interval of a rate; Learned-Miller and Thomas 2019, arXiv:1905.06208, for the mean of
bounded values; Agarwal et al. 2021, arXiv:2108.13264, for the interquartile mean, the probability of improvement and
their bootstrap intervals, as in the package `rliable`; Mann and Whitney 1947 for comparing two samples of times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.float64]
Statistic = Callable[..., NDArray[np.float64]]
"""Maps score matrices [..., R, T] to numbers [...]."""
NUM_RESAMPLES = 2000


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


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


def median(scores: Scores) -> NDArray[np.float64]:
    """Returns the medians [...] of score matrices [..., R, T]."""
    return np.median(scores, axis=(-2, -1))


def interquartile_mean(scores: Scores) -> NDArray[np.float64]:
    """Returns the interquartile means [...] of score matrices [..., R, T]: the R T // 4 lowest and highest are cut."""
    return stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def probability_of_improvement(ours: Scores, theirs: Scores) -> NDArray[np.float64]:
    """Returns the probabilities [...] that a run of ours beats one of theirs; ties count half; averaged over tasks.

    Args:
        ours: [..., R, T].
        theirs: [..., S, T] on the same tasks.
    """
    first, second = ours[..., :, None, :], theirs[..., None, :, :]
    return ((first > second) + 0.5 * (first == second)).mean(axis=(-3, -2, -1))


def bootstrap_interval(
    statistic: Statistic, *samples: Scores, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Returns the 95 % percentile bootstrap interval of a statistic of score matrices.

    Runs are resampled with replacement, separately for each task and each matrix.

    Args:
        statistic: the statistic to estimate.
        samples: [R, T] each, with at least one run.
        seed: of the resampling.
        num_resamples: number of resampled matrices.
    """
    rng = np.random.default_rng(seed)
    drawn = [
        np.take_along_axis(scores[None], rng.integers(len(scores), size=(num_resamples, *scores.shape)), axis=1)
        for scores in samples
    ]
    # Percentile, not BCa, which is undefined if all scores are equal.
    low, high = np.percentile(statistic(*drawn), [2.5, 97.5])
    return Interval(float(low), float(high))


def bounded_interval(values: NDArray[np.float64], low: float, high: float, seed: int = 0) -> Interval:
    """Returns the 95 % interval of the mean of values [N] of which only the bounds are known.

    Each end is a percentile of the weighted mean of the values and one more value at the bound, with weights drawn
    uniformly from the simplex. It thus allows for events too rare to have been seen: after N good races, one in N / 3.7
    may still be as bad as possible. These are Gaffke's bounds: conjectured to hold; no counterexample is known.

    Args:
        values: independent, in [low, high].
        low: lower bound of a value.
        high: upper bound of a value.
        seed: of the `NUM_RESAMPLES` draws of weights.
    """
    rng = np.random.default_rng(seed)
    one_more = rng.standard_exponential(NUM_RESAMPLES)
    weight, weighted = one_more.copy(), np.zeros(NUM_RESAMPLES)
    for part in np.array_split(values, -(-len(values) // 1000)):  # all weights at once would be gigabytes
        drawn = rng.standard_exponential((NUM_RESAMPLES, len(part)))
        weight += drawn.sum(axis=1)
        weighted += drawn @ part
    least, greatest = ((weighted + one_more * bound) / weight for bound in (low, high))
    return Interval(float(np.percentile(least, 2.5)), float(np.percentile(greatest, 97.5)))


def stratified_interval(scores: Scores) -> Interval:
    """Returns the 95 % interval of the mean of a score matrix, for new runs on the same tasks.

    Student's t with a variance pooled over tasks: a bootstrap within tasks with few runs each is too narrow.

    Args:
        scores: [R, T] with at least two runs.
    """
    num_runs, num_tasks = scores.shape
    error = math.sqrt(scores.var(axis=0, ddof=1).mean() / scores.size)
    half_width = float(stats.t.ppf(0.975, num_tasks * (num_runs - 1))) * error
    return Interval(float(scores.mean()) - half_width, float(scores.mean()) + half_width)


def rank_sum_p(first_s: Sequence[float | None], second_s: Sequence[float | None]) -> float | None:
    """Returns the two-sided Mann-Whitney p-value of two samples of race times; None if one is empty or all are equal.

    Uses the normal approximation, with corrections for ties and continuity.

    Args:
        first_s: [n] times in seconds; None for an unfinished race, which ranks slower than any finished one.
        second_s: [m] the same for the second sample.
    """
    first, second = (np.array([math.inf if time is None else time for time in times]) for times in (first_s, second_s))
    if not len(first) or not len(second) or len(np.unique(np.concatenate([first, second]))) == 1:
        return None
    # Always the approximation: the exact distribution, scipy's choice for small samples, does not handle ties.
    return float(stats.mannwhitneyu(first, second, alternative="two-sided", method="asymptotic").pvalue)
