"""History of nightly evaluations, as `rulka night` recorded it."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rulka.operations.history import ALL_TRACKS, RECORDS_FOLDER, NightRow, read_history
from rulka.stages.folders import NIGHTS


def nights() -> list[list[NightRow]]:
    """Returns the rows of each night, newest first. For a repeated night, only its last run counts.

    Raises:
        UserError: if the history is damaged.
    """
    rows = sorted(read_history(), key=lambda row: row.night, reverse=True)
    by_night = [list(found) for _, found in groupby(rows, key=lambda row: row.night)]
    last = [max(row.raced_at for row in found) for found in by_night]
    return [[row for row in found if row.raced_at == at] for found, at in zip(by_night, last, strict=True)]


def paces() -> dict[str, Any]:
    """Returns chart data of all nights.

    Returns:
        `tracks`, track names by UID: all tracks together first, then those of the newest night, then others; and
        `rows`, the fields of each `NightRow`, oldest night first.

    Raises:
        UserError: if the history is damaged.
    """
    found = nights()
    names = {row.uid: row.track for rows in found for row in rows}
    return {
        "tracks": dict(sorted(names.items(), key=lambda item: item[1] != ALL_TRACKS)),
        "rows": [asdict(row) for rows in reversed(found) for row in rows],
    }


def records() -> dict[str, str]:
    """Returns the names, by UID, of the tracks with a video of their fastest race.

    Raises:
        UserError: if the history is damaged.
    """
    return {row.uid: row.track for row in read_history() if record_file(row.uid) is not None}


def record_file(uid: str) -> Path | None:
    """Returns the video of the fastest race on a track; None if there is none."""
    films = (NIGHTS / RECORDS_FOLDER).glob("*.mp4")  # compare names: never build a path from a request
    return next((film for film in films if film.stem == uid), None)
