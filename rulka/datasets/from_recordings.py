"""Converts recordings to races and tracks, and quarantines unusable ones with the reason.

Recordings of the game are `.Gbx` files; their paths make the tracks. Races of people in the simulator are drive files
(`rulka.datasets.drives`), which bring their tracks.

If recordings that were here before are missing, races of the built-in driver must not silently replace them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR
from rulka.datasets.drives import ENVIRONMENT as DRIVE_ENVIRONMENT
from rulka.datasets.drives import SUFFIX as DRIVE_SUFFIX
from rulka.datasets.drives import device_of_controls, read_drive
from rulka.datasets.formats.races import QuarantinedFile, Race, RaceDataset, content_id
from rulka.datasets.params import SelectParams
from rulka.datasets.selection import UnusableRecordingError, quarantined, refuse_unwanted, too_slow
from rulka.machine.errors import UserError, counted
from rulka.recordings.alignment import device_of, inputs_to_controls, require_inputs
from rulka.recordings.car_rows import car_rows
from rulka.recordings.errors import RecordingError
from rulka.recordings.model import Ghost, MapInfo, Recording
from rulka.recordings.reader import embedded_map, read_recording
from rulka.recordings.times import check_times
from rulka.stages.folders import TAKEOVERS, is_utf8, utf8_path
from rulka.stages.graph import bring_back, read_lock
from rulka.tracks.blocks import MapBlock
from rulka.tracks.from_paths import DrivenPath, jump_of, path_from_rows, problem_of, track_from_paths
from rulka.tracks.track import Track, TrackError, are_medals, geometry_hash

SUFFIX = ".gbx"
ARCHIVES = (".zip", ".7z", ".rar", ".gz", ".tgz", ".tar", ".xz")
NUM_SHOWN_REASONS = 10
MAX_START_APART_M = 16.0
"""All races on a map start in one place. Ghosts of a file that start further apart (half a block) are of two maps."""
_CODES = re.compile(r"\$(?:(\$)|[0-9a-fA-F]{3}|[hlpHLP]\[[^\]]*\]|[a-zA-Z<>])|[\x00-\x1f\x7f]")


class UnfinishedError(UnusableRecordingError):
    """The race was not finished."""


class RespawnError(UnusableRecordingError):
    """The player respawned at a checkpoint during the race, so the path jumps."""


class NoMapUidError(UnusableRecordingError):
    """The recording does not name its map."""


class DuplicateError(UnusableRecordingError):
    """The same race was read before, from another file or another ghost of this one."""


class OtherMapError(UnusableRecordingError):
    """A ghost was driven on another, unnamed map than its file."""


class DamagedSamplesError(UnusableRecordingError):
    """A recorded state of the car is NaN or infinite."""


class ReverseError(UnusableRecordingError):
    """The car drove backwards most of the way."""


class OtherShapeError(UnusableRecordingError):
    """A drive file brings another track of the same UID than most."""


class UnusablePathError(UnusableRecordingError):
    """The path yields no track, or contradicts the track of the map's other recordings."""


class UnreadableFolderError(UserError):
    """A folder of recordings, or something in it, is unreadable or not a folder."""


class NoUsableRecordingError(UserError):
    """No recording can be used.

    Attributes:
        quarantine: all rejected files and ghosts with their reasons.
    """

    quarantine: tuple[QuarantinedFile, ...] = ()


@dataclass(frozen=True)
class _Road:
    """What a recording of the game tells of its track: the path, the map's metadata, and whether it has respawns."""

    path: DrivenPath
    map_name: str
    medals_ms: tuple[int, ...]
    blocks: tuple[MapBlock, ...]
    has_respawns: bool


@dataclass(frozen=True)
class _Usable:
    """A usable race, the label of its ghost, and what it tells of its track; a drive file brings it."""

    race: Race
    ghost: str
    road: _Road | Track

    def refused(self, error: UserError) -> QuarantinedFile:
        return quarantined(self.race.file, error, self.ghost)


