"""Stage `races`: human recordings, or demonstrations by the built-in driver, as one dataset with their tracks.

Reads  data/recordings/     `*.Gbx` and `*.drive.npz` files at any depth; may be empty
Writes data/races/          see rulka.datasets.formats.races; tracks/<uid>.reference.txt, a near-optimal lap
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rulka.contracts.actions import TICK_MS, ActionTable, action_table
from rulka.datasets.formats.races import Race, RaceDataset, reference_path, write_races
from rulka.datasets.from_recordings import (
    MissingRecordingsError,
    NoUsableRecordingError,
    find_recordings,
    read_race_dataset,
    refuse_missing,
    unread_files,
)
from rulka.datasets.params import RaceParams
from rulka.datasets.selection import summary_of
from rulka.machine.errors import UserError
from rulka.machine.progress import Progress
from rulka.machine.terminal import say
from rulka.params import Params, params_of_stage
from rulka.planner.demonstrations import DrivenRace, record_demonstrations
from rulka.reference.lap import store_reference
from rulka.reference.search import NoLapError, search_with_progress
from rulka.simulator.race_settings import RaceSettings
from rulka.stages.folders import RACES, REASONS_FILE, RECORDINGS
from rulka.stages.stage import output_folder, run_stage
from rulka.tracks.campaign import campaign_track
from rulka.tracks.generate import generate_track
from rulka.tracks.track import Track


def races(params: Params, *, recordings_dir: Path, out_dir: Path) -> None:
    """Reads the recordings, or if there are none, races the built-in driver on a campaign or generated track.

    Raises:
        UserError: if no recording can be used, if there are none although they are required or were used before, or
            if no driver finished.
    """
    races = params.races
    files = [] if races.source == "driver" else find_recordings(recordings_dir, with_drives=True)
    for line in unread_files(recordings_dir) if races.source != "driver" else ():
        say(f"races: not read: {line}")
    if not files and races.source == "recordings":
        message = f"there are no recordings in {recordings_dir.as_posix()}, and races.source asks for them"
        raise MissingRecordingsError(message, hint="Copy some there, or set races.source in params.yaml to auto.")
    if not files and races.source == "auto":
        refuse_missing(recordings_dir)
        say(f"races: no recordings in {recordings_dir.as_posix()}: the built-in driver races")
    if files:
        with Progress("races: reading recordings", len(files), "files") as bar:
            dataset = _read(recordings_dir, files, races, bar.advance)
        say(f"races: {summary_of(dataset)}")
    else:
        dataset = _demonstrate(params)
    with output_folder(out_dir) as folder:
        write_races(folder, dataset)
        if races.reference_decisions:
            _find_reference(params, dataset.main_track, folder)


def _read(folder: Path, files: Sequence[Path], races: RaceParams, on_file: Callable[[], None]) -> RaceDataset:
    """Reads the recordings; if none can be used, writes all reasons to `REASONS_FILE`."""
    try:
        return read_race_dataset(folder, files, races.map_uid, races.select, on_file)
    except NoUsableRecordingError as error:
        REASONS_FILE.parent.mkdir(exist_ok=True)
        with REASONS_FILE.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(("file", "error", "hint"))
            table.writerows((item.file, item.error, item.hint) for item in error.quarantine)
        hint = f"{error.hint} All {len(error.quarantine)} reasons: `rulka recordings quarantine`, {REASONS_FILE}."
        raise NoUsableRecordingError(str(error), hint=hint) from error


def _demonstrate(params: Params) -> RaceDataset:
    """Returns the finished races of a field of built-in drivers; unfinished races are not worth imitating.

    Raises:
        UserError: if no driver finished.
    """
    races = params.races
    road = campaign_track(races.campaign) if races.campaign else generate_track(**params.track.model_dump())
    settings = RaceSettings.for_demonstrations(params.actions, params.simulator, params.race_end)
    with Progress("races: driving demonstrations", None, "decisions") as bar:
        driven = record_demonstrations(
            road, settings, races.driver, races.num_demonstrations, races.seed, on_decision=bar.advance
        )
    finished = tuple(race_of_driver(race, road.uid, settings.table) for race in driven if race.is_finished)
    if not finished:
        furthest_m = max((race.progress_m for race in driven), default=0.0)
        message = (
            f"there are no recordings, and none of {len(driven)} built-in drivers finished track {road.uid}"
            f" ({road.length_m:.0f} m); the furthest came {furthest_m:.0f} m"
        )
        hint = "Raise races.num_demonstrations or race_end.max_race_s, or take another track.seed, in params.yaml."
        raise UserError(message, hint=hint)
    return RaceDataset(finished, road, ())


def race_of_driver(driven: DrivenRace, map_uid: str, table: ActionTable) -> Race:
    """Converts a race of the built-in driver: inputs at every tick, car state at every decision.

    Args:
        driven: the race.
        map_uid: UID of its track.
        table: its action table.
    """
    num_ticks = math.ceil(int(driven.time_ms[-1]) / TICK_MS)
    return Race(
        race_id=f"driver-{driven.seed}-{driven.number:04d}",
        source="driver",
        file="",
        player="",
        map_uid=map_uid,
        race_time_ms=driven.race_time_ms,
        is_finished=driven.is_finished,
        checkpoint_times_ms=driven.gate_times_ms,
        seed=driven.seed,
        controls=np.repeat(table.analog()[driven.actions], table.decision_ticks, axis=0)[:num_ticks],
        state_time_ms=driven.time_ms,
        state=driven.car_rows,
    )


def _find_reference(params: Params, track: Track, folder: Path) -> None:
    """Searches and writes the reference lap of the main track; reports if none was found."""
    races, table = params.races, action_table(params.actions.ticks_per_action)
    try:
        reference = search_with_progress(track, params.simulator, table, races.seed, races.reference_decisions)
    except NoLapError as error:
        say(f"races: no reference: {error}")
        return
    store_reference(reference, table, reference_path(folder, track.uid))


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    races(params_of_stage("races"), recordings_dir=RECORDINGS, out_dir=RACES)
    REASONS_FILE.unlink(missing_ok=True)


if __name__ == "__main__":
    run_stage(main)
