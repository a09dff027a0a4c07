"""The recordings that physics can be fitted to, by map, and which of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rulka.calibration.windows import Windows, cut_windows
from rulka.datasets.from_recordings import find_recordings, map_name, race_of_ghost
from rulka.datasets.races import Race
from rulka.datasets.split import place, split_races
from rulka.errors import UserError
from rulka.folders import utf8_path
from rulka.recordings.model import Ghost
from rulka.recordings.reader import read_recording
from rulka.tracks.from_paths import path_from_rows, track_from_paths
from rulka.tracks.track import TrackError

CAR = "StadiumCar"
GAMES = ("TmForever", "TmUnited")
"""Programs whose StadiumCar is the one that is simulated; those of later games drive otherwise."""
MIN_RACES = 2


class CalibrationError(UserError):
    """There is nothing to calibrate with; the message says what is missing."""


@dataclass(frozen=True)
class Drive:
    """One recording that is used.

    Attributes:
        race: what was driven.
        map_name: for people.
        sha256: of the file.
        is_held_out: it is used for the report only.
    """

    race: Race
    map_name: str
    sha256: str
    is_held_out: bool = False


@dataclass(frozen=True)
class Material:
    """Everything that is calibrated with.

    Attributes:
        drives: that are used.
        fitted: windows to fit, by map.
        held_out: windows of the recordings held out, by map.
        num_refused: recordings that are not used.
    """

    drives: list[Drive]
    fitted: list[Windows]
    held_out: list[Windows]
    num_refused: int


def gather(folder: Path, holdout: float, on_file: Callable[[], None]) -> Material:
    """Reads a folder of recordings and cuts the usable ones into windows.

    Of a map with several recordings a share is held out, chosen by a hash of the race; a map with one recording is
    held out as a whole when the hash of its UID says so.

    Args:
        folder: with `.Gbx` files at any depth.
        holdout: share held out, above 0 and below 1.
        on_file: called after every file.

    Raises:
        CalibrationError: if fewer than two recordings can be used, or none is held out or left to fit.
    """
    if not 0.0 < holdout < 1.0:
        message = f"the share held out must lie between 0 and 1, got {holdout}"
        raise CalibrationError(message)
    files = find_recordings(folder)
    by_map: dict[str, dict[str, Drive]] = {}
    for path in files:
        with suppress(UserError):
            drive = _read(path, utf8_path(path.relative_to(folder)))
            by_map.setdefault(drive.race.map_uid, {}).setdefault(drive.race.race_id, drive)
        on_file()
    drives: list[Drive] = []
    fitted: list[Windows] = []
    held: list[Windows] = []
    for uid, same_map in sorted(by_map.items()):
        races = [drive.race for drive in same_map.values()]
        paths = [path_from_rows(race.state_time_ms, race.state, race.checkpoint_times_ms) for race in races]
        with suppress(TrackError):
            track = track_from_paths(uid, next(iter(same_map.values())).map_name, paths)
            held_out = _held_out(uid, list(same_map), holdout)
            for windows, is_held_out in ((fitted, False), (held, True)):
                chosen = [race for name, race in zip(same_map, races, strict=True) if (name in held_out) == is_held_out]
                windows += [cut_windows(track, chosen)] if chosen else []
            drives += [replace(drive, is_held_out=name in held_out) for name, drive in same_map.items()]
    num_held_out = sum(drive.is_held_out for drive in drives)
    if len(drives) < MIN_RACES or num_held_out in (0, len(drives)):
        message = f"{len(drives)} recordings can be used, {num_held_out} of them held out"
        hint = f"Fitting needs at least {MIN_RACES} finished {CAR} races of TrackMania Forever with inputs and samples."
        raise CalibrationError(message, hint=hint)
    return Material(drives, fitted, held, len(files) - len(drives))


def _read(path: Path, name: str) -> Drive:
    recording = read_recording(path)
    ghost = next((ghost for ghost in recording.ghosts if _is_simulated_car(ghost)), None)
    if ghost is None:
        message = f"it holds no {CAR} of {' or '.join(GAMES)} with inputs"
        raise CalibrationError(message)
    race = race_of_ghost(ghost, name, recording.map_uid)
    return Drive(race, map_name(recording), hashlib.sha256(path.read_bytes()).hexdigest())


def _is_simulated_car(ghost: Ghost) -> bool:
    return ghost.vehicle == CAR and ghost.game_version.startswith(GAMES) and bool(ghost.events)


def _held_out(uid: str, race_ids: Sequence[str], holdout: float) -> set[str]:
    if len(race_ids) == 1:
        return set(race_ids) if place(uid) < holdout else set()
    return {race_id for race_id, split in split_races(race_ids, holdout, 0.0).items() if split != "train"}
