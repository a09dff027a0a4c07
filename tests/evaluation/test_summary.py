"""The numbers of metrics.json."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from rulka.evaluation.metrics import compare, summarise
from rulka.evaluation.results import RaceResult

MakeRace = Callable[..., RaceResult]


def test_summary_by_hand(make_race: MakeRace) -> None:
    """Times 4, 5 and 10 s and one race that ended at 60 m."""
    races = [make_race(25), make_race(20), make_race(10), make_race(90, stop_m=60)]
    entry = summarise(races)
    assert (entry["races"], entry["finished"], entry["finish_rate"]) == (4, 3, 0.75)
    assert (entry["best_time_s"], entry["median_time_s"]) == (4.0, 5.0)
    # Wilson, 3 of 4.
    assert entry["finish_rate_interval"] == pytest.approx([0.3006, 0.9544], abs=1e-4)
    assert entry["mean_progress_m"] == pytest.approx(90.0)
    assert entry["median_time_interval_s"] is None, "three times are too few"
    assert summarise([make_race(100 / s) for s in (6, 1, 5, 2, 4, 3)])["median_time_interval_s"] == [1.0, 6.0]
    summary = summarise([make_race(10, stop_m=30), make_race(10, stop_m=50)])
    entry = json.loads(json.dumps(summary, allow_nan=False))
    assert entry["finish_rate"] == 0.0
    assert entry["best_time_s"] is None
    assert entry["median_time_s"] is None
    assert entry["mean_progress_m"] == 40.0


def test_comparison_by_hand(make_race: MakeRace) -> None:
    """Demonstrations 5, 10 and 20 s (median 10); races 4, 8, 10 s and one not finished."""
    demonstrations = [make_race(speed) for speed in (20, 10, 5)]
    races = [make_race(25), make_race(12.5), make_race(10), make_race(90, stop_m=99)]
    versus = compare(races, demonstrations)
    assert versus is not None
    assert versus["faster_than_median"] == 2  # a tie at 10 s is not faster, and the fourth never finished
    # Wilson, 2 of 4: 0.5 +- 1.96 sqrt(1 / 16 + 1.96^2 / 64) / (1 + 1.96^2 / 4). One of the four has no time.
    assert versus["faster_than_median_interval"] == pytest.approx([0.15, 0.85], abs=1e-4)
    assert versus["gain_on_median_s"] == pytest.approx(2.0)
    assert versus["gain_on_best_s"] == pytest.approx(1.0)
    # Ranks 1, 3, 4.5 and 7, that of the unfinished one: U is 5.5 of 6 expected, within the correction for continuity.
    assert versus["rank_sum_p_value"] == pytest.approx(1.0)
    assert compare([make_race(10)], [make_race(10, stop_m=50)]) is None, "nobody finished"
