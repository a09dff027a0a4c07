"""Laps to replay on one track: the best of each contestant of the last evaluation, of demonstrations and of recordings.

They are read as they were driven; nobody races for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.dashboard.live import shape_of_road, track_outline
from rulka.datasets.from_recordings import plain_text
from rulka.datasets.races import META_FILE, Path3D, race_paths, race_rows, read_meta, track_path
from rulka.errors import UserError
from rulka.evaluation.dataset import REFERENCE
from rulka.folders import EVALUATION, LAPS, RACES
from rulka.tracks.progress import progress_along
from rulka.tracks.top_view import TopView, road_edges, top_view
from rulka.tracks.track import Track, load_track

MOST_RECORDED, MOST_DRIVEN = 8, 3
"""Of the people's recordings on a track, and of the built-in driver's races, the fastest so many."""
SAMPLE_MS = 50
AGENT, DEMONSTRATION, RECORDING = "agent", "demonstration", "recording"


class NoLapsError(UserError):
    """There is nothing to replay."""


class Lap(NamedTuple):
    """One race that can be replayed.

    Attributes:
        folder: the race dataset that it is in.
        race_id: its id there.
        uid: of the track.
        kind: one of the words above.
        label: who drove.
        time_ms: race time, or None where it did not finish.
    """

    folder: Path
    race_id: str
    uid: str
    kind: str
    label: str
    time_ms: int | None


def known_laps() -> list[Lap]:
    """Returns the laps there are, those of agents first, each kind with the fastest first.

    Raises:
        UserError: if the races of the evaluation, or the race dataset, are damaged.
    """
    return [*_evaluated(EVALUATION / LAPS), *_demonstrated(RACES)]


def _evaluated(folder: Path) -> list[Lap]:
    rows = [(row, REFERENCE if row["race_id"].startswith(f"{REFERENCE}-") else AGENT) for row in _rows(folder)]
    return sorted((_lap(folder, row, kind, row["player"]) for row, kind in rows), key=_by_time)


def _demonstrated(folder: Path) -> list[Lap]:
    recorded = [_lap(folder, row, RECORDING, row["player"]) for row in _rows(folder) if row["source"] == "recording"]
    driven = [_lap(folder, row, DEMONSTRATION, _driver(row)) for row in _rows(folder) if row["source"] == "driver"]
    best: dict[tuple[str, str], Lap] = {}
    for lap in sorted(recorded, key=_by_time):
        best.setdefault((lap.uid, lap.label), lap)  # of each person on each track
    return [*_fastest(best.values(), MOST_RECORDED), *_fastest(driven, MOST_DRIVEN)]


def _driver(row: Mapping[str, Any]) -> str:
    return f"built-in driver, race {row['race_id'].rpartition('-')[2].lstrip('0') or 0}"


def _rows(folder: Path) -> list[dict[str, Any]]:
    return race_rows(folder) if (folder / META_FILE).is_file() else []


def _lap(folder: Path, row: Mapping[str, Any], kind: str, label: str) -> Lap:
    time_ms = row["race_time_ms"] if row["is_finished"] else None
    name = plain_text(label).strip()
    return Lap(folder, row["race_id"], row["map_uid"], kind, name or "unnamed driver", time_ms)


def _by_time(lap: Lap) -> tuple[bool, int]:
    return lap.time_ms is None, lap.time_ms or 0


def _fastest(laps: Iterable[Lap], most: int) -> list[Lap]:
    kept: dict[str, int] = {}
    found = []
    for lap in sorted(laps, key=_by_time):
        kept[lap.uid] = kept.get(lap.uid, 0) + 1
        found += [lap] if kept[lap.uid] <= most else []
    return found


def tracks_of(laps: Iterable[Lap]) -> dict[str, str]:
    """Returns the names of the tracks that there are laps on, by UID, the one that agents are trained on first.

    Raises:
        UserError: if a track is damaged.
    """
    folders = {lap.uid: lap.folder for lap in laps}
    main = {read_meta(folder)["main_track"] for folder in set(folders.values())}
    uids = sorted(folders, key=lambda uid: (uid not in main, uid))
    return {uid: load_track(track_path(folders[uid], uid)).name for uid in uids}


def replay(uid: str, laps: Callable[[], list[Lap]] = known_laps) -> dict[str, Any]:
    """Returns all that is drawn of the laps on a track.

    Args:
        uid: of the track; an empty text is the one that agents are trained on.
        laps: returns the laps there are.

    Returns:
        `uid`; `track`, see `rulka.dashboard.live.track_outline`; `road`, its edges with their heights, `left` and
        `right` [[x, y, z], ...], and `gates`; `laps`, of each `kind`, `label`, `time_s`, and `path`, its samples as
        `t` in seconds, `x`, `y`, `z` and `along` in metres and `v` in m/s. x is right, y up the page, z above.

    Raises:
        NoLapsError: if there is no lap on it.
        UserError: if files are damaged.
    """
    known = laps()
    uid = uid or next(iter(tracks_of(known)), "")
    chosen = [lap for lap in known if lap.uid == uid]
    if not chosen:
        message = f"there is no lap on {uid!r}" if uid else "there is no lap to replay yet"
        raise NoLapsError(message, hint="`rulka run races` makes demonstrations, `rulka run evaluate` laps of agents.")
    track = load_track(track_path(chosen[0].folder, uid))
    view = top_view(track)
    shown = [
        {"kind": lap.kind, "label": lap.label, "time_s": None if lap.time_ms is None else lap.time_ms / 1000.0}
        | {"path": _path(paths[lap.race_id], lap.time_ms, track, view)}
        for lap, paths in _with_paths(chosen)
        if lap.race_id in paths
    ]
    return {"uid": uid, "track": track_outline(track), "road": _road(track, view), "laps": shown}


def _with_paths(laps: list[Lap]) -> Iterable[tuple[Lap, dict[str, Path3D]]]:
    by_folder = {
        folder: [lap.race_id for lap in laps if lap.folder == folder] for folder in {lap.folder for lap in laps}
    }
    paths = {folder: race_paths(folder, race_ids) for folder, race_ids in by_folder.items()}
    return [(lap, paths[lap.folder]) for lap in laps]


def _path(path: Path3D, time_ms: int | None, track: Track, view: TopView) -> dict[str, list[float]]:
    """Thins a path to `SAMPLE_MS`, ends it behind the finish, and finds how far along the track it is."""
    last = len(path.time_ms) if time_ms is None else int(np.searchsorted(path.time_ms, time_ms)) + 1
    step_ms = float(np.median(np.diff(path.time_ms[:last]))) if last > 2 else SAMPLE_MS
    every = max(1, round(SAMPLE_MS / max(step_ms, 1.0)))
    kept = np.unique(np.append(np.arange(0, min(last, len(path.time_ms)), every), min(last, len(path.time_ms)) - 1))
    place, height = view(path.position_m[kept]), path.position_m[kept, 1]
    along = np.maximum.accumulate(progress_along(track, path.position_m)[1][kept]).clip(0.0, track.length_m)
    return {
        "t": np.round(path.time_ms[kept] / 1000.0, 3).tolist(),
        "x": _rounded(place[:, 0]),
        "y": _rounded(place[:, 1]),
        "z": _rounded(height),
        "v": np.round(path.speed_mps[kept], 1).tolist(),
        "along": _rounded(along),
    }


def _road(track: Track, view: TopView) -> dict[str, Any]:
    rise_m = np.sin(track.bank_rad) * track.width_m / 2.0
    heights = track.centre_m[:, 1] + np.stack([rise_m, -rise_m])
    edges = np.concatenate([road_edges(track, view), heights[:, :, None]], axis=2)
    return shape_of_road(track, edges)


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return np.round(values, 2).tolist()
