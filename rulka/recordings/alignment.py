"""Measures the input lag of each recording: ticks from the timestamp of an input to the sample that shows it.

Samples hold the steering applied to the car. Around every change of the stored steering, only one lag makes inputs and
samples agree. The lag with the most agreeing samples is used if enough samples distinguish it from every other,
otherwise the known lag of the game.

Gas and brake must agree too: the samples decide the sign of analog pedals, and a file that agrees under neither sign is
refused.

The action keys of the 2020 game limit the steering, and only the samples tell by how much.

Dimensions: S samples, L lags.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import PRESSED, TICK_MS
from rulka.recordings.controls import FULL_BYTE, events_to_controls
from rulka.recordings.errors import MisalignedInputsError, NoInputsError
from rulka.recordings.model import Ghost, InputEvent, Samples, VehicleState

LAGS = range(-10, 21)
"""Candidate lags, ticks."""
POSSIBLE_LAGS = range(3)
POSSIBLE = f"{POSSIBLE_LAGS[0]} to {POSSIBLE_LAGS[-1]}"
"""Lags that a game can have; any other measured lag means inputs of another run or a damaged file."""
MIN_INFORMATIVE_SAMPLES = 3
"""Lead in samples that the best lag needs over every other; also the disagreeing samples needed to reject a file."""
MIN_AGREEING = 0.8
"""Fraction of samples that must agree with the best lag, not counting those that agree with every lag."""
TOLERANCE = 0.02
"""Steering is quantised to 255 steps, in the 2020 game inputs too: half a step for each, plus a margin."""
MIN_PEDALS_AGREEING = 0.5
"""The same for a pedal, of the samples in which it is pressed: short taps may fall between two samples."""
KNOWN_LAGS = {"ManiaPlanet date": 0, "TrackmaniaTurbo": 0}
"""Lag by prefix of the game version; all other games have `USUAL_LAG`."""
USUAL_LAG = 1
ANALOG_CONTROLS = frozenset({"Steer", "Gas", "AccelerateReal", "BrakeReal"})
"""Inputs of a gamepad, a joystick or a steering wheel."""
_HINT = "Its inputs are not those of its path: record it again, or use another file."


class Lag(NamedTuple):
    """Input lag of a ghost.

    Attributes:
        ticks: from the timestamp of an input to the first state that shows it.
        is_measured: True if measured on this ghost, False if it is the known lag of the game.
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
    """Returns the input device of a ghost: `analog` if any input is of an axis, else `keyboard`.

    The 2020 game stores all steering as an axis; if it is always zero or full, keys were pressed.
    """
    return "analog" if any(_is_of_axis(event) for event in ghost.events) else "keyboard"


def _is_of_axis(event: InputEvent) -> bool:
    if event.name == "SteerByte":
        return event.value != 0 and abs(event.value) < FULL_BYTE
    return event.name in ANALOG_CONTROLS


def inputs_to_controls(ghost: Ghost, num_ticks: int) -> NDArray[np.float32]:
    """Returns the controls held in every tick, aligned with the states of the car.

    Args:
        ghost: a ghost with inputs.
        num_ticks: number of rows; at least 0.

    Returns:
        [num_ticks, 3] float32 steer in [-1, 1] (positive right), gas and brake in [0, 1]; row t acts on the car from
        10 t ms on and first shows in its state 10 ms later.

    Raises:
        NoInputsError: if there are none.
        MisalignedInputsError: if they do not explain the steering, gas and brake in the ghost's samples.
    """
    events, lag_ticks = require_inputs(ghost), measure_lag(ghost).ticks
    shift_ticks, sign = lag_ticks - 1, measure_pedal_sign(ghost, lag_ticks)
    controls = events_to_controls(events, num_ticks=num_ticks, shift_ticks=shift_ticks, pedal_sign=sign)
    if ghost.samples is not None and ghost.samples.vehicle is not None and has_limits(ghost):
        _limit_steering(controls, shift_ticks, ghost, ghost.samples, ghost.samples.vehicle)
    return controls


