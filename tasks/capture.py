"""Stage `capture`: renders races to frames, each with its floats, action and time.

Reads  data/races/          see rulka.datasets.formats.races
Writes data/frames/         see rulka.datasets.formats.frames; with README.md and contact_sheet.png;
                            with the game backend also quarantine.json, the races that diverged in the game
Live   runs/capture/<fingerprint>/   what took long, one file each: recovery drives, races through the game

An interrupted capture resumes by race if parameters, races and code are the same; the number of workers may change.
"""

from __future__ import annotations

import logging
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.datasets.capture import CaptureSettings, capture_race
from rulka.datasets.card import write_card
from rulka.datasets.formats.frames import CapturedRace, FrameWriter
from rulka.datasets.formats.races import Race, load_races
from rulka.datasets.formats.split import Split, split_maps
from rulka.datasets.recovery import DECISIONS_PER_S, RecoveryError, drive_again, recovery_id
from rulka.game.settings import read_game_settings
from rulka.game.supervise import running_games
from rulka.machine.errors import UserError
from rulka.machine.processes import end_with_parent, interrupts_blocked
from rulka.machine.progress import Progress
from rulka.machine.terminal import say
from rulka.params import Params, params_of_stage, sections_of
from rulka.simulator.params import SimulatorParams
from rulka.simulator.render import camera_array
from rulka.simulator.scene import Scene, bake_scene
from rulka.stages.folders import CAPTURE_RUNS, FRAMES, RACES
from rulka.stages.outputs import new_file
from rulka.stages.provenance import fingerprint, provenance
from rulka.stages.stage import output_folder, require, run_stage
from rulka.tracks.track import Track
from tasks.game_capture import GameCapture, ReplayError, write_quarantine

_LOGGER = logging.getLogger(__name__)


class _Job(NamedTuple):
    """A race to capture; with `drive`, its recovery drive of that number, which is kept in the file `kept`."""

    race: Race
    track: Track
    scene: Scene
    settings: CaptureSettings
    simulator: SimulatorParams
    drive: int | None
    kept: Path


