"""Decisions that are taken several times in a row: as many decisions, to the bit, and one to whoever looks."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.actions import action_table
from rulka.params import reference_params
from rulka.simulator.physics import ALONG_BEFORE_ROW, TIME_BEFORE_ROW
from rulka.simulator.simulator import Simulator
from rulka.tracks.generate import generate_track

NUM_CARS = 7


@pytest.fixture(scope="module")
def track():
    return generate_track(**reference_params().track.model_dump() | {"length_m": 400.0, "difficulty": "hard"})


def simulator(track, repeats: int) -> Simulator:
    made = Simulator(track, NUM_CARS, reference_params().simulator, action_table(5, repeats=repeats))
    made.reset(np.ones(NUM_CARS, bool), np.linspace(0.0, 300.0, NUM_CARS), np.linspace(-5.0, 5.0, NUM_CARS), 0.2, 20.0)
    return made


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_repeated_decision_is_as_many(track, repeats: int) -> None:
    """Keys and the time that gears have been shifting included; who leaves the road in the middle stops there."""
    repeated, single = simulator(track, repeats), simulator(track, 1)
    for action in np.random.default_rng(1).integers(0, 12, (60, NUM_CARS)):
        before = single.along_m.copy(), single.time_ms.copy()
        repeated.step(action)
        for _ in range(repeats):
            single.step(action)
        assert repeated.save().tobytes() == single.save().tobytes()
        assert repeated.cars.tobytes() == single.cars.tobytes()
        assert repeated.previous_keys.tobytes() == single.previous_keys.tobytes()
        for row, values in zip((ALONG_BEFORE_ROW, TIME_BEFORE_ROW), before, strict=True):
            np.testing.assert_array_equal(repeated.view.progress[row], values)
    assert repeated.is_off_track.any()
    assert (repeated.time_ms[repeated.is_off_track] % (50 * repeats)).any()


def test_numbers_are_held_as_long(track) -> None:
    repeated, single = simulator(track, 2), simulator(track, 1)
    for controls in np.random.default_rng(2).uniform([-1, 0, 0], 1, (20, NUM_CARS, 3)).astype(np.float32):
        repeated.step_controls(controls)
        single.step_controls(controls)
        single.step_controls(controls)
    assert repeated.save().tobytes() == single.save().tobytes()
