"""From races to numbers: `metrics.json`, and the table that is printed: the same for machines and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rulka.evaluation.results import Evaluation, RaceResult, finish_times_s
from rulka.reference.medals import medals_of
from rulka.statistics import (
    Interval,
    RankSum,
    Statistic,
    bootstrap_interval,
    interquartile_mean,
    median,
    rank_sum,
    wilson_interval,
)

Json = dict[str, Any]
FIXED = ("agent", "cloned", "random")
SCORES = ("finish_rate", "median_time_s", "times_reference")
NO_RACES: Json = {
    "races": 0,
    "finished": 0,
    "finish_rate": None,
    "best_time_s": None,
    "median_time_s": None,
    "mean_progress_m": None,
}
NUM_RESAMPLES = 4000
"""Resampled data sets of a bootstrap interval; more changes the interval's ends by less than a tenth of its width."""


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
        median_time_s=float(np.median(values)) if has_times else None,
        median_time_interval_s=_interval(median, values, seed),
        mean_time_s=float(values.mean()) if has_times else None,
        iqm_time_s=float(interquartile_mean(values[:, None])) if has_times else None,
        iqm_time_interval_s=_interval(interquartile_mean, values, seed),
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


def _interval(statistic: Statistic, times_s: NDArray[np.float64], seed: int) -> Interval | None:
    """Returns the interval of a statistic of times [n]; None with fewer than two."""
    if len(times_s) < 2:
        return None
    return bootstrap_interval(statistic, times_s[:, None], seed=seed, num_resamples=NUM_RESAMPLES)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _rounded_pair(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(interval.low, 4), round(interval.high, 4)]


def metrics_of(evaluation: Evaluation, seed: int, agent_algorithm: str) -> Json:
    """Returns the content of `metrics.json`.

    Args:
        evaluation: all races.
        seed: of the bootstrap.
        agent_algorithm: under which name the agent itself stands in `algorithms`.

    Returns:
        Entries `agent`, `cloned`, `random` as far as they took part, `demonstrations`, `algorithms` (every trained
        algorithm, the agent's included) and `track`. Where there is a reference lap also `reference`, with `medals` in
        ms, and in each contestant's entry `times_reference`, its median time as a multiple of it, and `lap_share`, the
        mean over its races of the lap's time over theirs, 0 for a race that did not finish.
    """
    entries = {c.key: races_entry(c.races, evaluation.demonstrations, seed) for c in evaluation.contestants}
    reference = reference_entry(evaluation, seed)
    if reference:
        races = {contestant.key: contestant.races for contestant in evaluation.contestants}
        entries = {key: entry | versus_reference(entry, races[key], evaluation) for key, entry in entries.items()}
    metrics: Json = {key: entries[key] for key in FIXED if key in entries} | reference
    if "agent" in metrics:
        metrics["agent"] = metrics["agent"] | {"algorithm": agent_algorithm}
    demonstrations = evaluation.demonstrations
    metrics["demonstrations"] = summarise(demonstrations, seed).to_json() if demonstrations else dict(NO_RACES)
    trained = {agent_algorithm: entries["agent"]} if "agent" in entries else {}
    metrics["algorithms"] = trained | {key: entry for key, entry in entries.items() if key not in FIXED}
    track = evaluation.track
    metrics["track"] = {"uid": track.uid, "name": track.name, "length_m": track.length_m, "gates": len(track.gate_m)}
    return metrics


def scores_of(metrics: Mapping[str, Any]) -> Json:
    """Returns the few numbers that DVC shows and compares, `scores.json`, out of those of `metrics_of`.

    Returns:
        For each contestant, a trained algorithm or `cloned`, what there is of `SCORES`.
    """
    entries = metrics["algorithms"] | {key: metrics[key] for key in ("cloned",) if key in metrics}
    return {name: {key: entry[key] for key in SCORES if entry.get(key) is not None} for name, entry in entries.items()}


def races_entry(races: Sequence[RaceResult], demonstrations: Sequence[RaceResult], seed: int) -> Json:
    """Returns the entry of one contestant."""
    versus = compare(races, demonstrations)
    entry = summarise(races, seed).to_json()
    return entry | {"versus_demonstrations": versus.to_json()} if versus else entry


def reference_entry(evaluation: Evaluation, seed: int) -> Json:
    """Returns the entry `reference` under its name, nothing where there is no reference lap."""
    lap = evaluation.reference
    if lap is None or lap.time_ms is None:
        return {}
    return {"reference": summarise([lap], seed).to_json() | {"medals": medals_of(lap.time_ms)._asdict()}}


def versus_reference(entry: Json, races: Sequence[RaceResult], evaluation: Evaluation) -> Json:
    """Returns what the reference lap, which has to be there, adds to the entry of some races; see `metrics_of`."""
    ratio = evaluation.ratio_to_reference(entry["median_time_s"])
    ratios = [evaluation.ratio_to_reference(race.time_s) for race in races]
    shares = [0.0 if one is None else 1.0 / one for one in ratios]
    return {"times_reference": _rounded(ratio), "lap_share": _rounded(float(np.mean(shares)))}


def format_metrics(metrics: Json) -> str:
    """Returns the metrics as a table of text."""
    agent = metrics.get("agent")
    rows = [(f"agent ({agent['algorithm']})", agent)] if agent else []
    others = [name for name in metrics["algorithms"] if not agent or name != agent["algorithm"]]
    rows += [(name, metrics["algorithms"][name]) for name in others]
    named = [(name, metrics[name]) for name in ("cloned", "random", "demonstrations", "reference") if name in metrics]
    rows += [(name, entry) for name, entry in named if entry["races"]]  # on other tracks there are no demonstrations
    lines = [("", "finished", "rate", "best s", "median s", "95 % interval", "progress m", "x reference")]
    lines += [(name, *_cells(entry)) for name, entry in rows]
    if "reference" not in metrics:
        lines = [line[:-1] for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    table = "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )
    return f"{table}\nmedals  {format_medals(metrics['reference']['medals'])}" if "reference" in metrics else table


def format_medals(medals: Mapping[str, int]) -> str:
    """Returns medal times in words, from names that end in _ms."""
    return ", ".join(f"{name.removesuffix('_ms')} {ms / 1000:.2f} s" for name, ms in medals.items())


def _cells(entry: Json) -> tuple[str, ...]:
    interval = entry.get("median_time_interval_s")
    return (
        f"{entry['finished']}/{entry['races']}",
        "-" if entry["finish_rate"] is None else f"{100 * entry['finish_rate']:.0f} %",
        _number(entry["best_time_s"], 2),
        _number(entry["median_time_s"], 2),
        f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "-",
        _number(entry["mean_progress_m"], 0),
        _number(entry.get("times_reference"), 3),
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
