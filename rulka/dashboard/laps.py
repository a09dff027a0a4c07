"""Laps to replay on one track: the best of each contestant of the last evaluation, demonstrations and recordings.

Stored laps are read; none is driven for the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.dashboard.live import track_outline
from rulka.datasets.formats.races import META_FILE, Path3D, race_paths, race_rows, read_meta, track_path
from rulka.datasets.from_recordings import plain_text
from rulka.evaluation.dataset import REFERENCE
from rulka.machine.errors import UserError
from rulka.stages.folders import EVALUATION, LAPS, RACES
from rulka.tracks.progress import progress_along
from rulka.tracks.top_view import TopView, top_view
from rulka.tracks.track import Track, load_track

SAMPLE_MS = 50
AGENT, RECORDING, DEMONSTRATION = "agent", "recording", "demonstration"
MOST = {RECORDING: 8, DEMONSTRATION: 3}
"""Laps shown per track, fastest first; unlimited for kinds not listed."""
HUES = {"agent": 0, "cloned": 2, REFERENCE: 6}
"""Index into the pages' hues (blue, green, grey) by contestant key; compared algorithms are orange and pink."""


class Lap(NamedTuple):
    """One race that can be replayed.

    Attributes:
        folder: race dataset that holds it.
        race_id: its id in the dataset.
        uid: track UID.
        kind: `AGENT`, `RECORDING`, `DEMONSTRATION` or `REFERENCE`.
        label: driver.
        time_ms: race time; None if it did not finish.
    """

    folder: Path
    race_id: str
    uid: str
    kind: str
    label: str
    time_ms: int | None


def known_laps() -> list[Lap]:
    """Returns the laps of the evaluation, then recordings, then demonstrations; each group fastest first.

    A player's recordings count once per track; `MOST` limits the rest.

    Raises:
        UserError: if the races of the evaluation, or the race dataset, are damaged.
    """
    found: list[Lap] = []
    people: set[tuple[str, str]] = set()
    shown: Counter[tuple[str, str]] = Counter()
    for lap in sorted(_laps(), key=lambda lap: (_place(lap.kind), lap.time_ms is None, lap.time_ms)):
        is_of_known_person = lap.kind == RECORDING and (lap.uid, lap.label) in people
        if is_of_known_person or shown[lap.uid, lap.kind] == MOST.get(lap.kind):
            continue
        people.add((lap.uid, lap.label))
        shown[lap.uid, lap.kind] += 1
        found.append(lap)
    return found


def hues_of(laps: Sequence[Lap]) -> list[int]:
    """Returns indices into the pages' hues: contestants as in the report, other laps take unused ones."""
    keys = [lap.race_id.removesuffix(f"-{lap.uid}") if lap.kind == AGENT else lap.kind for lap in laps]
    others = sorted({key for lap, key in zip(laps, keys, strict=True) if lap.kind == AGENT} - set(HUES))
    hues = HUES | {key: (1, 3)[place % 2] for place, key in enumerate(others)}
    left = (place for place in count(4) if place not in hues.values())
    return [hues[key] if key in hues else next(left) for key in keys]


def _place(kind: str) -> int:
    return list(MOST).index(kind) if kind in MOST else -1


def _laps() -> Iterator[Lap]:
    for folder in (EVALUATION / LAPS, RACES):
        for row in race_rows(folder) if (folder / META_FILE).is_file() else ():
            race_id, label = row["race_id"], row["player"]
            if folder != RACES:
                kind = REFERENCE if race_id.startswith(f"{REFERENCE}-") else AGENT
            elif row["source"] == "recording":
                kind = RECORDING
            elif row["source"] == "drive":
                kind, label = RECORDING, f"{label}, in the simulator"
            else:
                kind = DEMONSTRATION
                label = f"built-in driver, race {race_id.rpartition('-')[2].lstrip('0') or 0}"
            time_ms = row["race_time_ms"] if row["is_finished"] else None
            yield Lap(folder, race_id, row["map_uid"], kind, plain_text(label).strip() or "unnamed driver", time_ms)


def tracks_of(laps: Iterable[Lap]) -> dict[str, str]:
    """Returns the names, by UID, of the tracks that have laps, the main track first.

    Raises:
        UserError: if a track is damaged.
    """
    folders = {lap.uid: lap.folder for lap in laps}
    main = {read_meta(folder)["main_track"] for folder in set(folders.values())}
    uids = sorted(folders, key=lambda uid: (uid not in main, uid))
    return {uid: load_track(track_path(folders[uid], uid)).name for uid in uids}


def replay(uid: str) -> dict[str, Any]:
    """Returns the replay data of a track's laps.

    Args:
        uid: track UID; empty takes the main track.

    Returns:
        `uid`; `track`, see `rulka.dashboard.live.track_outline`; `laps`, each with `kind`, `label`, `time_s`, `hue` and
        `path`: samples `t` in seconds, `x`, `y`, `z` (page coordinates) and `along` in metres, `v` in m/s.

    Raises:
        UserError: if the track has no lap, or files are damaged.
    """
    known = known_laps()
    uid = uid or next(iter(tracks_of(known)), "")
    chosen = [lap for lap in known if lap.uid == uid]
    if not chosen:
        message = f"there is no lap on {uid!r}" if uid else "there is no lap to replay yet"
        raise UserError(message, hint="`dvc repro races` makes demonstrations, `dvc repro evaluate` laps of agents.")
    track = load_track(track_path(chosen[0].folder, uid))
    view = top_view(track)
    paths: dict[str, Path3D] = {}
    for folder in {lap.folder for lap in chosen}:
        paths |= race_paths(folder, [lap.race_id for lap in chosen if lap.folder == folder])
    shown = [
        {"kind": lap.kind, "label": lap.label, "time_s": None if lap.time_ms is None else lap.time_ms / 1000.0}
        | {"hue": hue, "path": _path(paths[lap.race_id], lap.time_ms, track, view)}
        for lap, hue in zip(chosen, hues_of(chosen), strict=True)
        if lap.race_id in paths
    ]
    return {"uid": uid, "track": track_outline(track), "laps": shown}


def _path(path: Path3D, time_ms: int | None, track: Track, view: TopView) -> dict[str, list[float]]:
    """Subsamples a path to about `SAMPLE_MS`, cuts it after the finish, and adds progress along the track."""
    end = len(path.time_ms)
    last = end if time_ms is None else min(end, int(np.searchsorted(path.time_ms, time_ms)) + 1)
    step_ms = float(np.median(np.diff(path.time_ms[:last]))) if last > 2 else SAMPLE_MS
    every = max(1, round(SAMPLE_MS / max(step_ms, 1.0)))
    kept = np.unique(np.append(np.arange(0, last, every), last - 1))
    place = view(path.position_m[kept]) * (1.0, -1.0)
    along = np.maximum.accumulate(progress_along(track, path.position_m)[1][kept]).clip(0.0, track.length_m)
    return {
        "t": np.round(path.time_ms[kept] / 1000.0, 3).tolist(),
        "x": _rounded(place[:, 0]),
        "y": _rounded(place[:, 1]),
        "z": _rounded(path.position_m[kept, 1]),
        "v": np.round(path.speed_mps[kept], 1).tolist(),
        "along": _rounded(along),
    }


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return np.round(values, 2).tolist()
