"""What there is to learn from: recordings and races, what of them is not used and why, and pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rulka.datasets.paths import race_rows
from rulka.datasets.races import META_FILE, QuarantinedFile, load_quarantine, read_meta, track_path
from rulka.folders import (
    ENCODER,
    FRAMES,
    PREVIEWS_PICTURE,
    RACES,
)
from rulka.tracks.track import load_track

CONTACT_SHEET = "contact_sheet.png"
PICTURES = {
    CONTACT_SHEET: (FRAMES, "Frames of the training split, some of each map"),
    PREVIEWS_PICTURE: (ENCODER, "What Level 0 was shown, and what became of it"),
}
"""Pictures that stages leave beside their data, with where they lie and what they show."""
MOST_NAMED = 200
"""So many files of quarantine are named; `rulka quarantine` names all."""


class Driven(NamedTuple):
    """Races of one kind of driver on one map.

    Attributes:
        uid: of the map.
        name: of its track.
        source: "recording" or "driver".
        races: how many.
        finished: how many of them.
        players: how many people drove them.
        best_s: the fastest; None where none finished.
        median_s: the one in the middle.
    """

    uid: str
    name: str
    source: str
    races: int
    finished: int
    players: int
    best_s: float | None
    median_s: float | None


class Refused(NamedTuple):
    """Files that are not used for one kind of reason.

    Attributes:
        error: name of the reason.
        num_files: how many there are.
        files: the first of them.
    """

    error: str
    num_files: int
    files: Sequence[QuarantinedFile]


def pictures() -> list[tuple[str, str]]:
    """Returns name and caption of the pictures that there are."""
    return [(name, caption) for name, (folder, caption) in PICTURES.items() if (folder / name).is_file()]


def picture_file(name: str) -> Path | None:
    """Returns where a picture lies; None where there is none of that name."""
    if name not in PICTURES:
        return None
    path = PICTURES[name][0] / name
    return path if path.is_file() else None


def races() -> dict[str, Any] | None:
    """Returns what the race dataset holds; None where there is none.

    Returns:
        `main_track`, `num_races`, `num_ticks` (of 10 ms), `driven` (`Driven`, the main track first), `refused`
        (`Refused`, the most frequent first) and `num_refused`.

    Raises:
        RaceDataError: if it is damaged, or of another version.
        TrackError: if a track is damaged.
    """
    if not (RACES / META_FILE).exists():
        return None
    meta, refused = read_meta(RACES), load_quarantine(RACES)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in race_rows(RACES):
        groups[row["map_uid"], row["source"]].append(row)
    driven = [_driven(uid, source, rows) for (uid, source), rows in groups.items()]
    return {
        "main_track": meta["main_track"],
        "num_races": meta["num_races"],
        "num_ticks": meta["num_ticks"],
        "driven": sorted(driven, key=lambda each: (each.uid != meta["main_track"], -each.races)),
        "refused": _by_reason(refused),
        "num_refused": len(refused),
    }


def _driven(uid: str, source: str, rows: Sequence[dict[str, Any]]) -> Driven:
    times_s = [row["race_time_ms"] / 1000.0 for row in rows if row["is_finished"] and row["race_time_ms"] is not None]
    players = len({row["player"] for row in rows}) if source == "recording" else 0
    middle_s = median(times_s) if times_s else None
    name = load_track(track_path(RACES, uid)).name
    return Driven(uid, name, source, len(rows), len(times_s), players, min(times_s, default=None), middle_s)


def _by_reason(refused: Iterable[QuarantinedFile]) -> list[Refused]:
    groups: dict[str, list[QuarantinedFile]] = defaultdict(list)
    for item in refused:
        groups[item.error.partition(":")[0]].append(item)
    most_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [Refused(error, len(files), files[:MOST_NAMED]) for error, files in most_first]
