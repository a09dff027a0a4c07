"""The table of a board: entries that differ in the seed alone are the runs of one row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import trim_mean

from rulka.board.entry import SUFFIX, Entry, EntryError, read_entry
from rulka.board.rules import NUM_CAMPAIGN, rules
from rulka.evaluation.statistics import stratified_interval

BUDGETS = (300_000, 1_000_000, 10_000_000)
"""Decisions in training; a row is of the smallest that it kept to."""
HEAD = ("driver", "who", "algorithm", "sees", "decisions", "CPU min", "runs")
CLASSES = ("all", "campaign", "held out", "trained on", "never seen")
_NOTE = (
    "Interquartile mean of the lap shares (reference lap's time over race time, 0 without a finish), then races that "
    "finished. Brackets: 95 % interval over runs (Student's t), none where a single run or equal ones tell no spread. "
    "Trained on, never seen: tracks that each run's card names, or does not."
)


def read_board(folder: Path) -> list[Entry]:
    """Reads all entries of a folder, without driving them.

    Raises:
        EntryError: if there is none, one is damaged, or two are of the same driver and seed.
    """
    entries = [read_entry(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not entries:
        raise EntryError(f"{folder} holds no entry (*{SUFFIX})", hint="`rulka board enter AGENT` makes one.")
    runs = [(*_row_of(entry), entry.card.seed) for entry in entries]
    if twice := [run for run in runs if runs.count(run) > 1]:
        raise EntryError(f"{folder} holds two entries of {twice[0][0]!r} with seed {twice[0][-1]}", hint="Remove one.")
    return sorted(entries, key=_row_of)


def rows_of(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Returns a row for each driver as plain JSON, the best of each class of sight and budget first.

    A row has the fields of the card, the `budget` in decisions (None beyond the largest, or unknown), `runs`, in each
    of `CLASSES` the `score` with its `interval`, the `finish_rate`, and in `tracks` the same by track.
    """
    rows = []
    for _, group in groupby(sorted(entries, key=_row_of), _row_of):
        runs = list(group)
        card = runs[0].card
        kept = [budget for budget in BUDGETS if card.decisions is not None and card.decisions <= budget]
        row: dict[str, Any] = card.model_dump(mode="json", exclude={"seed", "trained_on"})
        row |= {"budget": kept[0] if kept else None, "runs": len(runs)}
        row |= {name: _scores(runs, [_tracks_of(run, name) for run in runs]) for name in CLASSES}
        row["tracks"] = {uid: _scores(runs, [np.arange(k, k + 1)] * len(runs)) for k, uid in enumerate(rules().uids)}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["sees"], row["budget"] or np.inf, -row["all"]["score"], row["name"]))


def _row_of(entry: Entry) -> tuple[Any, ...]:
    card = entry.card
    return card.name, card.who, card.algorithm, card.sees, card.decisions or 0


def _tracks_of(entry: Entry, name: str) -> NDArray[np.int64]:
    """Returns the tracks of one of `CLASSES`."""
    uids, trained = np.array(rules().uids), entry.card.trained_on
    number, is_trained = np.arange(len(uids)), np.isin(uids, trained)
    masks = (number >= 0, number < NUM_CAMPAIGN, number >= NUM_CAMPAIGN, is_trained, ~is_trained)
    return np.flatnonzero(masks[CLASSES.index(name)])


def _scores(runs: Sequence[Entry], tracks: Sequence[NDArray[np.int64]]) -> dict[str, Any] | None:
    """Scores the races of runs on some tracks of each; None if a run has no such track."""
    if min(map(len, tracks)) == 0:
        return None
    shares = [run.lap_shares[on] for run, on in zip(runs, tracks, strict=True)]
    scores = np.array([trim_mean(each.ravel(), 0.25) for each in shares])
    interval = stratified_interval(scores[:, None]) if np.ptp(scores) > 0.0 else None
    finished = float(np.mean([(each > 0.0).mean() for each in shares]))
    return {"score": float(scores.mean()), "interval": interval and list(interval), "finish_rate": finished}


def format_board(rows: Sequence[dict[str, Any]]) -> str:
    """Formats rows as Markdown: the board, and lap shares and finish rates by track."""
    first = [[*HEAD, *CLASSES]]
    for row in rows:
        decisions = "-" if row["decisions"] is None else f"{row['decisions']:,}"
        minutes = "-" if row["cpu_seconds"] is None else f"{row['cpu_seconds'] / 60.0:,.0f}"
        facts = [row["name"], row["who"], row["algorithm"], row["sees"], decisions, minutes, str(row["runs"])]
        first.append([*facts, *(_cell(row[name]) for name in CLASSES)])
    second = [["track", *(row["name"] for row in rows)]]
    second += [[uid, *(_cell(row["tracks"][uid]) for row in rows)] for uid in rules().uids]
    return "\n\n".join([_table(first), _NOTE, _table(second)])


def _cell(scores: dict[str, Any] | None) -> str:
    if scores is None:
        return "-"
    low, high = scores["interval"] or (None, None)
    ends = "" if low is None else f" ({max(low, 0.0):.3f} to {high:.3f})"
    return f"{scores['score']:.3f}{ends}, {scores['finish_rate']:.0%}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    texts = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([texts[0], "|---" * len(lines[0]) + "|", *texts[1:]])
