"""How many ticks pass from the stamp of an input to the sample that shows it, measured on each recording.

Samples hold the steering that the car felt. Around every change of the stored steering, only one lag makes both agree;
the lag that most samples agree with is taken where enough of them tell it from every other. Otherwise it is the one
that other recordings of the same game have.

The action keys of the 2020 game limit how far the car steers, and only the samples tell by how much.

Dimensions: S samples, L lags.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.recordings.controls import FULL_BYTE, events_to_controls
from rulka.recordings.errors import MisalignedInputsError, NoInputsError
from rulka.recordings.model import Ghost, InputEvent, Samples, VehicleState

LAGS = range(-10, 21)
"""Lags that are tried, ticks."""
POSSIBLE_LAGS = range(3)
POSSIBLE = f"{POSSIBLE_LAGS[0]} to {POSSIBLE_LAGS[-1]}"
"""Lags that a game can have; any other, once measured, means inputs of another run or a damaged file."""
MIN_TELLING = 3
"""Samples by which the best lag must beat every other one to be believed, and that must disagree to refuse a file."""
MIN_AGREEING = 0.8
"""Share of the samples, without those that agree with every lag, that must agree with the best one."""
TOLERANCE = 0.02
"""Steering is stored in 255 steps over its range, inputs of the 2020 game too: half a step each, and more."""
KNOWN_LAGS = {"ManiaPlanet date": 0, "TrackmaniaTurbo": 0}
"""By the beginning of the program's name; all other games have `USUAL_LAG`."""
USUAL_LAG = 1
ANALOG_CONTROLS = frozenset({"Steer", "Gas", "AccelerateReal", "BrakeReal"})
"""Inputs of a pad, a joystick or a wheel."""
_HINT = "Its inputs are not those of its path: record it again, or use another file."


class Lag(NamedTuple):
    """When the car shows an input.

    Attributes:
        ticks: from the stamp of an input to the first state that shows it.
        is_measured: it was measured on this ghost; otherwise it is the one that its game is known to have.
    """

    ticks: int
    is_measured: bool


def require_inputs(ghost: Ghost) -> tuple[InputEvent, ...]:
    """Returns the inputs of a ghost, wherever its recording stores them.

    Raises:
        NoInputsError: if there are none.
    """
    if not ghost.events:
        message = "the recording holds no inputs"
        raise NoInputsError(message, hint="Unfinished runs and runs saved by the editor store none; use another one.")
    return ghost.events


def device_of(ghost: Ghost) -> Literal["keyboard", "analog"]:
    """Returns what a ghost was driven with: `analog` if any input is of an axis, else `keyboard`.

    The 2020 game stores all steering as that of an axis; where it is never but none or full, keys were pressed.
    """
    return "analog" if any(_is_of_axis(event) for event in ghost.events) else "keyboard"


def _is_of_axis(event: InputEvent) -> bool:
    if event.name == "SteerByte":
        return event.value != 0 and abs(event.value) < FULL_BYTE
    return event.name in ANALOG_CONTROLS


def inputs_to_controls(ghost: Ghost, num_ticks: int) -> NDArray[np.float32]:
    """Returns what a ghost's driver held in every tick, lined up with the states of the car.

    Args:
        ghost: a ghost with inputs.
        num_ticks: number of rows; at least 0.

    Returns:
        [num_ticks, 3] float32 steer in [-1, 1] (positive right), gas and brake in [0, 1]; row t acts on the car from
        10 t ms on and first shows in its state 10 ms later.

    Raises:
        NoInputsError: if there are none.
        MisalignedInputsError: if they do not cause the steering in the ghost's samples.
    """
    shift_ticks = measure_lag(ghost).ticks - 1
    controls = events_to_controls(require_inputs(ghost), num_ticks=num_ticks, shift_ticks=shift_ticks)
    if ghost.samples is not None and ghost.samples.vehicle is not None and has_limits(ghost):
        _limit_steering(controls, shift_ticks, ghost, ghost.samples, ghost.samples.vehicle)
    return controls


def measure_lag(ghost: Ghost) -> Lag:
    """Lines a ghost's inputs up with the steering in its samples.

    Raises:
        MisalignedInputsError: if enough samples tell that no lag fits, or that only one fits that no game has.
    """
    known = next((lag for start, lag in KNOWN_LAGS.items() if ghost.game_version.startswith(start)), USUAL_LAG)
    samples = ghost.samples
    if samples is None or samples.vehicle is None or not ghost.events:
        return Lag(known, is_measured=False)
    agrees_sl = _agreement(ghost, samples, samples.vehicle)
    is_telling = ~agrees_sl.all(axis=1)
    num_agreeing_l = agrees_sl[is_telling].sum(axis=0)
    best = int(num_agreeing_l.argmax())
    num_agreeing, num_telling = int(num_agreeing_l[best]), int(is_telling.sum())
    if num_telling - num_agreeing >= MIN_TELLING and num_agreeing < MIN_AGREEING * num_telling:
        message = f"the inputs agree with the recorded steering in {num_agreeing} of {num_telling} samples at best"
        raise MisalignedInputsError(message, hint=_HINT)
    margin = int(num_agreeing_l[best] - np.delete(num_agreeing_l, best).max())
    if margin < MIN_TELLING:
        return Lag(known, is_measured=False)
    if LAGS[best] not in POSSIBLE_LAGS:
        message = f"the inputs lie {LAGS[best]} ticks before the steering that they cause; {POSSIBLE} can be"
        raise MisalignedInputsError(message, hint=_HINT)
    return Lag(LAGS[best], is_measured=True)


