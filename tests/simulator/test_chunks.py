"""Decisions of several actions, and decisions taken several times: the same physics, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.contracts.actions import FORWARD, action_table
from rulka.contracts.observation import float_slices, num_floats
from rulka.params import reference_params
from rulka.simulator.physics import ALONG_BEFORE_ROW, TIME_BEFORE_ROW
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.generate import generate_track

NUM_CARS = 7


@pytest.fixture(scope="module")
def track():
    return generate_track(**reference_params().track.model_dump() | {"length_m": 400.0, "difficulty": "hard"})


def simulator(track, ticks: int = 5, actions_per_decision: int = 1, repeats: int = 1) -> Simulator:
    table = action_table(ticks, actions_per_decision, repeats=repeats)
    made = Simulator(track, NUM_CARS, reference_params().simulator, table)
    made.reset(np.ones(NUM_CARS, bool), np.linspace(0.0, 300.0, NUM_CARS), np.linspace(-5.0, 5.0, NUM_CARS), 0.2, 20.0)
    return made


def test_every_action_of_a_block_acts_at_its_tick(track) -> None:
    """A chunk of five ticks against the same inputs in decisions of one tick, on which cars see the same road."""
    blocks, ticks = simulator(track, actions_per_decision=5), simulator(track, ticks=1)
    chosen = np.random.default_rng(2).integers(0, 12, (40, NUM_CARS, 5))
    for block in chosen:
        blocks.step(block)
        for k in range(5):
            ticks.step(block[:, k])
        is_driving = ~blocks.is_finished & ~blocks.is_off_track
        np.testing.assert_array_equal(blocks.time_ms, ticks.time_ms)
        np.testing.assert_allclose(blocks.cars[is_driving, :18], ticks.cars[is_driving, :18], atol=1e-4)
    assert is_driving.any()
    assert not np.allclose(blocks.cars[is_driving, :3], simulator(track).cars[is_driving, :3])


def test_floats_of_blocks_differ_in_the_previous_actions_alone(track) -> None:
    held, blocks = simulator(track), simulator(track, actions_per_decision=5)
    chosen = np.random.default_rng(3).integers(0, 12, (3, NUM_CARS, 1)).repeat(5, axis=2)
    for block in chosen:
        blocks.step(block)
        held.step(block[:, 0])
    plain, wide = np.empty((NUM_CARS, 184), np.float32), np.empty((NUM_CARS, num_floats(5)), np.float32)
    held.floats(plain)
    blocks.floats(wide)
    for name, part in float_slices(1).items():
        if name != "previous_actions":
            np.testing.assert_array_equal(plain[:, part], wide[:, float_slices(5)[name]], err_msg=name)
    seen = wide[:, float_slices(5)["previous_actions"]].reshape(NUM_CARS, 25, 4)
    expected = np.concatenate([np.full((NUM_CARS, 10), FORWARD), np.concatenate(chosen, axis=1)], axis=1)
    np.testing.assert_array_equal(seen, blocks.table.keys()[expected])


def test_a_repeated_decision_is_as_many(track) -> None:
    """Keys and the time that gears have been shifting included; who leaves the road in the middle stops there."""
    repeated, single = simulator(track, repeats=3), simulator(track)
    for action in np.random.default_rng(1).integers(0, 12, (60, NUM_CARS)):
        before = single.along_m.copy(), single.time_ms.copy()
        repeated.step(action)
        for _ in range(3):
            single.step(action)
        assert repeated.save().tobytes() == single.save().tobytes()
        assert repeated.cars.tobytes() == single.cars.tobytes()
        for row, values in zip((ALONG_BEFORE_ROW, TIME_BEFORE_ROW), before, strict=True):
            np.testing.assert_array_equal(repeated.view.progress[row], values)
    assert repeated.is_off_track.any()
    assert (repeated.time_ms[repeated.is_off_track] % 150).any()


def test_wrong_blocks_are_refused_and_nothing_moves(track) -> None:
    blocks = simulator(track, actions_per_decision=5)
    before = blocks.save()
    for wrong in (np.zeros(NUM_CARS, int), np.zeros((NUM_CARS, 4), int), np.full((NUM_CARS, 5), 12)):
        with pytest.raises(SimulatorError, match="actions must be"):
            blocks.step(wrong)
    for few in (np.zeros((NUM_CARS, 3), np.float32), np.full((NUM_CARS, 5, 3), np.nan)):
        with pytest.raises(SimulatorError, match=f"controls must be {NUM_CARS} x 5 rows"):
            blocks.step_controls(few)
    assert blocks.save().tobytes() == before.tobytes()
    for ticks, count in ((5, 2), (5, 0), (4, 5)):
        with pytest.raises(ValueError, match="evenly"):
            action_table(ticks, count)