def capture(params: Params, *, races_dir: Path, out_dir: Path, runs_dir: Path) -> None:
    """Captures all races, or those on the main track, in parallel and in deterministic order.

    Args:
        params: all parameters.
        races_dir: `data/races`.
        out_dir: `data/frames`.
        runs_dir: `runs/capture`, for what an interrupted capture keeps; removed at the end.

    Raises:
        UserError: if the races are missing or none is on the main track.
    """
    observation, capture = params.observation, params.capture
    require(races_dir, "races")
    dataset = load_races(races_dir)
    if not dataset.on_main_track():
        message = f"{races_dir.as_posix()} holds no race on its main track {dataset.main_track.uid}"
        raise UserError(message, hint="Run `dvc repro races` again.")
    races = dataset.on_main_track() if capture.maps == "main" else list(dataset.races)
    table = action_table(params.actions.ticks_per_action)
    settings = CaptureSettings(
        height=observation.height,
        width=observation.width,
        table=table,
        steer_dead_zone=capture.steer_dead_zone,
        camera=camera_array(params.simulator.camera),
    )
    track = dataset.main_track
    read = sections_of("capture", params) | {"capture": capture.model_copy(update={"num_workers": 0})}
    kept = runs_dir / fingerprint(provenance("capture", read, {"races": races_dir}))[:16]
    with output_folder(out_dir) as folder:
        splits: dict[str, Split] = split_maps(
            {race.race_id: race.map_uid for race in races}, capture.validation_fraction, capture.test_fraction
        )
        # On the main track alone: the clone imitates no other map, unless `clone.maps` says so.
        taught = [race for race in dataset.on_main_track() if splits[race.race_id] == "train"]
        again = [(race, drive) for race in taught for drive in range(capture.recoveries)]
        for race, drive in again:
            splits[recovery_id(race, drive)] = "train"
        writer = FrameWriter(
            folder,
            observation=observation_contract(observation),
            actions=table,
            main_track=track.uid,
            splits=splits,
        )
        recovering = sum(race.duration_ms // table.duration_ms + 1 for race, _ in again)
        total = sum(race.duration_ms // table.duration_ms + 1 for race in races) + recovering
        if again:
            minutes = max(1, round(recovering / DECISIONS_PER_S / capture.num_workers / 60))
            shares = f"{recovering:,} of {total:,} frames are of recovery drives on {track.name}"
            say(f"capture: {shares}: about {minutes} min")
        kept.mkdir(parents=True, exist_ok=True)
        with Progress("capture", total, "frames") as bar:
            if capture.backend == "game":
                write_quarantine(folder, _through_game(races, track, settings, writer, bar, kept))
            else:
                used = {race.map_uid: dataset.tracks[race.map_uid] for race in races}
                roads = {uid: (road, bake_scene(road)) for uid, road in used.items()}
                jobs = [
                    _Job(race, *roads[race.map_uid], settings, params.simulator, drive, kept / f"{number}.npz")
                    for number, (race, drive) in enumerate([*((race, None) for race in races), *again])
                ]
                lost: set[str] = set()
                with _captured(jobs, capture.num_workers) as captured:
                    for job, race in zip(jobs, captured, strict=True):
                        if isinstance(race, RecoveryError):
                            if job.race.race_id not in lost:  # its other drives mostly end likewise
                                _LOGGER.warning("%s", race.for_people())
                            lost.add(job.race.race_id)
                            continue
                        writer.add(race)
                        bar.advance(len(race.image))
        write_card(folder, writer.close(), capture.backend)
    shutil.rmtree(runs_dir)  # with what captures of other parameters or races had kept


def _through_game(
    races: list[Race], track: Track, settings: CaptureSettings, writer: FrameWriter, bar: Progress, kept: Path
) -> dict[str, str]:
    """Replays races in this machine's first game; returns the reasons against those that diverge there, by id.

    Raises:
        ReplayError: if every race diverged in the game.
        GameError: if there is no game, or the connection is lost for good.
    """
    quarantine: dict[str, str] = {}
    with running_games(read_game_settings(), 1) as link, closing(GameCapture(link, track, settings)) as game:
        for number, race in enumerate(races):
            try:
                captured = _kept(kept / f"{number}.npz", partial(game.capture, race))
            except ReplayError as error:
                quarantine[race.race_id] = str(error)
                _LOGGER.warning("race %s is not used: %s", race.race_id, error)
                continue
            writer.add(captured)
            bar.advance(len(captured.image))
    if len(quarantine) == len(races):
        message = f"no race of {len(races)} was the same in the game; the first: {quarantine[races[0].race_id]}"
        raise ReplayError(message, hint=f"Is the map {track.uid} open in the game? See docs/game.md.")
    return quarantine


@contextmanager
def _captured(jobs: list[_Job], num_workers: int) -> Iterator[Iterator[CapturedRace | RecoveryError]]:
    """Yields an iterator of captured races in job order; workers are ended on every exit from the block."""
    if num_workers == 1 or len(jobs) == 1:
        yield map(_capture_job, jobs)
        return
    with interrupts_blocked():
        pool = get_context("spawn").Pool(min(num_workers, len(jobs)), initializer=end_with_parent)
    with pool:
        yield pool.imap(_capture_job, jobs)


def _capture_job(job: _Job) -> CapturedRace | RecoveryError:
    if job.drive is None:
        return capture_race(job.race, job.track, job.scene, job.settings)
    try:
        return _kept(job.kept, partial(_capture_recovery, job, job.drive))
    except RecoveryError as error:
        return error


def _capture_recovery(job: _Job, drive: int) -> CapturedRace:
    driven = drive_again(job.race, job.track, job.simulator, job.settings.table.decision_ticks, drive)
    return capture_race(driven, job.track, job.scene, job.settings)


def _kept(file: Path, capture: Callable[[], CapturedRace]) -> CapturedRace:
    """Returns the race that an interrupted run has kept in a file, else captures it and keeps it there."""
    try:
        with np.load(file) as values:
            return CapturedRace(**{name: value if value.ndim else value.item() for name, value in values.items()})
    except FileNotFoundError:
        pass
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:  # as after a power cut
        _LOGGER.warning("%s is damaged, its race is captured again: %s", file.as_posix(), error)
    race = capture()
    with new_file(file) as beside:
        np.savez_compressed(beside, **vars(race))
    return race


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    capture(params_of_stage("capture"), races_dir=RACES, out_dir=FRAMES, runs_dir=CAPTURE_RUNS)


if __name__ == "__main__":
    run_stage(
        main, after_interrupt="Recoveries and races through the game are kept in runs/capture; the next run resumes."
    )