def _agreement(ghost: Ghost, samples: Samples, vehicle: VehicleState) -> NDArray[np.bool_]:
    """Returns [S, L] whether the steering of each sample of the race is that of the inputs, by lag."""
    is_race = _in_race(ghost, samples)
    tick_s = samples.time_ms[is_race] // TICK_MS
    num_ticks = int(tick_s.max(initial=0)) - LAGS[0] + 1
    # Shifted by the largest lag, so that every row that is asked for lies in the table, those before 0 included.
    device = events_to_controls(ghost.events, num_ticks=num_ticks + LAGS[-1], shift_ticks=LAGS[-1])[:, 0]
    device_sl = device[tick_s[:, None] + LAGS[-1] - np.array(LAGS)[None, :]]
    limits = LIMITS if has_limits(ghost) else LIMITS[:1]
    steer_s11 = vehicle.steer[is_race][:, None, None]
    return np.asarray((np.abs(device_sl[:, :, None] * limits - steer_s11) <= TOLERANCE).any(axis=2), dtype=np.bool_)


def _in_race(ghost: Ghost, samples: Samples) -> NDArray[np.bool_]:
    """Returns [S] whether a sample lies between the start and the finish, where what the player does is what counts."""
    end_ms = samples.time_ms[-1] if ghost.race_time_ms is None else ghost.race_time_ms
    return (samples.time_ms > 0) & (samples.time_ms < end_ms)


def _limit_steering(
    controls: NDArray[np.float32], shift_ticks: int, ghost: Ghost, samples: Samples, vehicle: VehicleState
) -> None:
    """Scales the steering of [T, 3] controls to what the action keys left of it."""
    is_race = _in_race(ghost, samples)
    time_ms = samples.time_ms[is_race]
    row = time_ms // TICK_MS - 1  # a state shows the tick before it
    is_known = (row >= 0) & (row < len(controls))
    stamp_ms = (row - shift_ticks) * TICK_MS
    steer = vehicle.steer[is_race]
    starts, limits = steer_limits(ghost, stamp_ms[is_known], controls[row[is_known], 0], steer[is_known])
    stamps_t = (np.arange(len(controls)) - shift_ticks) * TICK_MS
    controls[:, 0] *= limits[np.searchsorted(starts, stamps_t, side="right") - 1].astype(np.float32)


ACTION_KEYS = "ActionKeys"
"""Event whose value has a bit for each of the keys 1 to 5 that is down."""
LIMITS = np.array([1.0, 0.2, 0.4, 0.6, 0.8])
"""Share of the device's steering that the car is given; the first where nothing tells."""


def has_limits(ghost: Ghost) -> bool:
    """Whether an action key was pressed during the run."""
    return any(event.name == ACTION_KEYS and event.value for event in ghost.events)


def steer_limits(
    ghost: Ghost, time_ms: NDArray[np.int64], device: NDArray, steer: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Measures the limit from each press or release of an action key to the next.

    The game stores the steering of the device and which action keys went down, not how far the car then steers: a
    player toggles 20, 40, 60, 80 or 100 %. So nothing has to be known of how the game counts presses.

    Args:
        ghost: whose action keys.
        time_ms: [S] stamp of the inputs that each sample shows.
        device: [S] steering of the device then, in [-1, 1].
        steer: [S] steering of the car.

    Returns:
        [P] stamps, the first before all others, and [P] the limit from each on. A part in which no sample tells keeps
        the limit of the part before it.
    """
    changes = sorted({event.time_ms for event in ghost.events if event.name == ACTION_KEYS})
    starts = np.array([np.iinfo(np.int64).min, *changes], dtype=np.int64)
    part = np.searchsorted(starts, time_ms, side="right") - 1
    agrees_sl = np.abs(device[:, None] * LIMITS[None, :] - steer[:, None]) <= TOLERANCE
    is_telling = agrees_sl.any(axis=1) & ~agrees_sl.all(axis=1)
    limits = np.ones(len(starts))
    for index in range(len(starts)):
        votes = agrees_sl[is_telling & (part == index)].sum(axis=0)
        limits[index] = LIMITS[votes.argmax()] if votes.any() else limits[max(0, index - 1)]
    return starts, limits
