"""Collects races to watch together, read from recordings, datasets and reference laps, or driven by agents.

The camera follows the first race of the first source; all others are ghosts, started at the same moment. Recordings
contribute every ghost of every file, finished or not, on the track that they were driven on: unlike the `races` stage,
which keeps only useful training data, this accepts any race that has a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rulka.agents.load import SHIPPED_AGENT
from rulka.contracts.actions import TICK_MS, action_table
from rulka.contracts.artifacts import META_FILE
from rulka.datasets.drives import SUFFIX as DRIVE_SUFFIX
from rulka.datasets.drives import read_drive
from rulka.datasets.formats.races import META_FILE as RACES_META_FILE
from rulka.datasets.formats.races import load_races
from rulka.datasets.from_recordings import blocks_of, find_recordings, map_name, plain_text
from rulka.evaluation.contest import agent_driver
from rulka.evaluation.dataset import demonstration_results, track_and_demonstrations
from rulka.evaluation.external_policy import is_guest
from rulka.evaluation.race import EvaluationRaces, race, reference_race
from rulka.evaluation.results import RaceResult
from rulka.machine.device import CPU, use_device
from rulka.machine.errors import UserError
from rulka.params import Params, with_given
from rulka.recordings.alignment import inputs_to_controls
from rulka.recordings.car_rows import car_rows
from rulka.recordings.errors import RecordingError
from rulka.recordings.model import Ghost, Recording
from rulka.recordings.reader import embedded_map, read_recording
from rulka.reference.lap import LAPS_DIR, load_reference, read_reference
from rulka.stages.folders import RACES
from rulka.tracks.campaign import UID_PREFIX
from rulka.tracks.from_paths import path_from_rows, track_from_paths
from rulka.tracks.track import Track
from rulka.video.hud import HudTexts
from rulka.video.race_video import VideoRace

MAX_GHOSTS = 32
SOURCES = (
    "Name a recording, a folder of them, an agent such as data/agent, data/races, a reference lap, or the folder of a"
    " training that has begun, such as runs/train."
)
LAP_SUFFIX = ".txt"
LEFT_TO_RIGHT = "\N{LEFT-TO-RIGHT MARK}"
"""Put around a name, so that right-to-left script in it does not reverse the line."""


class OtherMapError(UserError):
    """Races to be shown together were driven on different maps."""


@dataclass(frozen=True)
class Sources:
    """Sources by kind, and the first one given."""

    first: Path
    recordings: list[Path]
    drives: list[Path]
    agents: list[Path]
    datasets: list[Path]
    laps: list[Path]


def sort_sources(sources: Sequence[Path]) -> Sources:
    """Detects the kind of each source.

    Raises:
        UserError: if there is no source, or one is of no known kind.
    """
    if not sources:
        raise UserError("nothing is named to watch", hint=SOURCES)
    found = Sources(sources[0], [], [], [], [], [])
    for source in sources:
        inside = find_recordings(source, with_drives=True) if source.is_dir() else []
        if (source / RACES_META_FILE).is_file() and (source / "races.parquet").is_file():
            found.datasets.append(source)
        elif (source / META_FILE).is_file() or is_guest(source):
            found.agents.append(source)
        elif source.suffix == LAP_SUFFIX and source.is_file():
            found.laps.append(source)
        elif (LAPS_DIR / f"{source}{LAP_SUFFIX}").is_file():
            found.laps.append(LAPS_DIR / f"{source}{LAP_SUFFIX}")
        elif inside or source.is_file():
            for path in inside or [source]:
                (found.drives if path.name.endswith(DRIVE_SUFFIX) else found.recordings).append(path)
        else:
            raise UserError(f"{source} is nothing to watch", hint=SOURCES)
    return found


def gather(
    found: Sources, params: Params, track: Track | str | None, num_races: int, device: str | None = None
) -> VideoRace:
    """Reads or drives all races to show.

    Args:
        found: the sources.
        params: race settings.
        track: on which agents race, or its uid or file; None takes the track of the recordings, datasets or laps given
            with them, or the main track of `data/races`.
        num_races: greedy races of each agent, from different starts, and races of each dataset, fastest first.
        device: device of the agents' networks; see `rulka.machine.device.choose_device`.

    Raises:
        UserError: if a source cannot be read, or sources are of different tracks.
    """
    params = params.model_copy(update={"evaluate": with_given(params.evaluate, num_races=num_races)})
    where = track_and_demonstrations(track, RACES)[0] if isinstance(track, str) else track
    races: list[tuple[str, RaceResult]] = []
    if found.recordings:
        driven_on, recorded = recorded_races(found.recordings)
        where, races = _same(where, driven_on), races + recorded
    for path in found.drives:
        driven, road = read_drive(path)
        where = _same(where, road)
        races += [(plain_text(driven.player), result) for result in demonstration_results([driven], where)]
    for folder in found.datasets:
        dataset = load_races(folder)
        where = _same(where, dataset.main_track)
        results = sorted(
            demonstration_results(dataset.on_main_track(), where), key=lambda r: (not r.time_ms, r.time_ms)
        )
        races += [("Demonstration", result) for result in results[:num_races]]
    table = action_table(params.actions.ticks_per_action)
    for path in found.laps:
        lap = read_reference(path, table)
        where = _same(where, track_and_demonstrations(lap.track_uid.removeprefix(UID_PREFIX), RACES)[0])
        driven = reference_race(load_reference(path, where, params.simulator, table), EvaluationRaces.of(where, params))
        races.append(("Reference lap", driven))
    where = where or track_and_demonstrations(None, RACES)[0]
    networks = use_device(device) if found.agents else CPU
    agents = [pair for folder in found.agents for pair in _agent_races(folder, where, params, networks)]
    races = agents + races if found.first in found.agents else races + agents
    return _shown(races, where)


def _same(where: Track | None, other: Track) -> Track:
    if where is not None and where.uid != other.uid:
        message = f"cannot show {where.name!r} ({where.uid}) and {other.name!r} ({other.uid}) in one picture"
        raise OtherMapError(message, hint="Watch races of one track at a time.")
    return where or other


def _agent_races(folder: Path, where: Track, params: Params, device: torch.device) -> list[tuple[str, RaceResult]]:
    """Runs races of an agent, with decisions and observations as it was made for."""
    driver = agent_driver(folder, None, device)
    label = "Shipped driver" if folder == SHIPPED_AGENT else driver.label
    return [(f"{label}, start {each.seed}", each) for each in race(driver.policy, EvaluationRaces.of(where, params))]


def _shown(races: list[tuple[str, RaceResult]], where: Track) -> VideoRace:
    (title, followed), *others = races[: MAX_GHOSTS + 1]
    ending = f"{followed.time_s:.2f} s" if followed.time_s is not None else followed.end
    rival = f"ghost: {others[0][0]}" if others else ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    texts = HudTexts(
        f"{LEFT_TO_RIGHT}{title[:26]}{LEFT_TO_RIGHT}  {ending}", where.name[:40], (rival[:34] + more) if rival else ""
    )
    return VideoRace(followed, tuple(result for _, result in others), texts)


def recorded_races(files: Sequence[Path]) -> tuple[Track, list[tuple[str, RaceResult]]]:
    """Reads recordings of one map.

    Returns:
        The track built from the recorded paths, and for every ghost its driver's name and race, in file order.

    Raises:
        OtherMapError: if the files are of more than one map.
        RecordingError: if a file cannot be read or holds no path.
        TrackError: if no track can be built from the paths.
    """
    recordings = [_read(path) for path in files]
    uids = sorted({recording.map_uid for recording in recordings})
    if len(uids) != 1:
        message = f"the recordings are of {len(uids)} maps: {', '.join(uids)}"
        hint = "Watch recordings of one map at a time; `rulka recordings inspect FOLDER` lists them."
        raise OtherMapError(message, hint=hint)
    ghosts = [ghost for recording in recordings for ghost in recording.ghosts]
    rows = [car_rows(ghost) for ghost in ghosts]
    paths = [path_from_rows(*row, ghost.checkpoint_times_ms) for row, ghost in zip(rows, ghosts, strict=True)]
    if not any(path.checkpoint_times_ms for path in paths):
        # If no ghost finished, let each path end at its last sample.
        paths = [replace(path, checkpoint_times_ms=(int(path.time_ms[-1]),)) for path in paths]
    track = track_from_paths(uids[0], map_name(recordings[0]), paths, blocks_of(embedded_map(recordings[0])))
    races = [(_name(ghost), _recorded(ghost, *row, track)) for ghost, row in zip(ghosts, rows, strict=True)]
    return track, races


def _read(path: Path) -> Recording:
    """Reads a recording; errors begin with the file's name."""
    try:
        return read_recording(path)
    except RecordingError as error:
        raise type(error)(f"{path.name}: {error}", hint=error.hint) from error


def _name(ghost: Ghost) -> str:
    return plain_text(ghost.nickname).strip("\ufeff ") or ghost.login or "unnamed driver"


def _recorded(ghost: Ghost, time_ms: NDArray[np.int64], rows: NDArray[np.float32], track: Track) -> RaceResult:
    gate_times_ms = np.array([time or 0 for time in ghost.checkpoint_times_ms], np.int64)
    if len(gate_times_ms) != len(track.gate_m):  # the ghost's checkpoints do not match the track's gates
        gate_times_ms = np.zeros(len(track.gate_m), np.int64)
    race_time_ms = ghost.race_time_ms if ghost.is_finished else None
    return RaceResult.recorded(track, race_time_ms, gate_times_ms, time_ms, rows, _controls(ghost, time_ms))


def _controls(ghost: Ghost, time_ms: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the inputs at every sample, [S, 3]; zeros if the recording holds none."""
    if not ghost.events:
        return np.zeros((len(time_ms), 3), np.float32)
    num_ticks = int(time_ms[-1]) // TICK_MS + 1
    return inputs_to_controls(ghost, num_ticks)[np.clip(time_ms // TICK_MS, 0, num_ticks - 1)]
