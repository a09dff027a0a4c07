"""Statistics of few runs: by hand, and and beside rliable 1.2.0 (20,000 and 5,000 resamples)."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.study.statistics import (
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
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


def test_values_are_those_of_rliable() -> None:
    assert interquartile_mean(OURS) == pytest.approx(0.6809333333333334, abs=1e-12)
    assert probability_of_improvement(OURS, THEIRS) == pytest.approx(0.5083333333333333, abs=1e-12)
    profile = performance_profile(OURS, np.array([0.3, 0.5, 0.7, 0.9]))
    np.testing.assert_allclose(profile, [1.0, 0.8, 8 / 15, 1 / 15])


def test_intervals_are_those_of_rliable() -> None:
    """The bootstrap draws at random: its ends are known to a hundredth or so."""
    assert stratified_interval(interquartile_mean, OURS) == pytest.approx((0.5829, 0.7540), abs=0.01)
    both = stratified_interval(probability_of_improvement, OURS, THEIRS)
    assert both == pytest.approx((0.2667, 0.7417), abs=0.03)


def test_middle_half_by_hand() -> None:
    """Of 0 to 7, the two lowest and the two highest are left out: (2 + 3 + 4 + 5) / 4."""
    assert interquartile_mean(np.arange(8.0).reshape(4, 2)) == 3.5


def test_ties_count_half_and_tasks_are_not_mixed() -> None:
    """On the first task 1 of 2 and a tie, (1 + 0.5) / 2; on the second none, though 9 beats all of the first."""
    ours, theirs = np.array([[2.0, 9.0]]), np.array([[1.0, 10.0], [2.0, 11.0]])
    assert probability_of_improvement(ours, theirs) == pytest.approx((0.75 + 0.0) / 2)


def test_runs_are_drawn_within_their_task() -> None:
    """Tasks of one value each have no spread, however different they are."""
    same = np.tile([0.1, 0.9], (4, 1))
    assert stratified_interval(interquartile_mean, same) == (0.5, 0.5)


def test_one_run_has_an_interval_of_no_width() -> None:
    assert stratified_interval(interquartile_mean, np.array([[0.3]])) == (0.3, 0.3)
