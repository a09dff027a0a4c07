"""Races: which is best, which is in the middle, when was the car where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rulka.evaluation.results import (
    RaceResult,
    best_race,
    median_race,
    time_at_distance_s,
)

MakeRace = Callable[..., RaceResult]


def test_best_and_median_race(make_race: MakeRace) -> None:
    slow, fast_but_out = make_race(10), make_race(50, stop_m=99)
    assert best_race([fast_but_out, slow]) is slow
    assert best_race([make_race(50, stop_m=20), fast_but_out]) is fast_but_out
    assert best_race([]) is None
    races = [make_race(speed) for speed in (10, 20, 25, 40)] + [make_race(30, stop_m=5)]
    assert median_race(races) is races[2]
    assert median_race([make_race(30, stop_m=5)]) is None


def test_time_at_distance(make_race: MakeRace) -> None:
    """At 20 m/s, 10 m are reached after 0.5 s, the finish after exactly the race time."""
    times_s = time_at_distance_s(make_race(20), np.array([0.0, 10.0, 33.0, 100.0]))
    np.testing.assert_allclose(times_s, [0.0, 0.5, 1.65, 5.0], atol=1e-6)
    # A car that rolls back from 3 m to 1 m was at 2 m when it first came there.
    race = replace(make_race(20, stop_m=4), along_m=np.array([0.0, 3.0, 1.0, 1.0, 4.0], np.float32))
    times_s = time_at_distance_s(race, np.array([1.5, 3.5]))
    np.testing.assert_allclose(times_s, [0.025, 0.15 + 0.05 * 2.5 / 3])  # 0 to 3 m in 50 ms; 1 to 4 m in the last 50 ms
    race = make_race(20, stop_m=50)
    np.testing.assert_allclose(time_at_distance_s(race, np.array([40.0, 60.0])), [2.0, np.nan])


def test_races_that_contradict_themselves_are_refused(make_race: MakeRace) -> None:
    with pytest.raises(ValueError, match="exactly when it was finished"):
        replace(make_race(20, stop_m=50), time_ms=2500)
    race = make_race(20)
    with pytest.raises(ValueError, match="samples cannot hold"):
        replace(race, along_m=race.along_m[:-1])
