"""Races as recordings: what the tests read back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from rulka.actions import TICK_MS
from rulka.datasets.races import Race
from rulka.observation import CAR
from rulka.recordings.car_rows import interpolate_rows
from rulka.recordings.controls import FULL_LOCK
from rulka.recordings.inputs import FINISH_LINE, RACE_RUNNING
from rulka.recordings.model import Ghost, InputEvent, Recording, RecordingHeader, Samples, VehicleState

PERIOD_MS = 100
VEHICLE, ENVIRONMENT = "StadiumCar", "Stadium"
PROGRAM = "rulka"


def recording_of_race(race: Race) -> Recording:
    """Returns a race as a recording: its inputs, and a sample of the car every 100 ms up to the finish.

    The recording embeds no map, as the tracks of the simulator are none of the game: the game does not open it, this
    project's reader does.
    """
    ghost = Ghost(
        nickname=race.player,
        vehicle=VEHICLE,
        race_time_ms=race.race_time_ms,
        respawns=0,
        stunts=0,
        checkpoint_times_ms=race.checkpoint_times_ms,
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
        quaternion=Rotation.from_matrix(rotation).as_quat(scalar_first=True).astype(np.float32),
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
    return VehicleState(
        forward_speed_mps=velocity[:, 2],
        rpm=rows[:, CAR["rpm"]][:, 0],
        steer=controls[:, 0],
        gas=controls[:, 1],
        brake=controls[:, 2],
        has_contact=rows[:, CAR["has_contact"]] > 0,
        is_sliding=rows[:, CAR["is_sliding"]] > 0,
        material=rows[:, CAR["material"]].astype(np.uint8),
        damper_m=rows[:, CAR["damper"]],
    )


def controls_to_events(controls: NDArray[np.float32], race_time_ms: int | None) -> tuple[InputEvent, ...]:
    """Returns the inputs that hold the given controls.

    Steering of full lock or none throughout becomes keys, any other an axis, rounded to 1/65536; gas and brake
    likewise, on the one axis that there is for both or, where both are pressed in part, on one each.
    `events_to_controls` with a shift of 0 gives the same controls back.

    Args:
        controls: [T, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1] of every tick from 0 ms.
        race_time_ms: time of the finish, where its marker stands; None leaves it out.
    """
    steer, gas, brake = np.asarray(controls, dtype=np.float64).T
    events = [InputEvent(0, RACE_RUNNING, 1)]
    if np.isin(steer, (-1, 0, 1)).all():
        events += [*_changes("SteerLeft", steer < 0), *_changes("SteerRight", steer > 0)]
    else:
        events += _changes("Steer", _analog(steer))
    if np.isin(gas, (0, 1)).all() and np.isin(brake, (0, 1)).all():
        events += [*_changes("Accelerate", gas > 0), *_changes("Brake", brake > 0)]
    elif not ((gas > 0) & (brake > 0)).any():
        events += _changes("Gas", _analog(brake - gas))  # the game stores full gas as full lock to the left
    else:
        events += [*_changes("AccelerateReal", _analog(gas)), *_changes("BrakeReal", _analog(brake))]
    end = [] if race_time_ms is None else [InputEvent(race_time_ms, FINISH_LINE, 1)]
    return (*sorted(events, key=lambda event: event.time_ms), *end)


def _analog(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return -np.rint(values * FULL_LOCK).astype(np.int64) & 0xFFFFFF


def _changes(name: str, values: NDArray) -> Iterator[InputEvent]:
    """Yields an event for every tick whose value differs from the one before; all controls begin at zero."""
    stored = values.astype(np.int64)
    for tick in np.flatnonzero(np.diff(stored, prepend=0)).tolist():
        yield InputEvent(TICK_MS * tick, name, int(stored[tick]))
