"""Races as recordings, for example to watch one as a ghost, and as input scripts that TMInterface plays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.datasets.races import Race, load_races
from rulka.errors import UserError
from rulka.input_script import write_script
from rulka.observation import CAR
from rulka.outputs import new_file
from rulka.recordings import Ghost, Recording, RecordingHeader, Samples, VehicleState, write_recording
from rulka.recordings.car_rows import interpolate_rows
from rulka.recordings.controls import controls_to_events
from rulka.recordings.rotation import matrix_to_quaternion

PERIOD_MS = 100
VEHICLE, ENVIRONMENT = "StadiumCar", "Stadium"
PROGRAM = "rulka"
SCRIPT_SUFFIX = ".txt"
NUM_SHOWN = 20


class NoSuchRaceError(UserError):
    """The dataset holds no race of that name."""


def export_race(folder: Path, race_id: str, out: Path) -> Race:
    """Writes a race of the dataset as a recording, or, where the file ends in `.txt`, as an input script.

    Args:
        folder: `data/races`.
        race_id: which race; the beginning of its name is enough where no other begins so.
        out: file to write, which must not exist.

    Returns:
        The race that was written.

    Raises:
        NoSuchRaceError: if no race, or more than one, has that name.
        RecordingError: if the race cannot be written.
        UserError: if the file exists or cannot be written.
    """
    race = find_race(load_races(folder).races, race_id)
    write_race(race, out)
    return race


def write_race(race: Race, out: Path) -> None:
    """Writes a race as a recording (`.Gbx`) or as an input script (`.txt`); nothing is overwritten.

    Raises:
        RecordingError, InputScriptError: if the race cannot be written in that form.
        OutputError: if the file exists or cannot be written.
    """
    with new_file(out, may_replace=False) as beside:
        if out.suffix.lower() == SCRIPT_SUFFIX:
            beside.write_text(script_of_race(race), encoding="utf-8")
        else:
            write_recording(beside, recording_of_race(race))


def script_of_race(race: Race) -> str:
    """Returns the inputs of a race as a script of TMInterface, with what is known of the race in its head."""
    time = "not finished" if race.race_time_ms is None else f"{race.race_time_ms} ms"
    head = (f"race: {race.race_id}", f"map: {race.map_uid}", f"player: {race.player or PROGRAM}", f"time: {time}")
    return write_script(race.controls, head)


def find_race(races: tuple[Race, ...], race_id: str) -> Race:
    """Returns the race of that name, or the only one whose name begins so.

    Raises:
        NoSuchRaceError: if there is no such race, or more than one.
    """
    found = [race for race in races if race.race_id == race_id] or [
        race for race in races if race.race_id.startswith(race_id)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(race.race_id for race in (found or races)[:NUM_SHOWN])
    message = f"{'more than one race begins' if found else 'no race begins'} with {race_id!r}"
    raise NoSuchRaceError(message, hint=f"There are {known}{', ...' if len(found or races) > NUM_SHOWN else ''}.")


def recording_of_race(race: Race) -> Recording:
    """Returns a race as a recording: its inputs, and a sample of the car every 100 ms up to the finish.

    The recording embeds no map, as the tracks of the simulator are none of the game: the game does not open it, this
    project's reader does.

    Raises:
        RecordingError: if its controls or states cannot be held by a recording.
    """
    ghost = Ghost(
        nickname=race.player,
        vehicle=VEHICLE,
        race_time_ms=race.race_time_ms,
        respawns=0,
        stunts=0,
        checkpoint_times_ms=race.checkpoint_times_ms,
        checkpoint_stunts=(0,) * len(race.checkpoint_times_ms),
        events=controls_to_events(race.controls, race.race_time_ms),
        game_version=PROGRAM,
        samples=_samples(race),
    )
    ghost.num_inputs = len(ghost.events)
    header = RecordingHeader("recording", map_uid=race.map_uid, race_time_ms=race.race_time_ms, nickname=race.player)
    return Recording("recording", header, race.map_uid, ENVIRONMENT, "", (ghost,), b"", ())


def _samples(race: Race) -> Samples:
    """Returns samples from 0 to the first at or after the finish, or to the last known state."""
    last_ms = min(race.duration_ms + PERIOD_MS - 1, int(race.state_time_ms[-1]) + PERIOD_MS - 1)
    time_ms = np.arange(last_ms // PERIOD_MS + 1, dtype=np.int64) * PERIOD_MS
    rows = interpolate_rows(race.state_time_ms, race.state, time_ms)
    rotation = rows[:, CAR["rotation"]].reshape(-1, 3, 3)
    return Samples(
        layout="car",
        version=9,
        size_bytes=61,
        period_ms=PERIOD_MS,
        time_ms=time_ms,
        position=rows[:, CAR["position"]],
        quaternion=matrix_to_quaternion(rotation).astype(np.float32),
        velocity=rows[:, CAR["velocity"]],
        angular_velocity=rows[:, CAR["angular_velocity"]],
        vehicle=_vehicle(rows, rotation, _controls_at(race, time_ms)),
    )


def _controls_at(race: Race, time_ms: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the controls that the state at each time has felt: those of the tick before it."""
    tick = np.clip(time_ms // 10 - 1, 0, len(race.controls) - 1)
    return np.where((time_ms > 0)[:, None], race.controls[tick], np.float32(0))


def _vehicle(rows: NDArray, rotation: NDArray, controls: NDArray) -> VehicleState:
    velocity = (rotation * rows[:, CAR["velocity"]][:, :, None]).sum(axis=1)  # into the car's frame
    absent = np.zeros(len(rows), dtype=np.float32)
    return VehicleState(
        forward_speed_mps=velocity[:, 2],
        side_speed_mps=velocity[:, 0],
        rpm=rows[:, CAR["rpm"]][:, 0],
        steer=controls[:, 0],
        gas=controls[:, 1],
        brake=controls[:, 2],
        turbo=absent,
        has_contact=rows[:, CAR["has_contact"]] > 0,
        is_sliding=rows[:, CAR["is_sliding"]] > 0,
        material=rows[:, CAR["material"]].astype(np.uint8),
        damper_m=rows[:, CAR["damper"]],
        dirt=absent,
    )
