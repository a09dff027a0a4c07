"""Inputs lined up with the steering that samples hold: by hand, on made ghosts, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rulka.recordings.alignment import (
    ACTION_KEYS,
    LAGS,
    POSSIBLE_LAGS,
    device_of,
    inputs_to_controls,
    measure_lag,
    measure_pedal_sign,
)
from rulka.recordings.controls import events_to_controls
from rulka.recordings.errors import MisalignedInputsError
from rulka.recordings.model import Ghost, InputEvent, Samples
from tests.recordings.forge import samples_at

NUM_TICKS = 3000


def keys(rng: np.random.Generator, num_presses: int) -> tuple[InputEvent, ...]:
    """Left or right, held for a while, at random times."""
    at = np.sort(rng.choice(np.arange(10, NUM_TICKS - 30), 2 * num_presses, replace=False)) * 10
    events = [InputEvent(0, "Accelerate", 1)]
    for press, release in at.reshape(-1, 2).tolist():
        name = str(rng.choice(["SteerLeft", "SteerRight"]))
        events += [InputEvent(press, name, 1), InputEvent(release, name, 0)]
    return tuple(events)


def samples_of(steer: np.ndarray, period_ms: int = 100) -> Samples:
    """Samples that hold [T] the steering of every tick, rounded as the game rounds it."""
    time_ms = np.arange(0, 10 * len(steer), period_ms, dtype=np.int64)
    shown = (np.rint((steer[time_ms // 10] + 1) * 127.5) / 127.5 - 1).astype(np.float32)
    still = np.zeros((len(time_ms), 3), np.float32)
    return samples_at(time_ms, still, still, shown)


def ghost_of(events: tuple[InputEvent, ...], lag: int, program: str = "TmForever.2.11.26") -> Ghost:
    steer = events_to_controls(events, num_ticks=NUM_TICKS, shift_ticks=lag)[:, 0]
    return Ghost(events=events, samples=samples_of(steer), game_version=program, race_time_ms=10 * NUM_TICKS - 200)


def test_the_lag_is_measured_whatever_the_program(rng: np.random.Generator) -> None:
    """The state at 10 (t + 1) shows what is held in row t, so that rows are the same for games of any lag."""
    programs = ["TmForever.2.11.26", "ManiaPlanet date=2019", "a game that nobody knows"]
    for lag, program in product(POSSIBLE_LAGS, programs):
        events = keys(rng, 120)
        ghost = ghost_of(events, lag, program)
        assert measure_lag(ghost) == (lag, True)
        felt = events_to_controls(events, num_ticks=NUM_TICKS, shift_ticks=lag)
        np.testing.assert_array_equal(inputs_to_controls(ghost, NUM_TICKS - 1), felt[1:])


def test_without_evidence_the_lag_is_that_of_the_game() -> None:
    """Steering once, for a second, leaves every lag within ten ticks of the samples possible."""
    lags = {
        "": 1,
        "TmForever.2.11.26": 1,
        "ManiaPlanet.3.3.0": 1,
        "ManiaPlanet date=2019-11-19_18_50 Svn=98046": 0,
        "TrackmaniaTurbo.3.3.0": 0,
        "Trackmania date=2022-04-14_19_00": 1,
    }
    events = (InputEvent(150, "SteerLeft", 1), InputEvent(1150, "SteerLeft", 0))
    for program, lag in lags.items():
        for ghost in (ghost_of(events, lag, program), Ghost(events=events, game_version=program)):
            assert measure_lag(ghost) == (lag, False)


def test_a_few_wrong_samples_do_not_move_the_lag(rng: np.random.Generator) -> None:
    ghost = ghost_of(keys(rng, 120), 1)
    assert ghost.samples is not None
    assert ghost.samples.vehicle is not None
    ghost.samples.vehicle.steer[5:200:20] = 0.5
    assert measure_lag(ghost).ticks == 1


def test_a_lag_that_no_game_has_is_refused(rng: np.random.Generator) -> None:
    for lag in (LAGS[0], -1, POSSIBLE_LAGS[-1] + 1, LAGS[-1]):
        with pytest.raises(MisalignedInputsError, match=f"{lag} ticks before") as caught:
            inputs_to_controls(ghost_of(keys(rng, 200), lag), 10)
        assert caught.value.hint


def test_inputs_of_another_run_are_refused(rng: np.random.Generator) -> None:
    ghost = ghost_of(keys(rng, 120), 1)
    ghost.events = keys(rng, 120)
    with pytest.raises(MisalignedInputsError, match="agree with the recorded steering in"):
        measure_lag(ghost)
    ghost.events = (InputEvent(0, "Accelerate", 1),)
    with pytest.raises(MisalignedInputsError, match="agree with the recorded steering in 0 of"):
        measure_lag(ghost)


def test_devices() -> None:
    rows = (
        ("keyboard", [("Accelerate", 1), ("SteerLeft", 1)]),
        ("analog", [("Accelerate", 1), ("Steer", 5000)]),
        ("analog", [("Gas", 65536)]),
        ("analog", [("AccelerateReal", 65536)]),
        ("keyboard", [("SteerByte", -127), ("SteerByte", 0), ("SteerByte", 127), ("Brake", 1)]),
        ("analog", [("SteerByte", -127), ("SteerByte", -64)]),
    )
    for device, events in rows:
        assert device_of(Ghost(events=tuple(InputEvent(0, name, value) for name, value in events))) == device


def test_action_keys_limit_the_steering(rng: np.random.Generator) -> None:
    """Key 3 is toggled on at 6 s and off at 15 s, key 4 on at 21 s: full lock is 60 %, then 100 %, then 80 %."""
    pressed = [(6000, 4), (6080, 0), (15000, 4), (15120, 0), (21000, 8), (21050, 0)]
    events = (*keys(rng, 250), *(InputEvent(time_ms, ACTION_KEYS, value) for time_ms, value in pressed))
    felt = events_to_controls(events, num_ticks=NUM_TICKS, shift_ticks=1)[:, 0]
    tick = np.arange(NUM_TICKS) - 1
    felt *= np.select([tick < 600, tick < 1500, tick < 2100], [1.0, 0.6, 1.0], 0.8).astype(np.float32)
    # The 2020 game samples twice as often; each part between two key events must be shown by a sample to be measured.
    ghost = Ghost(events=events, samples=samples_of(felt, period_ms=50), race_time_ms=10 * NUM_TICKS - 200)
    assert measure_lag(ghost).ticks == 1
    found = inputs_to_controls(ghost, NUM_TICKS - 1)[:, 0]
    is_apart = np.abs(found - felt[1:]) > 1e-6
    # The few ticks between a press and its release hold a sample or two, which may see no steering.
    near = np.array([600, 608, 1500, 1512, 2100, 2105])
    assert (np.abs(np.flatnonzero(is_apart)[:, None] - near[None, :]).min(axis=1) <= 12).all()
    assert np.abs(found[700:1400]).max() == pytest.approx(0.6)
    assert np.abs(found[2200:2900]).max() == pytest.approx(0.8)
    assert np.abs(found[1600:2000]).max() == 1.0


FULL, OTHER = 0x010000, 0xFF0000
"""Raw analog values: of full gas or brake as the game stores them, and the same with the other sign."""


def pedals_of(events: list[tuple[int, str, int]], gas: float, brake: float) -> Ghost:
    """A race with these inputs from its start on, whose samples show the pedals."""
    samples = samples_of(np.zeros(1000, np.float32))
    assert samples.vehicle is not None
    shown = {"gas": np.full(100, gas, np.float32), "brake": np.full(100, brake, np.float32)}
    samples = replace(samples, vehicle=replace(samples.vehicle, **shown))
    return Ghost(events=tuple(InputEvent(*event) for event in events), samples=samples, race_time_ms=9800)


MARKER = (0, "_FakeDontInverseAxis", 0x80)


@pytest.mark.parametrize("marker", [[], [MARKER]])
@pytest.mark.parametrize(("name", "gas", "brake"), [("Gas", 1, 0), ("AccelerateReal", 1, 0), ("BrakeReal", 0, 1)])
def test_the_samples_decide_the_sign_of_pedals(
    marker: list[tuple[int, str, int]], name: str, gas: float, brake: float
) -> None:
    """The marker belongs to steering alone: without samples, a pedal is read as every game at hand stores it."""
    for raw, sign in ((FULL, 1.0), (OTHER, -1.0)):
        ghost = pedals_of([*marker, (0, name, raw)], gas, brake)
        assert measure_pedal_sign(ghost, 1) == sign
        assert inputs_to_controls(ghost, 900)[50].tolist() == [0, gas, brake]
    untold = replace(ghost, events=(*map(InputEvent._make, marker), InputEvent(0, name, FULL)), samples=None)
    assert inputs_to_controls(untold, 900)[50].tolist() == [0, gas, brake]


@pytest.mark.parametrize(
    ("events", "gas", "brake", "pedal"),
    [
        ([(0, "Accelerate", 1)], 0, 1, "gas"),
        ([(0, "Accelerate", 1), (0, "Brake", 1)], 1, 0, "brake"),
        ([(0, "SteerLeft", 0)], 1, 0, "gas"),
        ([(0, "Gas", 0x001000)], 1, 0, "gas"),
    ],
)
def test_pedals_of_another_run_are_refused(
    events: list[tuple[int, str, int]], gas: float, brake: float, pedal: str
) -> None:
    with pytest.raises(MisalignedInputsError, match=f"recorded {pedal} differ in 97 of 97 samples") as caught:
        inputs_to_controls(pedals_of(events, gas, brake), 900)
    assert caught.value.hint


def test_samples_without_pedals_judge_none() -> None:
    assert inputs_to_controls(pedals_of([(0, "Accelerate", 1)], 0, 0), 900)[50].tolist() == [0, 1, 0]