def find_recordings(folder: Path, *, with_drives: bool = False) -> list[Path]:
    """Finds all `.Gbx` files below a folder, case-insensitively, sorted; none if the folder does not exist.

    Args:
        folder: the folder.
        with_drives: find drive files, too, which are of the simulator, not of the game.

    Raises:
        UnreadableFolderError: if the path is not a folder, a folder below it is unreadable or a link, or a link
            without the ending `.Gbx` is broken: their files would be missing silently.
    """
    if not folder.exists() and not folder.is_symlink():
        return []
    endings, found = (SUFFIX, DRIVE_SUFFIX) if with_drives else (SUFFIX,), list[Path]()
    try:
        folder.stat()  # raises for a broken link, which is not a missing folder
        for inside, folders, names in os.walk(folder, onerror=_raise):
            for path in sorted(Path(inside, name) for name in (*folders, *names)):
                if path.is_symlink() and (path.is_dir() or not (path.exists() or path.name.lower().endswith(endings))):
                    message = f"{utf8_path(path)} is a link to {'a folder' if path.is_dir() else 'nothing'}"
                    hint = "DVC looks into no linked folder below another: put the files there, or remove the link."
                    raise UnreadableFolderError(message, hint=hint)
            found += [Path(inside, name) for name in names if name.lower().endswith(endings)]
        # Skips pipes and the like, which `unread_files` names. Keeps broken links, which the reader reports.
        return sorted(path for path in found if path.is_file() or not path.exists())
    except OSError as error:
        message = f"{utf8_path(error.filename)} cannot be read: {error.strerror}"
        raise UnreadableFolderError(message, hint="Allow reading it, or move it elsewhere.") from error


def _raise(error: OSError) -> None:
    raise error


def unread_files(folder: Path) -> list[str]:
    """Returns a line, with the remedy, for each thing in a folder that was meant as a recording and is not read."""
    lines: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = path.name.lower()
        problems = (
            (not is_utf8(path), "rename it, DVC takes no name that is not UTF-8"),
            (name.endswith(ARCHIVES), "unpack it, archives are not opened"),
            (f"{SUFFIX}." in name and not name.endswith(SUFFIX), "rename it if it is a recording, which ends in .Gbx"),
            (path.exists() and not (path.is_file() or path.is_dir()), "remove it, it is a pipe or a device"),
        )
        if found := [to_do for is_so, to_do in problems if is_so]:
            lines.append(f"{utf8_path(path)}: {found[0]}")
    return lines


def read_race_dataset(
    folder: Path, files: Sequence[Path], map_uid: str | None, select: SelectParams, on_file: Callable[[], None]
) -> RaceDataset:
    """Reads every ghost of the recordings and builds the track of every map.

    Args:
        folder: folder of the recordings; files are named relative to it.
        files: recordings to read.
        map_uid: map of the main track; None takes the one with the most usable races, ties by UID.
        select: race filters.
        on_file: called after every file.

    Raises:
        NoUsableRecordingError: if no race of that map can be used, for example if no path yields a track; the message
            gives the reasons.
    """
    usable: dict[str, _Usable] = {}
    quarantine: list[QuarantinedFile] = []
    for path in files:
        name = utf8_path(path.relative_to(folder))
        for found in _read_races(path, name, select):
            if isinstance(found, QuarantinedFile):
                quarantine.append(found)
            elif found.race.race_id in usable:
                message = f"the same race is in {usable[found.race.race_id].race.file}"
                hint = "It is used once. A file that holds nothing else can be deleted."
                quarantine.append(found.refused(DuplicateError(message, hint=hint)))
            else:
                usable[found.race.race_id] = found
        on_file()
    slow = too_slow([found.race for found in usable.values()], select.max_best_ratio)
    quarantine += [usable.pop(race_id).refused(error) for race_id, error in slow.items()]
    tracks: dict[str, Track] = {}
    for uid in dict.fromkeys(found.race.map_uid for found in usable.values()):
        track, useless = _track(uid, [found for found in usable.values() if found.race.map_uid == uid])
        quarantine += [usable.pop(race_id).refused(error) for race_id, error in useless.items()]
        if track is not None:
            tracks[uid] = track
    main = _choose_map([found.race.map_uid for found in usable.values()], map_uid, quarantine)
    quarantine.sort(key=lambda item: item.file)
    races = tuple(found.race for found in usable.values())
    return RaceDataset(races, tracks.pop(main), tuple(quarantine), tuple(tracks[uid] for uid in sorted(tracks)))


