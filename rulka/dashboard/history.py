"""The nightly evaluations one after another, as `rulka night` wrote them down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rulka.folders import NIGHTS
from rulka.registry.history import ALL_TRACKS, RECORDS_FOLDER, NightRow, read_history


def nights() -> list[dict[str, Any]]:
    """Returns the nights, the newest first, each once: one that was repeated as it was the last time.

    Returns:
        Of each `night`, `raced_at`, `together` (rows of all tracks) and `tracks` (rows of single tracks).

    Raises:
        HistoryError: if the history is damaged.
    """
    return [_night(rows) for rows in _last_of_each(read_history())]


def _last_of_each(rows: Sequence[NightRow]) -> list[list[NightRow]]:
    last: dict[str, str] = {}
    for row in rows:
        last[row.night] = max(row.raced_at, last.get(row.night, ""))
    kept: dict[str, list[NightRow]] = {night: [] for night in sorted(last, reverse=True)}
    for row in rows:
        if row.raced_at == last[row.night]:
            kept[row.night].append(row)
    return list(kept.values())


def _night(rows: Sequence[NightRow]) -> dict[str, Any]:
    return {
        "night": rows[0].night,
        "raced_at": rows[0].raced_at,
        "together": [row for row in rows if row.track == ALL_TRACKS],
        "tracks": [row for row in rows if row.track != ALL_TRACKS],
    }


def paces() -> dict[str, Any]:
    """Returns the pace of all nights, for a chart.

    Returns:
        `tracks`, names of the tracks by UID, those of all tracks together first; and `rows`, the oldest first, of each
        `uid`, `role`, `night`, `agent`, `pace`, `low`, `high` (m/s), `is_worse`, `finished` and `races`.

    Raises:
        HistoryError: if the history is damaged.
    """
    rows = [row for night in reversed(_last_of_each(read_history())) for row in night]
    counts = {row.uid: sum(each.uid == row.uid for each in rows) for row in rows}
    uids = sorted(counts, key=lambda uid: (not uid.startswith("all-"), -counts[uid], uid))
    names = {row.uid: row.track for row in rows}
    return {
        "tracks": {uid: names[uid] for uid in uids},
        "rows": [
            {
                "uid": row.uid,
                "role": row.role,
                "night": row.night,
                "agent": row.agent,
                "pace": row.pace_mps,
                "low": row.pace_low_mps,
                "high": row.pace_high_mps,
                "is_worse": row.is_worse,
                "finished": row.finished,
                "races": row.races,
            }
            for row in rows
        ],
    }


def records() -> dict[str, str]:
    """Returns the names of the tracks that there is a film of the fastest race on, by UID.

    Raises:
        HistoryError: if the history is damaged.
    """
    return {row.uid: row.track for row in read_history() if record_file(row.uid) is not None}


def record_file(uid: str) -> Path | None:
    """Returns the film of the fastest race on a track; None where there is none."""
    path = NIGHTS / RECORDS_FOLDER / f"{uid}.mp4"
    is_inside = path.parent == NIGHTS / RECORDS_FOLDER and "/" not in uid
    return path if is_inside and path.is_file() else None
