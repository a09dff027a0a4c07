"""Gathers the recordings usable for fits, by map, and selects those held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rulka.calibration.windows import Windows, cut_windows
from rulka.contracts.observation import CAR
from rulka.datasets.formats.races import Race
from rulka.datasets.formats.split import hash_fraction, split_races
from rulka.datasets.from_recordings import blocks_of, find_recordings, map_name, path_of_ghost, race_of_ghost
from rulka.machine.errors import UserError, counted
from rulka.recordings.model import Ghost
from rulka.recordings.reader import embedded_map, read_recording
from rulka.stages.folders import utf8_path
from rulka.tracks.blocks import MapBlock
from rulka.tracks.from_paths import DrivenPath, track_from_paths
from rulka.tracks.track import Track, TrackError

VEHICLE = "StadiumCar"
GAMES = ("TmForever", "TmUnited")
"""Games whose StadiumCar is simulated; later games have different physics."""
MIN_MAPS = 2
"""Cross-validation leaves out one map at a time and fits the physics to the others."""


@dataclass(frozen=True)
class Drive:
    """One usable recording.

    Attributes:
        race: the recorded race.
        path: its path, with the times of its turbo pads.
        map_name: display name of the map.
        blocks: blocks of the map.
        sha256: hash of the file.
        is_held_out: True if used for the report only.
    """

    race: Race
    path: DrivenPath
    map_name: str
    blocks: tuple[MapBlock, ...]
    sha256: str
    is_held_out: bool = False


@dataclass(frozen=True)
class MapRecordings:
    """The recordings of one map.

    Attributes:
        track: track made from all of them.
        drives: the recordings.
        fitted: windows of those that are not held out, in a list of at most one.
        held_out: windows of those that are held out, likewise.
    """

    track: Track
    drives: list[Drive]
    fitted: list[Windows]
    held_out: list[Windows]


@dataclass(frozen=True)
class CalibrationData:
    """The data of a calibration.

    Attributes:
        maps: the maps with usable recordings.
        refused: file and reason of every rejected recording.
    """

    maps: list[MapRecordings]
    refused: list[tuple[str, str]]

    @property
    def drives(self) -> list[Drive]:
        """All usable recordings."""
        return [drive for each in self.maps for drive in each.drives]

    @property
    def held_out(self) -> list[Windows]:
        """Windows of all held-out recordings."""
        return [part for each in self.maps for part in each.held_out]

    def fitted(self, without: MapRecordings | None = None) -> list[Windows]:
        """Returns the windows of all recordings that are not held out, except those of the map `without`."""
        return [part for each in self.maps if each is not without for part in each.fitted]


def gather(folder: Path, holdout: float, on_file: Callable[[], None]) -> CalibrationData:
    """Reads a folder of recordings.

    On a map with several recordings, a share is held out by a hash of the race. A map with one recording is held out or
    not by a hash of its UID.

    Args:
        folder: folder with `.Gbx` files at any depth.
        holdout: share held out, above 0 and below 1.
        on_file: called after every file.

    Raises:
        UserError: if fewer than two maps have usable recordings, or none is held out or left to fit.
    """
    if not 0.0 < holdout < 1.0:
        raise UserError(f"the share held out must lie between 0 and 1, got {holdout}")
    by_map: dict[str, dict[str, Drive]] = {}
    refused: list[tuple[str, str]] = []
    for path in find_recordings(folder):
        name = utf8_path(path.relative_to(folder))
        try:
            drive = _read(path, name)
            by_map.setdefault(drive.race.map_uid, {}).setdefault(drive.race.race_id, drive)
        except UserError as error:
            refused.append((name, str(error)))
        on_file()
    maps = []
    for uid, same_map in sorted(by_map.items()):
        held_out = _held_out(uid, list(same_map), holdout)
        drives = [replace(drive, is_held_out=name in held_out) for name, drive in same_map.items()]
        try:
            track = track_from_paths(uid, drives[0].map_name, [drive.path for drive in drives], drives[0].blocks)
        except TrackError as error:
            refused += [(drive.race.file, str(error)) for drive in drives]
        else:
            maps.append(MapRecordings(track, drives, *(_windows(track, drives, is_held_out=k) for k in (False, True))))
    data = CalibrationData(maps, refused)
    num_held_out = sum(drive.is_held_out for drive in data.drives)
    if len(maps) < MIN_MAPS or num_held_out in (0, len(data.drives)):
        usable = f"{counted(len(data.drives), 'recording')} of {counted(len(maps), 'map')}"
        message = f"{usable} can be used, {num_held_out} of them held out"
        hint = f"Fitting needs finished {VEHICLE} races of TrackMania Forever, with inputs, on {MIN_MAPS} maps or more."
        raise UserError(message, hint=hint)
    return data


def _windows(track: Track, drives: Sequence[Drive], *, is_held_out: bool) -> list[Windows]:
    chosen = [drive for drive in drives if drive.is_held_out == is_held_out]
    races, paths = [drive.race for drive in chosen], [drive.path for drive in chosen]
    return [cut_windows(track, races, paths)] if chosen else []


def _read(path: Path, name: str) -> Drive:
    recording = read_recording(path)
    ghost = next((ghost for ghost in recording.ghosts if _is_simulated_car(ghost)), None)
    if ghost is None:
        raise UserError(f"it holds no {VEHICLE} of {' or '.join(GAMES)} with inputs")
    race = race_of_ghost(ghost, name, recording.map_uid)
    driven = path_of_ghost(ghost, race)
    if driven.pads_ms is None:
        raise UserError("its samples do not tell when a turbo began: they are of an older game")
    if not race.state[:, CAR["has_contact"]].any():
        raise UserError("its wheels never touch the ground")
    blocks = blocks_of(embedded_map(recording))
    return Drive(race, driven, map_name(recording), blocks, hashlib.sha256(path.read_bytes()).hexdigest())


def _is_simulated_car(ghost: Ghost) -> bool:
    return ghost.vehicle == VEHICLE and ghost.game_version.startswith(GAMES) and bool(ghost.events)


def _held_out(uid: str, race_ids: Sequence[str], holdout: float) -> set[str]:
    if len(race_ids) == 1:
        return set(race_ids) if hash_fraction(uid) < holdout else set()
    return {race_id for race_id, split in split_races(race_ids, holdout, 0.0).items() if split != "train"}