def race_of_ghost(ghost: Ghost, file: str, map_uid: str, *, with_respawns: bool = False) -> Race:
    """Converts a finished ghost to a race.

    Samples are kept up to the first one at or after the finish, so that every time before it lies between two.

    Args:
        ghost: a ghost with inputs, samples and a race time.
        file: name of the recording.
        map_uid: map it was driven on.
        with_respawns: accept races with respawns, whose paths jump.

    Raises:
        UnfinishedError: if it has no race time.
        RespawnError: if the player respawned and `with_respawns` is False.
        DamagedSamplesError: if a state of the car is not finite.
        RecordingError: if the ghost lacks samples or inputs, or these and its time contradict each other.
    """
    if ghost.race_time_ms is None:
        raise UnfinishedError("the race was not finished", hint="Use a recording of a finished race.")
    if ghost.respawns and not with_respawns:
        message = f"the player respawned {counted(ghost.respawns, 'time')}"
        raise RespawnError(message, hint="Use a recording without respawns, or set races.select.with_respawns to true.")
    check_times(ghost)
    time_ms, rows = car_rows(ghost)
    num_samples = int(np.searchsorted(time_ms, ghost.race_time_ms)) + 1
    num_ticks = -(-ghost.race_time_ms // TICK_MS)
    controls = inputs_to_controls(ghost, num_ticks)
    state = rows[:num_samples]
    is_finite = np.isfinite(state).all(axis=1)
    if not is_finite.all():
        message = f"the car's state at {time_ms[int(np.argmin(is_finite))] / 1000:.2f} s is not a number"
        raise DamagedSamplesError(message, hint="The file is damaged: save the recording again, or use another one.")
    return Race(
        race_id=content_id("recording", controls, state),
        source="recording",
        file=file,
        player=ghost.nickname,
        map_uid=map_uid,
        race_time_ms=ghost.race_time_ms,
        is_finished=True,
        checkpoint_times_ms=tuple(time for time in ghost.checkpoint_times_ms if time is not None),
        seed=None,
        controls=controls,
        state_time_ms=time_ms[:num_samples],
        state=state,
        car=ghost.car,
    )


def _read_races(path: Path, name: str, select: SelectParams) -> Iterator[_Usable | QuarantinedFile]:
    """Yields a usable race or a quarantine entry per ghost of a file, and one entry for a file without ghosts."""
    try:
        if path.name.lower().endswith(DRIVE_SUFFIX):
            yield _usable_drive(path, name, select)
            return
        recording = read_recording(path)
        if not recording.ghosts:
            message = "the recording holds no ghost"
            raise UnusableRecordingError(message, hint="Use a recording of TrackMania Forever, United or a later game.")
    except (RecordingError, UnusableRecordingError) as error:
        yield quarantined(name, error)
        return
    count = len(recording.ghosts)
    for number, ghost in enumerate(recording.ghosts, start=1):
        which = f"ghost {number} of {count}: " if count > 1 else ""
        try:
            yield _usable(recording, ghost, name, which, select)
        except (RecordingError, UnusableRecordingError) as error:
            yield quarantined(name, error, which)


def _usable_drive(path: Path, name: str, select: SelectParams) -> _Usable:
    race, track = read_drive(path)
    if race.by_person is not None:
        raise UnusableRecordingError("an agent drove part of it", hint=f"Move it to {TAKEOVERS.as_posix()}.")
    if race.race_time_ms is None:
        raise UnfinishedError("the race was not finished", hint="Finish one: `rulka drive`.")
    device, time_ms = device_of_controls(race.controls), race.race_time_ms
    refuse_unwanted(select, device=device, car=race.car, environment=DRIVE_ENVIRONMENT, race_time_ms=time_ms)
    return _Usable(replace(race, file=name), "", track)


def _usable(recording: Recording, ghost: Ghost, name: str, which: str, select: SelectParams) -> _Usable:
    map_uid = ghost.validated_map_uid or recording.map_uid
    if not map_uid:
        message = "the recording does not say which map it was driven on"
        hint = "Ghosts of leaderboards never do: take the replay (`.Replay.Gbx`), which holds its map."
        raise NoMapUidError(message, hint=hint)
    require_inputs(ghost)
    refuse_unwanted(
        select,
        device=device_of(ghost),
        car=ghost.car,
        environment=recording.environment,
        race_time_ms=ghost.race_time_ms,
    )
    race = race_of_ghost(ghost, name, map_uid, with_respawns=select.with_respawns)
    if not ghost.validated_map_uid:
        _refuse_other_start(ghost, recording.ghosts[0])
    _refuse_reverse(race)
    driven = path_of_ghost(ghost, race)
    problem, jump = problem_of(driven), jump_of(driven)
    if problem is not None:
        raise UnusablePathError(f"its path makes no track: {problem}", hint="Use another recording of the map.")
    if jump is not None and not select.with_respawns:
        message = f"its path makes no track: {jump}, though no respawn is counted"
        raise UnusablePathError(message, hint="Use another recording, or set races.select.with_respawns to true.")
    found = embedded_map(recording) if map_uid == recording.map_uid else None
    medals = found.header.medals_ms[::-1] if found else ()
    title, medals_ms = (found and plain_text(found.header.map_name)) or map_uid, medals if are_medals(medals) else ()
    has_respawns = bool(ghost.respawns) or jump is not None
    return _Usable(race, which, _Road(driven, title, medals_ms, blocks_of(found), has_respawns))


def _refuse_other_start(ghost: Ghost, recorded: Ghost) -> None:
    """Rejects a ghost, for example of a clip, that starts elsewhere than the file's recorded run."""
    if not ghost.samples or not recorded.samples:
        return
    apart_m = float(np.linalg.norm(ghost.samples.position[0] - recorded.samples.position[0]))
    if apart_m > MAX_START_APART_M:
        message = f"it begins {apart_m:.0f} m from the recorded run, so it was driven on another map"
        raise OtherMapError(message, hint="Use a recording of its own map.")


def _refuse_reverse(race: Race) -> None:
    """Rejects a race driven mostly backwards, which would teach driving backwards."""
    rotation = race.state[:, CAR["rotation"]].reshape(-1, 3, 3)
    forward_mps = (rotation[:, :, 2] * race.state[:, CAR["velocity"]]).sum(axis=1)
    if (typical_mps := float(np.median(forward_mps))) < 0.0:
        message = f"it is driven in reverse, at {typical_mps:.0f} m/s along the car"
        raise ReverseError(message, hint="Use another recording of the map.")


def path_of_ghost(ghost: Ghost, race: Race) -> DrivenPath:
    """Returns the path of a race, with the times of its turbo pads if the ghost's samples hold them."""
    vehicle = ghost.samples.vehicle if ghost.samples else None
    turbo = None if vehicle is None else vehicle.turbo[: len(race.state)]
    return path_from_rows(race.state_time_ms, race.state, race.checkpoint_times_ms, turbo)


def blocks_of(found: MapInfo | None) -> tuple[MapBlock, ...]:
    """Returns the blocks of a map for `track_from_paths`; none without a map."""
    return () if found is None else tuple(MapBlock(block.name, block.position_m) for block in found.blocks)


def map_name(recording: Recording) -> str:
    """Returns the name of the embedded map, or the map's UID if the name is unknown."""
    found = embedded_map(recording)
    return (found and plain_text(found.header.map_name)) or recording.map_uid


def plain_text(name: str) -> str:
    """Strips colour and style codes, such as `$f00` and `$o`, and control characters from a name of the game.

    `$$` is a dollar.
    """
    return _CODES.sub(r"\1", name).strip()


def _choose_map(uids: Sequence[str], wanted: str | None, quarantine: Sequence[QuarantinedFile]) -> str:
    counts = Counter(uids)
    if wanted is None and counts:
        return min(counts, key=lambda uid: (-counts[uid], uid))
    if wanted is not None and wanted in counts:
        return wanted
    if counts:
        maps = ", ".join(f"{uid} ({count})" for uid, count in counts.most_common(NUM_SHOWN_REASONS))
        message = f"no race on the map {wanted!r} can be used; usable ones are on {maps}"
        hint = "Set races.map_uid in params.yaml to one of these, or to null."
    else:
        reasons = [f"  {item.file}: {item.error}\n    {item.hint}" for item in quarantine[:NUM_SHOWN_REASONS]]
        rest = len(quarantine) - len(reasons)
        more = [f"  and {rest} more"] if rest else []
        message = "none of the recordings can be used:\n" + "\n".join(reasons + more)
        hint = "Add other recordings, or set races.source in params.yaml to driver."
    error = NoUsableRecordingError(message, hint=hint)
    error.quarantine = tuple(sorted(quarantine, key=lambda item: item.file))
    raise error


def _track(uid: str, races: Sequence[_Usable]) -> tuple[Track | None, dict[str, UnusableRecordingError]]:
    """Chooses the track of a map: that of the game's recordings if they yield one, else the one that drives bring.

    Returns:
        The track (None if no race yields one), and an error by id for each dropped race.
    """
    told = {found.race.race_id: found.road for found in races if isinstance(found.road, _Road)}
    brought = {found.race.race_id: found.road for found in races if isinstance(found.road, Track)}
    track, useless = _driven_track(uid, told)
    if track is not None or not brought:
        return track, useless
    shapes = {race_id: geometry_hash(track) for race_id, track in brought.items()}
    shape, _ = Counter(shapes.values()).most_common(1)[0]
    message = f"its track is another than that of most drives on {uid}, which has the same UID"
    other = OtherShapeError(message, hint="Drive on the present track, or take the drives on the other one away.")
    useless |= {race_id: other for race_id, own in shapes.items() if own != shape}
    return next(track for race_id, track in brought.items() if shapes[race_id] == shape), useless


def _driven_track(uid: str, roads: Mapping[str, _Road]) -> tuple[Track | None, dict[str, UnusableRecordingError]]:
    """Builds the track of a map from its races without respawns, or from all if every race has respawns.

    Drops races that prevent a track, until one can be built. Takes roads, and returns errors, by race id.
    """
    useless: dict[str, UnusableRecordingError] = {}
    while left := {race_id: road for race_id, road in roads.items() if race_id not in useless}:
        whole = {race_id: road for race_id, road in left.items() if not road.has_respawns} or left
        track = _track_or_error(uid, list(whole.values()))
        if isinstance(track, Track):
            return track, useless
        by_itself = {race_id: _track_or_error(uid, [road]) for race_id, road in whole.items()}
        alone = {race_id: error for race_id, error in by_itself.items() if isinstance(error, TrackError)}
        # If each race alone yields a track, it is unknown which one deviates: all are dropped.
        culprits = alone or dict.fromkeys(by_itself, track)
        hint = "Add a recording of the map without respawns, or take this one away."
        useless |= {race_id: UnusablePathError(str(error), hint=hint) for race_id, error in culprits.items()}
    return None, useless


def _track_or_error(uid: str, chosen: Sequence[_Road]) -> Track | TrackError:
    try:
        track = track_from_paths(uid, chosen[0].map_name, [road.path for road in chosen], chosen[0].blocks)
        return replace(track, medals_ms=next((road.medals_ms for road in chosen if road.medals_ms), ()))
    except TrackError as error:
        return error


STAGE = "races"


class MissingRecordingsError(UserError):
    """No recordings exist, though some are required or were used before."""


def refuse_missing(folder: Path) -> None:
    """Checks that a folder without recordings never had any.

    Args:
        folder: the recordings folder, as `dvc.yaml` names it.

    Raises:
        MissingRecordingsError: if DVC tracks recordings there, or the last run of the stage `races` read some.
        LockFileError: if DVC's lock file of that run is damaged.
    """
    instead = "or set races.source in params.yaml to driver to race with the built-in driver instead."
    if brought := bring_back(folder):
        message = f"there are no recordings in {folder.as_posix()}, though {folder.as_posix()}.dvc says that there are"
        raise MissingRecordingsError(message, hint=f"{brought}, {instead}")
    read_before = [dep for dep in read_lock().get(STAGE, {}).get("deps", []) if dep["path"] == folder.as_posix()]
    if any(int(dep.get("size", 0)) for dep in read_before):
        message = f"there are no recordings in {folder.as_posix()}, though the last run of the stage {STAGE} used some"
        hint = f"They are no part of the repository: copy them there again, {instead}"
        raise MissingRecordingsError(message, hint=hint)
