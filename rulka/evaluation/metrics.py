"""Computes `metrics.json` from races, and formats the same numbers as text tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rulka.agents.algorithms import label_of
from rulka.evaluation.results import Evaluation, RaceResult, finish_times_s
from rulka.evaluation.statistics import Interval, median_interval, rank_sum_p, wilson_interval
from rulka.reference.medals import medal_won, medals_of

Json = dict[str, Any]
FIXED = ("agent", "cloned", "random")
SCORES = ("finish_rate", "median_time_s", "times_reference")
TRACK_KEYS = ("races", "finished", "finish_rate", "median_time_s", "best_time_s", "times_reference", "lap_share")
TRACK_HEAD = ("track", "length", "trained on", "finished", "median", "x reference", "medal")
NO_RACES: Json = {"races": 0, "finished": 0, "best_time_s": None, "median_time_s": None}


def summarise(races: Sequence[RaceResult]) -> Json:
    """Returns the numbers of a contestant for `metrics.json`.

    Times cover finished races only, None if there are none. Intervals are 95 % intervals; that of the median takes six
    finished races.

    Args:
        races: at least one race.
    """
    times_s = finish_times_s(races)
    return {
        "races": len(races),
        "finished": len(times_s),
        "finish_rate": _rounded(len(times_s) / len(races)),
        "finish_rate_interval": _rounded_pair(wilson_interval(len(times_s), len(races))),
        "best_time_s": _rounded(min(times_s, default=None)),
        "median_time_s": _rounded(np.median(times_s)) if times_s else None,
        "median_time_interval_s": _rounded_pair(median_interval(np.asarray(times_s))) if times_s else None,
        "mean_progress_m": _rounded(np.mean([race.progress_m for race in races])),
    }


def compare(races: Sequence[RaceResult], demonstrations: Sequence[RaceResult]) -> Json | None:
    """Compares races with the demonstrations; None if no demonstration was finished.

    Returns:
        The entry `versus_demonstrations` of `metrics.json`: `faster_than_median`, races finished faster than the median
        demonstration, with the interval of their share of all races, finished or not; `gain_on_median_s`, median
        demonstration minus median race, positive if the race is faster, and `gain_on_best_s`; `rank_sum_p_value` of all
        races against all demonstrations, unfinished ones ranked last.
    """
    demonstrated_s, times_s = finish_times_s(demonstrations), finish_times_s(races)
    if not demonstrated_s:
        return None
    middle_s, best_s = float(np.median(demonstrated_s)), min(demonstrated_s)
    num_faster = sum(time_s < middle_s for time_s in times_s)
    return {
        "faster_than_median": num_faster,
        "faster_than_median_interval": _rounded_pair(wilson_interval(num_faster, len(races))),
        "gain_on_median_s": _rounded(middle_s - np.median(times_s)) if times_s else None,
        "gain_on_best_s": _rounded(best_s - min(times_s)) if times_s else None,
        "rank_sum_p_value": rank_sum_p([race.time_s for race in races], [race.time_s for race in demonstrations]),
    }


def _rounded(value: Any) -> float | None:
    return None if value is None else round(float(value), 4)


def _rounded_pair(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [round(interval.low, 4), round(interval.high, 4)]


def metrics_of(evaluation: Evaluation, agent_algorithm: str) -> Json:
    """Returns the content of `metrics.json`.

    Args:
        evaluation: all races.
        agent_algorithm: key of the agent itself in `algorithms`.

    Returns:
        Entries `agent`, `cloned`, `random` if they took part, `demonstrations`, `algorithms` (every trained algorithm,
        including the agent's) and `track`, with `medals` in ms if it has any. With a reference lap also `reference`,
        and in each contestant's entry `times_reference`, its median time as a multiple of the lap's, and `lap_share`,
        the mean over its races of the lap's time over theirs, 0 for an unfinished race.
    """
    entries = {c.key: _entry(c.races, evaluation) for c in evaluation.contestants}
    metrics: Json = {key: entries[key] for key in FIXED if key in entries}
    if "agent" in metrics:
        metrics["agent"] = metrics["agent"] | {"algorithm": agent_algorithm}
    lap, demonstrations, track = evaluation.reference, evaluation.demonstrations, evaluation.track
    if lap is not None and lap.time_ms is not None:
        metrics["reference"] = summarise([lap])
    metrics["demonstrations"] = summarise(demonstrations) if demonstrations else dict(NO_RACES)
    trained = {agent_algorithm: entries["agent"]} if "agent" in entries else {}
    metrics["algorithms"] = trained | {key: entry for key, entry in entries.items() if key not in FIXED}
    metrics["track"] = {"uid": track.uid, "name": track.name, "length_m": track.length_m, "gates": len(track.gate_m)}
    if medals := medals_of(track, lap.time_ms if lap else None):
        metrics["track"] |= {"medals": medals._asdict(), "medals_by": "map" if track.medals_ms else "reference lap"}
    return metrics


def _entry(races: Sequence[RaceResult], evaluation: Evaluation) -> Json:
    """Returns the entry of one contestant."""
    entry = summarise(races)
    if versus := compare(races, evaluation.demonstrations):
        entry["versus_demonstrations"] = versus
    if evaluation.reference is not None and evaluation.reference.time_ms is not None:
        ratios = [evaluation.ratio_to_reference(race.time_s) for race in races]
        entry["times_reference"] = _rounded(evaluation.ratio_to_reference(entry["median_time_s"]))
        entry["lap_share"] = _rounded(np.mean([0.0 if one is None else 1.0 / one for one in ratios]))
    return entry


def scores_of(metrics: Mapping[str, Any]) -> Json:
    """Returns `scores.json`, the few numbers that DVC shows and compares, from those of `metrics_of`.

    Returns:
        The available `SCORES` of each trained algorithm and of `cloned`, by its key.
    """
    entries = metrics["algorithms"] | {key: metrics[key] for key in ("cloned",) if key in metrics}
    return {name: {key: entry[key] for key in SCORES if entry.get(key) is not None} for name, entry in entries.items()}


def entries_by_track(evaluations: Sequence[Evaluation], trained_on: Collection[str]) -> list[Json]:
    """Returns `tracks` of `metrics.json`, one entry per track.

    Args:
        evaluations: one per track, all with the same contestants.
        trained_on: UIDs of the tracks that the agent was trained on.

    Returns:
        `uid`, `name`, `length_m`, whether the agent was `trained_on` it, `reference_s` of its reference lap or None,
        and `drivers`: by key the available `TRACK_KEYS`, and the `medal` that the median time earns, or None.
    """
    return [_track_entry(evaluation, evaluation.track.uid in trained_on) for evaluation in evaluations]


def _track_entry(evaluation: Evaluation, is_trained_on: bool) -> Json:
    track, lap = evaluation.track, evaluation.reference
    lap_ms = lap.time_ms if lap else None
    medals = medals_of(track, lap_ms)
    drivers: Json = {}
    for contestant in evaluation.contestants:
        entry = _entry(contestant.races, evaluation)
        median_s = entry["median_time_s"]
        medal = medal_won(1000.0 * median_s, medals) if medals and median_s is not None else None
        drivers[contestant.key] = {key: entry[key] for key in TRACK_KEYS if key in entry} | {"medal": medal}
    return {
        "uid": track.uid,
        "name": track.name,
        "length_m": track.length_m,
        "trained_on": is_trained_on,
        "reference_s": None if lap_ms is None else lap_ms / 1000.0,
        "drivers": drivers,
    }


def track_rows(entries: Sequence[Json]) -> list[tuple[str, ...]]:
    """Returns the agent's row for each track as text, in the columns of `TRACK_HEAD`."""
    rows = []
    for entry in entries:
        driver = entry["drivers"]["agent"]
        rows.append(
            (
                entry["name"],
                f"{entry['length_m']:.0f} m",
                "yes" if entry["trained_on"] else "no",
                f"{driver['finished']} of {driver['races']}",
                _number(driver["median_time_s"], 2, " s"),
                _number(driver.get("times_reference"), 3),
                driver["medal"] or "-",
            )
        )
    return rows


def format_tracks(entries: Sequence[Json]) -> str:
    """Formats the agent's results by track as a text table."""
    return text_table([TRACK_HEAD, *track_rows(entries)])


def format_metrics(metrics: Json) -> str:
    """Formats the metrics as a text table."""
    agent = metrics.get("agent")
    rows = [(f"agent ({label_of(agent['algorithm'])})", agent)] if agent else []
    others = [name for name in metrics["algorithms"] if not agent or name != agent["algorithm"]]
    rows += [(label_of(name), metrics["algorithms"][name]) for name in others]
    named = [(name, metrics[name]) for name in ("cloned", "random", "demonstrations", "reference") if name in metrics]
    rows += [(name, entry) for name, entry in named if entry["races"]]  # on other tracks there are no demonstrations
    lines = [("", "finished", "rate", "best s", "median s", "95 % interval", "progress m", "x reference")]
    lines += [(name, *_cells(entry)) for name, entry in rows]
    text, track = text_table(lines if "reference" in metrics else [line[:-1] for line in lines]), metrics["track"]
    if "medals" not in track:
        return text
    return f"{text}\nmedals by the {track['medals_by']}  {format_medals(track['medals'])}"


def text_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Aligns the first column left and all others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def format_medals(medals: Mapping[str, int]) -> str:
    """Formats medal times, whose names end in _ms, as one line."""
    return ", ".join(f"{name.removesuffix('_ms')} {ms / 1000:.2f} s" for name, ms in medals.items())


def _cells(entry: Json) -> tuple[str, ...]:
    interval = entry.get("median_time_interval_s")
    return (
        f"{entry['finished']}/{entry['races']}",
        f"{100 * entry['finish_rate']:.0f} %",
        _number(entry["best_time_s"], 2),
        _number(entry["median_time_s"], 2),
        f"{interval[0]:.2f}-{interval[1]:.2f}" if interval else "-",
        _number(entry["mean_progress_m"], 0),
        _number(entry.get("times_reference"), 3),
    )


def _number(value: float | None, digits: int, unit: str = "") -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
