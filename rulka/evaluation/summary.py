"""From races to the numbers of `metrics.json` and of the result table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rulka.evaluation.results import RaceResult, best_race, finish_times_s, median_race
from rulka.evaluation.statistics import (
    Interval,
    RankSum,
    bootstrap_interval,
    interquartile_mean,
    median,
    rank_sum,
    wilson_interval,
)
from rulka.tracks.track import Track

NUM_RESAMPLES = 4000
"""Resampled data sets of a bootstrap interval; more changes the interval's ends by less than a tenth of its width."""


@dataclass(frozen=True)
class Contestant:
    """One way of driving, with its races.

    Attributes:
        key: its name in `metrics.json`, for example "agent" or "iqn".
        label: its name for people.
        races: at least one race.
    """

    key: str
    label: str
    races: list[RaceResult]


@dataclass(frozen=True)
class Evaluation:
    """All races of one evaluation.

    Attributes:
        track: where they were driven.
        contestants: the agent first, then other algorithms, the cloned policy and random actions, as far as they are.
        demonstrations: the races that were learned from; may be empty.
        reference: a lap near the fastest possible, where there is one.
    """

    track: Track
    contestants: list[Contestant]
    demonstrations: list[RaceResult]
    reference: RaceResult | None = None

    def ratio_to_reference(self, time_s: float | None) -> float | None:
        """Returns a time as a multiple of the reference lap's, None where one of them is missing."""
        reference_s = self.reference.time_s if self.reference else None
        return time_s / reference_s if time_s is not None and reference_s is not None else None

    @property
    def best_demonstration(self) -> RaceResult | None:
        """The fastest finished demonstration."""
        return best_race([race for race in self.demonstrations if race.is_finished])

    @property
    def median_demonstration(self) -> RaceResult | None:
        """The finished demonstration in the middle of the times."""
        return median_race(self.demonstrations)

    def contestant(self, key: str) -> Contestant | None:
        """Returns a contestant by its key, None where it did not take part."""
        return next((contestant for contestant in self.contestants if contestant.key == key), None)


@dataclass(frozen=True)
class Summary:
    """The numbers of one contestant. Times are of finished races alone and None when there is none."""

    num_races: int
    num_finished: int
    finish_rate: float
    finish_rate_interval: Interval
    best_time_s: float | None
    median_time_s: float | None
    median_time_interval_s: Interval | None
    mean_time_s: float | None
    iqm_time_s: float | None
    iqm_time_interval_s: Interval | None
    mean_progress_m: float

    def to_json(self) -> dict[str, object]:
        """Returns the entry of `metrics.json`."""
        return {
            "races": self.num_races,
            "finished": self.num_finished,
            "finish_rate": _rounded(self.finish_rate),
            "finish_rate_interval": _rounded_pair(self.finish_rate_interval),
            "best_time_s": _rounded(self.best_time_s),
            "median_time_s": _rounded(self.median_time_s),
            "median_time_interval_s": _rounded_pair(self.median_time_interval_s),
            "mean_time_s": _rounded(self.mean_time_s),
            "iqm_time_s": _rounded(self.iqm_time_s),
            "iqm_time_interval_s": _rounded_pair(self.iqm_time_interval_s),
            "mean_progress_m": _rounded(self.mean_progress_m),
        }


@dataclass(frozen=True)
class Comparison:
    """A contestant against the demonstrations.

    Attributes:
        num_faster_than_median: races finished faster than the median demonstration.
        faster_than_median_interval: 95 % Wilson interval of their share of all races, finished or not.
        num_faster_than_best: races finished faster than the best demonstration.
        gain_on_median_s: median demonstration minus median race; positive is faster.
        gain_on_best_s: best demonstration minus best race; positive is faster.
        ranks: all races against all demonstrations, unfinished ones last.
    """

    num_races: int
    num_faster_than_median: int
    faster_than_median_interval: Interval
    num_faster_than_best: int
    gain_on_median_s: float | None
    gain_on_best_s: float | None
    ranks: RankSum | None

    def to_json(self) -> dict[str, object]:
        """Returns the entry `versus_demonstrations` of `metrics.json`."""
        return {
            "faster_than_median": self.num_faster_than_median,
            "faster_than_median_interval": _rounded_pair(self.faster_than_median_interval),
            "faster_than_best": self.num_faster_than_best,
            "gain_on_median_s": _rounded(self.gain_on_median_s),
            "gain_on_best_s": _rounded(self.gain_on_best_s),
            "share_faster": _rounded(self.ranks.share_faster if self.ranks else None),
            "rank_sum_p_value": self.ranks.p_value if self.ranks else None,
        }


def summarise(races: Sequence[RaceResult], seed: int) -> Summary:
    """Returns the numbers of a contestant.

    Args:
        races: at least one race.
        seed: of the bootstrap.
    """
    times_s = finish_times_s(list(races))
    values = np.asarray(times_s, dtype=np.float64)
    has_times = len(times_s) > 0
    return Summary(
        num_races=len(races),
        num_finished=len(times_s),
        finish_rate=len(times_s) / len(races),
        finish_rate_interval=wilson_interval(len(times_s), len(races)),
        best_time_s=min(times_s, default=None),
        median_time_s=float(median(values)) if has_times else None,
        median_time_interval_s=bootstrap_interval(times_s, median, seed=seed, num_resamples=NUM_RESAMPLES),
        mean_time_s=float(values.mean()) if has_times else None,
        iqm_time_s=float(interquartile_mean(values)) if has_times else None,
        iqm_time_interval_s=bootstrap_interval(times_s, interquartile_mean, seed=seed, num_resamples=NUM_RESAMPLES),
        mean_progress_m=float(np.mean([race.progress_m for race in races])),
    )


def compare(races: Sequence[RaceResult], demonstrations: Sequence[RaceResult]) -> Comparison | None:
    """Compares races with the demonstrations; None when no demonstration was finished."""
    demonstrated_s = finish_times_s(list(demonstrations))
    if not demonstrated_s:
        return None
    middle_s, best_s = float(np.median(demonstrated_s)), min(demonstrated_s)
    times_s = finish_times_s(list(races))
    num_faster = sum(time_s < middle_s for time_s in times_s)
    return Comparison(
        num_races=len(races),
        num_faster_than_median=num_faster,
        faster_than_median_interval=wilson_interval(num_faster, len(races)),
        num_faster_than_best=sum(time_s < best_s for time_s in times_s),
        gain_on_median_s=middle_s - float(np.median(times_s)) if times_s else None,
        gain_on_best_s=best_s - min(times_s) if times_s else None,
        ranks=rank_sum([race.time_s for race in races], [race.time_s for race in demonstrations]),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _rounded_pair(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(interval.low, 4), round(interval.high, 4)]
