"""The same drivers on several tracks, those that they trained on and others: how well they do on each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rulka.evaluation.metrics import Json, races_entry, versus_reference
from rulka.evaluation.results import Evaluation
from rulka.reference.medals import medal_won, medals_of

KEYS = ("races", "finished", "finish_rate", "median_time_s", "best_time_s", "times_reference", "lap_share")


def entries_by_track(evaluations: Sequence[Evaluation], trained_on: Collection[str], seed: int) -> list[Json]:
    """Returns one entry for each track, `tracks` of `metrics.json`.

    Args:
        evaluations: one for each track, the contestants the same in all.
        trained_on: UIDs of the tracks that the agent was trained on.
        seed: of the bootstrap.

    Returns:
        `uid`, `name`, `length_m`, whether the agent was `trained_on` it, `reference_s` of its reference lap or None,
        and `drivers`: by key those of `KEYS` that there are, and the `medal` that the median time earns, or None.
    """
    return [_entry(evaluation, evaluation.track.uid in trained_on, seed) for evaluation in evaluations]


def _entry(evaluation: Evaluation, is_trained_on: bool, seed: int) -> Json:
    track, lap = evaluation.track, evaluation.reference
    lap_ms = lap.time_ms if lap else None
    drivers: Json = {}
    for contestant in evaluation.contestants:
        entry: Json = races_entry(contestant.races, [], seed)
        if lap_ms is not None:
            entry |= versus_reference(entry, contestant.races, evaluation)
        median_s = entry["median_time_s"]
        medal = None if lap_ms is None or median_s is None else medal_won(1000.0 * median_s, medals_of(lap_ms))
        drivers[contestant.key] = {key: entry[key] for key in KEYS if key in entry} | {"medal": medal}
    return {
        "uid": track.uid,
        "name": track.name,
        "length_m": track.length_m,
        "trained_on": is_trained_on,
        "reference_s": None if lap_ms is None else lap_ms / 1000.0,
        "drivers": drivers,
    }


HEAD = ("track", "length", "trained on", "finished", "median", "x reference", "medal")


def track_rows(entries: Sequence[Json], key: str = "agent") -> list[tuple[str, ...]]:
    """Returns for each track the texts of one driver's row, as `HEAD` names them."""
    return [_row(entry, entry["drivers"][key]) for entry in entries]


def _row(entry: Json, driver: Json) -> tuple[str, ...]:
    median_s, ratio = driver["median_time_s"], driver.get("times_reference")
    return (
        entry["name"],
        f"{entry['length_m']:.0f} m",
        "yes" if entry["trained_on"] else "no",
        f"{driver['finished']} of {driver['races']}",
        "-" if median_s is None else f"{median_s:.2f} s",
        "-" if ratio is None else f"{ratio:.3f}",
        driver["medal"] or "-",
    )


def format_tracks(entries: Sequence[Json]) -> str:
    """Returns the agent's results by track as a table of text."""
    rows = [HEAD, *track_rows(entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
