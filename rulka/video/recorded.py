"""Recorded races for people to look at: every ghost of every file, finished or not, and the track they were driven on.

Unlike the `races` stage, which takes only what can be learned from, this shows whatever has a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.datasets.from_recordings import map_name, plain_text
from rulka.errors import UserError
from rulka.evaluation.dataset import DEMONSTRATION_SEED, NOT_FINISHED
from rulka.evaluation.race import FINISHED
from rulka.evaluation.results import RaceResult
from rulka.observation import CAR
from rulka.recordings import Ghost, inputs_to_controls, read_recording
from rulka.recordings.car_rows import car_rows
from rulka.tracks.driven_path import DrivenPath, path_from_rows
from rulka.tracks.from_paths import track_from_paths
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track


class OtherMapError(UserError):
    """Recordings that are to be shown together were driven on different maps."""


def recorded_races(files: Sequence[Path]) -> tuple[Track, list[tuple[str, RaceResult]]]:
    """Reads recordings of one map.

    Returns:
        The track that the drives make, and every ghost as its driver's name and race, in the order of the files.

    Raises:
        OtherMapError: if the files are of more than one map.
        RecordingError: if a file cannot be read or holds no path.
        TrackError: if no drive makes a track.
    """
    recordings = [read_recording(path) for path in files]
    uids = sorted({recording.map_uid for recording in recordings})
    if len(uids) != 1:
        message = f"the recordings are of {len(uids)} maps: {', '.join(uids)}"
        raise OtherMapError(message, hint="Watch recordings of one map at a time; `rulka inspect FOLDER` lists them.")
    ghosts = [ghost for recording in recordings for ghost in recording.ghosts]
    rows = [car_rows(ghost) for ghost in ghosts]
    paths = [path_from_rows(*row, ghost.checkpoint_times_ms) for row, ghost in zip(rows, ghosts, strict=True)]
    if not any(path.checkpoint_times_ms for path in paths):
        paths = [_as_finished(path) for path in paths]
    track = track_from_paths(uids[0], map_name(recordings[0]), paths)
    races = [(_name(ghost), _result(ghost, *row, track)) for ghost, row in zip(ghosts, rows, strict=True)]
    return track, races


def _as_finished(path: DrivenPath) -> DrivenPath:
    """Returns a path that ends where its samples do, for a map that nobody finished."""
    return DrivenPath(path.time_ms, path.position, path.velocity, path.up, (int(path.time_ms[-1]),), path.material)


def _name(ghost: Ghost) -> str:
    return plain_text(ghost.nickname).strip("\ufeff ") or ghost.login or "unnamed driver"


def _result(ghost: Ghost, time_ms: NDArray[np.int64], rows: NDArray[np.float32], track: Track) -> RaceResult:
    _, along_m, _ = progress_along(track, rows[:, CAR["position"]])
    return RaceResult(
        seed=DEMONSTRATION_SEED,
        is_finished=ghost.is_finished,
        end=FINISHED if ghost.is_finished else NOT_FINISHED,
        time_ms=ghost.race_time_ms,
        progress_m=track.length_m if ghost.is_finished else float(along_m.max()),
        gate_times_ms=_gate_times_ms(ghost, len(track.gate_m)),
        sample_ms=time_ms,
        cars=rows,
        along_m=along_m.astype(np.float32),
        controls=_controls(ghost, time_ms),
    )


def _gate_times_ms(ghost: Ghost, num_gates: int) -> NDArray[np.int64]:
    """Returns [G] times at the gates; all 0 where the ghost's checkpoints are not those of the track."""
    times_ms = np.array([time or 0 for time in ghost.checkpoint_times_ms], np.int64)
    return times_ms if len(times_ms) == num_gates else np.zeros(num_gates, np.int64)


def _controls(ghost: Ghost, time_ms: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns [S, 3] the inputs at every sample; zeros where the recording holds none."""
    if not ghost.events:
        return np.zeros((len(time_ms), 3), np.float32)
    num_ticks = int(time_ms[-1]) // TICK_MS + 1
    return inputs_to_controls(ghost, num_ticks)[np.clip(time_ms // TICK_MS, 0, num_ticks - 1)]