def measure_lag(ghost: Ghost) -> Lag:
    """Measures the lag between a ghost's inputs and the steering in its samples.

    Raises:
        MisalignedInputsError: if enough samples show that no lag fits, or only a lag that no game has.
    """
    known = next((lag for start, lag in KNOWN_LAGS.items() if ghost.game_version.startswith(start)), USUAL_LAG)
    samples = ghost.samples
    if samples is None or samples.vehicle is None or not ghost.events:
        return Lag(known, is_measured=False)
    agrees_sl = _agreement(ghost, samples, samples.vehicle)
    is_informative = ~agrees_sl.all(axis=1)
    num_agreeing_l = agrees_sl[is_informative].sum(axis=0)
    best = int(num_agreeing_l.argmax())
    num_agreeing, num_informative = int(num_agreeing_l[best]), int(is_informative.sum())
    if num_informative - num_agreeing >= MIN_INFORMATIVE_SAMPLES and num_agreeing < MIN_AGREEING * num_informative:
        message = f"the inputs agree with the recorded steering in {num_agreeing} of {num_informative} samples at best"
        raise MisalignedInputsError(message, hint=_HINT)
    margin = int(num_agreeing_l[best] - np.delete(num_agreeing_l, best).max())
    if margin < MIN_INFORMATIVE_SAMPLES:
        return Lag(known, is_measured=False)
    if LAGS[best] not in POSSIBLE_LAGS:
        message = f"the inputs lie {LAGS[best]} ticks before the steering that they cause; {POSSIBLE} can be"
        raise MisalignedInputsError(message, hint=_HINT)
    return Lag(LAGS[best], is_measured=True)


def measure_pedal_sign(ghost: Ghost, lag_ticks: int) -> float:
    """Returns the `pedal_sign` of `events_to_controls` with which a ghost's inputs agree with its samples.

    Returns:
        1, or -1 if the samples show that the analog pedals are stored the other way round.

    Raises:
        MisalignedInputsError: if gas or brake agree with the samples under neither sign.
    """
    samples = ghost.samples
    if samples is None or samples.vehicle is None or not ghost.events:
        return 1.0
    is_race = _in_race(ghost, samples)
    shown_s2 = np.stack([samples.vehicle.gas, samples.vehicle.brake], axis=1)[is_race] > PRESSED
    if not shown_s2.any():  # nobody drives without gas: these samples do not store the pedals
        return 1.0
    tick_s, problem = samples.time_ms[is_race] // TICK_MS, ""
    num_ticks = int(tick_s.max()) + 1
    for sign in (1.0, -1.0):
        held = events_to_controls(ghost.events, num_ticks=num_ticks, shift_ticks=lag_ticks, pedal_sign=sign)
        held_s2 = held[tick_s, 1:] > PRESSED
        num_wrong, num_pressed = (held_s2 != shown_s2).sum(axis=0), (held_s2 | shown_s2).sum(axis=0)
        is_wrong = (num_wrong >= MIN_INFORMATIVE_SAMPLES) & (num_wrong > (1 - MIN_PEDALS_AGREEING) * num_pressed)
        if not is_wrong.any():
            return sign
        pedal = int(is_wrong.argmax())
        differ = f"{('gas', 'brake')[pedal]} differ in {num_wrong[pedal]} of {num_pressed[pedal]} samples"
        problem = problem or f"the inputs and the recorded {differ} in which either is pressed"
    raise MisalignedInputsError(problem, hint=_HINT)


