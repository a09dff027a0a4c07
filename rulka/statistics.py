"""Statistics of races and of runs: rates, times and scores, with 95 % intervals.

Times are of finished races alone; a race that did not finish has no time. A score matrix is [R, T]: R runs (or races)
on each of T tasks (tracks). With one task, what is stratified by task is the plain statistic.

Sources: Wilson 1927 for the interval of a rate; Learned-Miller and Thomas 2019, arXiv:1905.06208, for the mean of what
has bounds; Agarwal et al. 2021, arXiv:2108.13264, for the interquartile mean, the probability of improvement and their
bootstrap intervals, as the package `rliable` computes them; Mann and Whitney 1947 for the comparison of two samples of
times.
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
    """Returns the means [...] of score matrices [..., R, T] without their lowest and highest R T // 4 scores."""
    return stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def probability_of_improvement(ours: Scores, theirs: Scores) -> NDArray[np.float64]:
    """Returns the chances [...] that a run of ours scores higher than one of theirs, ties counted half, means over T.

    Args:
        ours: [..., R, T].
        theirs: [..., S, T] of the same tasks.
    """
    first, second = ours[..., :, None, :], theirs[..., None, :, :]
    return ((first > second) + 0.5 * (first == second)).mean(axis=(-3, -2, -1))


def bootstrap_interval(
    statistic: Statistic, *samples: Scores, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Returns the 95 % percentile bootstrap interval of a statistic of score matrices.

    Runs are drawn with replacement for each task by itself, and for each matrix by itself.

    Args:
        statistic: what to estimate.
        samples: [R, T] each, with at least one run.
        seed: makes the resampling repeatable.
        num_resamples: number of resampled matrices.
    """
    rng = np.random.default_rng(seed)
    drawn = [
        np.take_along_axis(scores[None], rng.integers(len(scores), size=(num_resamples, *scores.shape)), axis=1)
        for scores in samples
    ]
    # Percentile and not BCa: that one has no answer where all scores are equal.
    low, high = np.percentile(statistic(*drawn), [2.5, 97.5])
    return Interval(float(low), float(high))


def bounded_interval(values: NDArray[np.float64], low: float, high: float, seed: int = 0) -> Interval:
    """Returns the 95 % interval of the mean of values [N] of which nothing is known but their bounds.

    Each end is a percentile of the mean of the values and of one more at the bound, with weights drawn evenly from all
    that there are. So it allows for what is too rare to have been seen: after N races that went well, one in N / 3.7
    may go as badly as can be. Gaffke's bounds: conjectured to hold; no counterexample is known.

    Args:
        values: independent of each other, in [low, high].
        low: the least that a value may be.
        high: the greatest.
        seed: makes the `NUM_RESAMPLES` draws of weights repeatable.
    """
    rng = np.random.default_rng(seed)
    one_more = rng.standard_exponential(NUM_RESAMPLES)
    weight, weighted = one_more.copy(), np.zeros(NUM_RESAMPLES)
    for part in np.array_split(values, -(-len(values) // 1000)):  # the weights of all would be gigabytes
        drawn = rng.standard_exponential((NUM_RESAMPLES, len(part)))
        weight += drawn.sum(axis=1)
        weighted += drawn @ part
    least, greatest = ((weighted + one_more * bound) / weight for bound in (low, high))
    return Interval(float(np.percentile(least, 2.5)), float(np.percentile(greatest, 97.5)))


def stratified_interval(scores: Scores) -> Interval:
    """Returns the 95 % interval of the mean of a score matrix, for other runs on the same tasks.

    Student's, with one variance within all tasks: a bootstrap within tasks of few runs each is too narrow.

    Args:
        scores: [R, T] with at least two runs.
    """
    num_runs, num_tasks = scores.shape
    error = math.sqrt(scores.var(axis=0, ddof=1).mean() / scores.size)
    half_width = float(stats.t.ppf(0.975, num_tasks * (num_runs - 1))) * error
    return Interval(float(scores.mean()) - half_width, float(scores.mean()) + half_width)


def rank_sum_p(first_s: Sequence[float | None], second_s: Sequence[float | None]) -> float | None:
    """Returns the two-sided p-value of two samples of race times; None when one is empty or all races are equal.

    It is the normal approximation, with corrections for ties and continuity.

    Args:
        first_s: [n] times in seconds, None for a race that did not finish: slower than any that did.
        second_s: [m] the same of the others.
    """
    first, second = (np.array([math.inf if time is None else time for time in times]) for times in (first_s, second_s))
    if not len(first) or not len(second) or len(np.unique(np.concatenate([first, second]))) == 1:
        return None
    # Always the approximation: the exact distribution, which scipy takes for small samples, knows no ties.
    return float(stats.mannwhitneyu(first, second, alternative="two-sided", method="asymptotic").pvalue)
