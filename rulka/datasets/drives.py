"""Races of people in the simulator: recorded tick by tick, and kept as files that bring their track.

A drive file, `*.drive.npz`, holds plain arrays; nothing in it is unpickled:

    drive_schema    version of this layout
    player          name of the driver
    controls        [T, 3] float32 steer, gas and brake of every tick
    gate_times_ms   [G] int64 time at every gate passed
    state_time_ms   [S] int64 time of every sample
    state           [S, 39] float32 `CAR` rows
    by_person       [T] bool, ticks that the person drove; only if an agent drove the others (a takeover)
    track.*         the arrays of the track's own file, see `rulka.tracks.track`

The states are stored, so that a race stays what it was when the physics changes. A race is kept only if the inputs in
its file drive it again, bit for bit, on the track in its file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rulka.contracts.actions import PRESSED, TICK_MS, action_table
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.contracts.stored import read_arrays
from rulka.datasets.formats.races import Race, content_id
from rulka.datasets.selection import UnusableRecordingError
from rulka.machine.errors import UserError
from rulka.recordings.car_rows import gearbox_counter
from rulka.recordings.input_script import FULL
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.stages.outputs import new_file
from rulka.tracks.track import ARRAYS, MAX_UNPACKED_BYTES, Track, TrackError, track_of_arrays

SUFFIX = ".drive.npz"
SCHEMA_VERSION = 1
CAR_NAME, ENVIRONMENT = "StadiumCar", "Stadium"
"""What the simulator simulates."""
SAMPLE_TICKS = 5
MAX_TICKS = 60_000
"""Longest race: ten minutes."""
MAX_NAME, MAX_UID = 40, 200
_TRACK = "track."
_OWN = {
    "drive_schema": ("i8", 0),
    "controls": ("f4", 2),
    "gate_times_ms": ("i8", 1),
    "state_time_ms": ("i8", 1),
    "state": ("f4", 2),
}
_FORMS = _OWN | {"by_person": ("?", 1)} | {f"{_TRACK}{name}": form for name, form in ARRAYS.items()}
_HINT = "Drive the race again with `rulka drive`, or take the file away."


class DriveFileError(UnusableRecordingError):
    """A drive file is damaged, of another version, or of another kind."""


class RedriveError(UserError):
    """The inputs of a race do not drive it again, so it is not kept."""


class PlayerNameError(UserError):
    """A name that no driver can have."""


def recorded_controls(steer: float, gas: float, brake: float) -> NDArray[np.float32]:
    """Returns controls as every format of inputs can hold them: [3] float32 steer in 1/65536, pedals 0 or 1.

    A pedal counts as pressed above `PRESSED`, as in the game.
    """
    return np.array([round(steer * FULL) / FULL, gas > PRESSED, brake > PRESSED], np.float32)


def device_of_controls(controls: NDArray[np.float32]) -> Literal["keyboard", "analog"]:
    """Returns the input device of a drive: `keyboard` if its steering [T, 3] is none or full at every tick."""
    return "keyboard" if np.isin(controls[:, 0], (-1.0, 0.0, 1.0)).all() else "analog"


def check_player(name: str) -> str:
    """Returns a driver's name without space around it.

    Raises:
        PlayerNameError: if it is empty, longer than `MAX_NAME` characters, or holds a control character.
    """
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        hint = f"Take 1 to {MAX_NAME} printable characters."
        raise PlayerNameError(f"{name!r:.60} cannot be the name of a driver", hint=hint)
    return name


class Recorder:
    """One car that is driven tick by tick from the start line, and the record of its race.

    Attributes:
        track: the track.
        car: the simulator, with one car.
    """

    def __init__(self, track: Track, simulator: SimulatorParams) -> None:
        self.track = track
        self.car = Simulator(track, 1, simulator, action_table(1, is_analog=True))
        self.begin()

    def begin(self) -> None:
        """Puts the car on the middle of the start line, at rest, and drops the record."""
        self.car.reset(np.ones(1, np.bool_))
        self._controls: list[NDArray[np.float32]] = []
        self._by_person: list[bool] = []
        self._state: list[NDArray[np.float32]] = []
        self._state_time_ms: list[int] = []
        self._sample()

    @property
    def num_ticks(self) -> int:
        """Ticks driven so far."""
        return len(self._controls)

    @property
    def has_person(self) -> bool:
        """True if a person drove part of the race."""
        return any(self._by_person)

    @property
    def has_ended(self) -> bool:
        """True if the car has finished or left the track."""
        return bool(self.car.is_finished[0] or self.car.is_off_track[0])

    def tick(self, controls: ArrayLike, *, by_person: bool = True) -> None:
        """Drives 10 ms with constant controls [3]: steer in [-1, 1] (positive right), gas and brake in [0, 1].

        Does nothing once the race has ended. `by_person` is False for controls of an agent.

        Raises:
            SimulatorError: if a control is out of range.
        """
        if self.has_ended:
            return
        held = np.array(controls, np.float32)
        self.car.step_controls(held[None])
        self._controls.append(held)
        self._by_person.append(by_person)
        if self.num_ticks % SAMPLE_TICKS == 0 or self.has_ended:
            self._sample()

    def _sample(self) -> None:
        self._state.append(self.car.cars[0].copy())
        self._state_time_ms.append(int(self.car.time_ms[0]))

    def race(self, player: str) -> Race:
        """Returns a copy of the race so far; without a time if the car has not finished.

        It is a takeover if an agent drove part of it.
        """
        state = np.array(self._state)
        # The simulator counts the ticks of a gear change here, recordings count decisions.
        state[:, CAR["gearbox_counter"]] = gearbox_counter(state[:, CAR["gearbox_state"]][:, 0])[:, None]
        return _race(
            player,
            self.track,
            controls=np.array(self._controls, np.float32).reshape(-1, 3),
            gate_times_ms=self.car.gate_time_ms[0, : self.car.gate_index[0]].astype(np.int64),
            state_time_ms=np.array(self._state_time_ms, np.int64),
            state=state,
            by_person=None if all(self._by_person) else np.array(self._by_person),
        )


def _race(
    player: str, track: Track, gate_times_ms: NDArray[np.int64], by_person: NDArray | None = None, **arrays: NDArray
) -> Race:
    source = "drive" if by_person is None else "takeover"
    passed = tuple(gate_times_ms.tolist())
    is_finished = len(passed) == len(track.gate_m)
    return Race(
        race_id=content_id(source, arrays["controls"], arrays["state"]),
        source=source,
        file="",
        player=player,
        map_uid=track.uid,
        race_time_ms=passed[-1] if is_finished else None,
        is_finished=is_finished,
        checkpoint_times_ms=passed,
        seed=None,
        car=CAR_NAME,
        by_person=by_person,
        **arrays,
    )


def save_drive(folder: Path, race: Race, track: Track, simulator: SimulatorParams) -> Path:
    """Writes a race into a folder, after driving it again from what was written.

    Args:
        folder: existing folder.
        race: result of `Recorder.race`.
        track: its track.
        simulator: the physics that it was driven with.

    Returns:
        The file. Its name is made of track, driver, time and a hash; other characters than letters, digits and hyphens
        become underscores.

    Raises:
        RedriveError: if the inputs in the file drive another race.
        UserError: if the file exists or cannot be written.
    """
    time = "unfinished" if race.race_time_ms is None else f"{race.race_time_ms}ms"
    words = (re.sub(r"[^A-Za-z0-9-]+", "_", word).strip("-_")[:MAX_NAME] for word in (track.uid, race.player))
    path = folder / f"{'-'.join(word or 'unnamed' for word in words)}-{time}-{race.race_id[-8:]}{SUFFIX}"
    with new_file(path, may_replace=False) as beside:
        _write(beside, race, track)
        stored, road = read_drive(beside)
        again = Recorder(road, simulator)
        for tick, controls in enumerate(stored.controls):
            again.tick(controls, by_person=stored.by_person is None or bool(stored.by_person[tick]))
        redriven = again.race(stored.player)
        # The id is a hash of all inputs and states.
        if (redriven.race_id, redriven.checkpoint_times_ms) != (stored.race_id, stored.checkpoint_times_ms):
            message = f"the race was not kept: its inputs, driven again, end after {redriven.duration_ms} ms"
            raise RedriveError(f"{message} instead of {stored.duration_ms} ms, or take another way")
    return path


def _write(path: Path, race: Race, track: Track) -> None:
    fields = {name: getattr(race, name) for name in ("controls", "state_time_ms", "state")}
    fields |= {"drive_schema": np.array(SCHEMA_VERSION, np.int64), "player": np.array(race.player)}
    fields |= {"gate_times_ms": np.array(race.checkpoint_times_ms, np.int64)}
    fields |= {f"{_TRACK}{name}": values for name, values in track.arrays().items()}
    if race.by_person is not None:
        fields["by_person"] = race.by_person
    np.savez_compressed(path, allow_pickle=False, **fields)


def read_drive(path: Path) -> tuple[Race, Track]:
    """Reads a race of the simulator and its track.

    Raises:
        DriveFileError: if the file is missing, damaged, of another kind or version, or contradicts itself.
    """
    fields = read_arrays(path, "drive file", _FORMS, 2 * MAX_UNPACKED_BYTES, error=DriveFileError, hint=_HINT)
    road = {name.removeprefix(_TRACK): fields.pop(name) for name in list(fields) if name.startswith(_TRACK)}
    schema = int(fields.get("drive_schema", -1))
    if schema != SCHEMA_VERSION:
        message = f"{path} has drive schema {schema}, this version reads {SCHEMA_VERSION}"
        raise DriveFileError(message, hint=_HINT)
    if wrong := {*_OWN, "player"} ^ set(fields) - {"by_person"}:
        raise DriveFileError(f"{path} does not hold the fields of a drive: {sorted(wrong)}", hint=_HINT)
    del fields["drive_schema"]
    try:
        track, player = track_of_arrays(road, path), check_player(str(fields.pop("player")))
    except (TrackError, PlayerNameError) as error:
        raise DriveFileError(f"{path}: {error}", hint=_HINT) from error
    problem = next(_problems(track, **fields), None)
    if problem is not None:
        raise DriveFileError(f"{path} contradicts itself: {problem}", hint=_HINT)
    return _race(player, track, **fields), track


def _problems(
    track: Track,
    controls: NDArray,
    gate_times_ms: NDArray,
    state_time_ms: NDArray,
    state: NDArray,
    by_person: NDArray | None = None,
) -> Iterator[str]:
    """Yields what is wrong with the arrays of a drive; a check may need those before it."""
    is_whole = controls.shape == (len(controls), 3) and 0 < len(controls) <= MAX_TICKS
    if not is_whole or not (np.abs(controls) <= 1.0).all() or (controls[:, 1:] < 0.0).any():  # also True for NaN
        yield f"it needs 1 to {MAX_TICKS:,} ticks of steer in [-1, 1], gas and brake in [0, 1]"
    if state.shape != (len(state_time_ms), NUM_CAR_FIELDS) or not np.isfinite(state).all():
        yield f"{len(state_time_ms)} samples have states of shape {state.shape}, or some that are not finite"
    last_ms = TICK_MS * len(controls)
    is_rising = state_time_ms[:1].tolist() == [0] and (np.diff(state_time_ms) > 0).all()
    if not is_rising or not last_ms - SAMPLE_TICKS * TICK_MS < state_time_ms[-1] <= last_ms:
        yield f"its samples do not rise from 0 to its end at {last_ms} ms"
    is_rising = (np.diff([0, *gate_times_ms, last_ms + 1]) > 0).all()
    if not is_rising or len(gate_times_ms) > len(track.gate_m):
        yield f"its gate times do not rise from 0 to {last_ms} ms, or are more than {len(track.gate_m)}"
    if by_person is not None and len(by_person) != len(controls):
        yield f"it says of {len(by_person)} ticks who drove, but has {len(controls)}"
    if len(track.uid) > MAX_UID:
        yield f"the UID of its track has more than {MAX_UID} characters"
