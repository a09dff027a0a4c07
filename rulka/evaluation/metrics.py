"""`metrics.json` and the table that is printed: the same numbers for machines and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rulka.evaluation.result import RaceResult
from rulka.evaluation.summary import Evaluation, compare, summarise
from rulka.reference.medals import medals_of

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


def metrics_of(evaluation: Evaluation, seed: int, agent_algorithm: str) -> Json:
    """Returns the content of `metrics.json`.

    Args:
        evaluation: all races.
        seed: of the bootstrap.
        agent_algorithm: under which name the agent itself stands in `algorithms`.

    Returns:
        Entries `agent`, `cloned`, `random` as far as they took part, `demonstrations`, `algorithms` (every trained
        algorithm, the agent's included) and `track`. Where there is a reference lap also `reference`, with `medals` in
        ms, and in each contestant's entry `times_reference`, its median time as a multiple of it.
    """
    entries = {c.key: races_entry(c.races, evaluation.demonstrations, seed) for c in evaluation.contestants}
    reference = reference_entry(evaluation, seed)
    if reference:
        entries = {key: entry | _times_reference(entry, evaluation) for key, entry in entries.items()}
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


def _times_reference(entry: Json, evaluation: Evaluation) -> Json:
    ratio = evaluation.ratio_to_reference(entry["median_time_s"])
    return {"times_reference": None if ratio is None else round(ratio, 4)}


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
