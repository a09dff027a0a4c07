"""Stage `capture`: renders races to frames, each with its floats, action and time.

Reads  data/races/          see rulka.datasets.formats.races
Writes data/frames/         see rulka.datasets.formats.frames; with README.md and contact_sheet.png;
                            with the game backend also quarantine.json, the races that diverged in the game
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from rulka.contracts.actions import action_table
from rulka.contracts.artifacts import observation_contract
from rulka.datasets.capture import CaptureSettings, capture_race
from rulka.datasets.card import write_card
from rulka.datasets.formats.frames import CapturedRace, FrameWriter
from rulka.datasets.formats.races import Race, load_races
from rulka.datasets.formats.split import Split, split_maps
from rulka.datasets.recovery import RecoveryError, drive_again, recovery_id
from rulka.game.settings import read_game_settings
from rulka.game.supervise import running_games
from rulka.machine.errors import UserError
from rulka.machine.processes import end_with_parent, interrupts_blocked
from rulka.machine.progress import Progress
from rulka.params import Params
from rulka.params.of_stages import params_of_stage
from rulka.simulator.params import SimulatorParams
from rulka.simulator.render import camera_array
from rulka.simulator.scene import Scene, bake_scene
from rulka.stages.folders import FRAMES, RACES
from rulka.stages.stage import output_folder, require, run_stage
from rulka.tracks.track import Track
from tasks.game_capture import GameCapture, ReplayError, write_quarantine

_LOGGER = logging.getLogger(__name__)


class _Job(NamedTuple):
    """A race to capture; with `drive`, its recovery drive of that number."""

    race: Race
    track: Track
    scene: Scene
    settings: CaptureSettings
    simulator: SimulatorParams
    drive: int | None = None


def capture(params: Params, *, races_dir: Path, out_dir: Path) -> None:
    """Captures all races, or those on the main track, in parallel and in deterministic order.

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
    with output_folder(out_dir) as folder:
        splits: dict[str, Split] = split_maps(
            {race.race_id: race.map_uid for race in races}, capture.validation_fraction, capture.test_fraction
        )
        again = [
            (race, drive) for race in races if splits[race.race_id] == "train" for drive in range(capture.recoveries)
        ]
        for race, drive in again:
            splits[recovery_id(race, drive)] = "train"
        writer = FrameWriter(
            folder,
            observation=observation_contract(observation),
            actions=table,
            main_track=track.uid,
            splits=splits,
        )
        total = sum(race.duration_ms // table.duration_ms + 1 for race in [*races, *(race for race, _ in again)])
        with Progress("capture", total, "frames") as bar:
            if capture.backend == "game":
                _through_game(races, track, settings, writer, bar, folder)
            else:
                roads = {
                    uid: (dataset.tracks[uid], bake_scene(dataset.tracks[uid])) for uid in {r.map_uid for r in races}
                }
                jobs = [
                    _Job(race, *roads[race.map_uid], settings, params.simulator, drive)
                    for race, drive in [*((race, None) for race in races), *again]
                ]
                with _captured(jobs, capture.num_workers) as captured:
                    for race in captured:
                        if isinstance(race, RecoveryError):
                            _LOGGER.warning("%s", race.for_people())
                            continue
                        writer.add(race)
                        bar.advance(len(race.image))
        write_card(folder, writer.close(), capture.backend)


def _through_game(
    races: list[Race], track: Track, settings: CaptureSettings, writer: FrameWriter, bar: Progress, folder: Path
) -> None:
    """Replays races in this machine's first game; races that diverge there are quarantined.

    Raises:
        ReplayError: if every race diverged in the game.
        GameError: if there is no game, or the connection is lost for good.
    """
    quarantine: dict[str, str] = {}
    with running_games(read_game_settings(), 1) as link, closing(GameCapture(link, track, settings)) as game:
        for race in races:
            try:
                captured = game.capture(race)
            except ReplayError as error:
                quarantine[race.race_id] = str(error)
                _LOGGER.warning("race %s is not used: %s", race.race_id, error)
                continue
            writer.add(captured)
            bar.advance(len(captured.image))
    if len(quarantine) == len(races):
        message = f"no race of {len(races)} was the same in the game; the first: {quarantine[races[0].race_id]}"
        raise ReplayError(message, hint=f"Is the map {track.uid} open in the game? See docs/game.md.")
    write_quarantine(folder, quarantine)


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
    race = job.race
    if job.drive is not None:
        try:
            race = drive_again(race, job.track, job.simulator, job.settings.table.ticks_per_action, job.drive)
        except RecoveryError as error:
            return error
    return capture_race(race, job.track, job.scene, job.settings)


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    capture(params_of_stage("capture"), races_dir=RACES, out_dir=FRAMES)


if __name__ == "__main__":
    run_stage(main)