def _agreement(ghost: Ghost, samples: Samples, vehicle: VehicleState) -> NDArray[np.bool_]:
    """Returns [S, L] True where a sample's steering matches the inputs at a lag; S samples between start and finish."""
    is_race = _in_race(ghost, samples)
    tick_s = samples.time_ms[is_race] // TICK_MS
    num_ticks = int(tick_s.max(initial=0)) - LAGS[0] + 1
    # Shifted by the largest lag, so that every requested row is in the table, including rows before 0.
    device = events_to_controls(ghost.events, num_ticks=num_ticks + LAGS[-1], shift_ticks=LAGS[-1])[:, 0]
    device_sl = device[tick_s[:, None] + LAGS[-1] - np.array(LAGS)[None, :]]
    limits = LIMITS if has_limits(ghost) else LIMITS[:1]
    steer_s11 = vehicle.steer[is_race][:, None, None]
    return np.asarray((np.abs(device_sl[:, :, None] * limits - steer_s11) <= TOLERANCE).any(axis=2), dtype=np.bool_)


def _in_race(ghost: Ghost, samples: Samples) -> NDArray[np.bool_]:
    """Returns [S] True for samples between the start and the finish, where the player is in control."""
    end_ms = samples.time_ms[-1] if ghost.race_time_ms is None else ghost.race_time_ms
    return (samples.time_ms > 0) & (samples.time_ms < end_ms)


def _limit_steering(
    controls: NDArray[np.float32], shift_ticks: int, ghost: Ghost, samples: Samples, vehicle: VehicleState
) -> None:
    """Scales the steering of [T, 3] controls in place by the limits of the action keys."""
    is_race = _in_race(ghost, samples)
    time_ms = samples.time_ms[is_race]
    row = time_ms // TICK_MS - 1  # a state reflects the previous tick
    is_known = (row >= 0) & (row < len(controls))
    stamp_ms = (row - shift_ticks) * TICK_MS
    steer = vehicle.steer[is_race]
    starts, limits = steer_limits(ghost, stamp_ms[is_known], controls[row[is_known], 0], steer[is_known])
    stamps_t = (np.arange(len(controls)) - shift_ticks) * TICK_MS
    controls[:, 0] *= limits[np.searchsorted(starts, stamps_t, side="right") - 1].astype(np.float32)


ACTION_KEYS = "ActionKeys"
"""Event whose value is a bit mask of the pressed action keys 1 to 5."""
LIMITS = np.array([1.0, 0.2, 0.4, 0.6, 0.8])
"""Possible fractions of the device's steering that reach the car; the first is the default."""


def has_limits(ghost: Ghost) -> bool:
    """True if an action key was pressed during the run."""
    return any(event.name == ACTION_KEYS and event.value for event in ghost.events)


def steer_limits(
    ghost: Ghost, time_ms: NDArray[np.int64], device: NDArray, steer: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Measures the steering limit between consecutive changes of the action keys.

    The game stores the steering of the device and the pressed action keys, not the resulting limit, which the player
    toggles among 20, 40, 60, 80 and 100 %. Measuring it needs no knowledge of how the game counts presses.

    Args:
        ghost: the ghost with the action keys.
        time_ms: [S] timestamp of the inputs that each sample shows.
        device: [S] steering of the device then, in [-1, 1].
        steer: [S] steering of the car.

    Returns:
        [P] timestamps, the first before all others, and [P] the limit from each on. An interval without informative
        samples keeps the limit of the previous one.
    """
    changes = sorted({event.time_ms for event in ghost.events if event.name == ACTION_KEYS})
    starts = np.array([np.iinfo(np.int64).min, *changes], dtype=np.int64)
    part = np.searchsorted(starts, time_ms, side="right") - 1
    agrees_sl = np.abs(device[:, None] * LIMITS[None, :] - steer[:, None]) <= TOLERANCE
    is_informative = agrees_sl.any(axis=1) & ~agrees_sl.all(axis=1)
    limits = np.ones(len(starts))
    for index in range(len(starts)):
        votes = agrees_sl[is_informative & (part == index)].sum(axis=0)
        limits[index] = LIMITS[votes.argmax()] if votes.any() else limits[max(0, index - 1)]
    return starts, limits
