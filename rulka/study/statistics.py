"""Statistics of few runs, after Agarwal et al. 2021 (arXiv:2108.13264), as the package `rliable` computes them.

A score matrix is [R, T]: R runs (seeds) of one variant on each of T tasks (tracks). With one task, what is stratified
by task is the plain statistic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rulka.statistics import Interval

Scores = NDArray[np.float64]
NUM_RESAMPLES = 2000


def interquartile_mean(scores: Scores) -> float:
    """Returns the mean of the middle half of all scores [R, T], runs and tasks together."""
    return float(stats.trim_mean(scores.ravel(), 0.25))


def stratified_interval(
    statistic: Callable[..., float], *samples: Scores, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Returns the 95 % percentile bootstrap interval of a statistic of score matrices.

    Runs are drawn with replacement for each task by itself, and for each matrix by itself.

    Args:
        statistic: maps the matrices to a number.
        samples: [R, T] each, with at least one run.
        seed: makes the resampling repeatable.
        num_resamples: number of resampled matrices.
    """
    rng = np.random.default_rng(seed)
    values = [statistic(*(_resampled(sample, rng) for sample in samples)) for _ in range(num_resamples)]
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(low), float(high))


def _resampled(scores: Scores, rng: np.random.Generator) -> Scores:
    return np.take_along_axis(scores, rng.integers(len(scores), size=scores.shape), axis=0)


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """Returns the chance that a run of ours scores higher than one of theirs, ties counted half, mean over tasks.

    Args:
        ours: [R, T].
        theirs: [S, T] of the same tasks.
    """
    wins = [
        float((mine[:, None] > other[None, :]).mean() + 0.5 * (mine[:, None] == other[None, :]).mean())
        for mine, other in zip(ours.T, theirs.T, strict=True)
    ]
    return math.fsum(wins) / len(wins)


def performance_profile(scores: Scores, thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [P] the share of all runs, on all tasks, that score higher than each of the thresholds [P]."""
    values: Any = scores.ravel()[:, None] > thresholds[None, :]
    return values.mean(axis=0)
