"""Decisions of several actions, each held for some ticks: the same physics, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.actions import FORWARD, action_table
from rulka.observation import NUM_FLOATS, float_slices, num_floats
from rulka.params import reference_params
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.generate import generate_track

NUM_CARS, NUM_DECISIONS = 7, 120


@pytest.fixture(scope="module")
def track():
    return generate_track(**reference_params().track.model_dump() | {"length_m": 400.0, "difficulty": "hard"})


def simulator(track, ticks: int = 5, actions_per_decision: int = 1) -> Simulator:
    made = Simulator(track, NUM_CARS, reference_params().simulator, action_table(ticks, actions_per_decision))
    along = np.linspace(0.0, 300.0, NUM_CARS)
    made.reset(np.ones(NUM_CARS, bool), along, np.linspace(-5.0, 5.0, NUM_CARS), 0.2, 20.0)
    return made


def check_same(one: Simulator, other: Simulator) -> None:
    """All but the previous actions, of which they remember different numbers."""
    assert one._state.tobytes() == other._state.tobytes()
    for name in ("rows", "progress", "margin_m", "timing", "ended"):
        assert getattr(one.view, name).tobytes() == getattr(other.view, name).tobytes(), name


def test_a_block_of_equal_actions_is_one_action_held(track) -> None:
    held, blocks = simulator(track), simulator(track, actions_per_decision=5)
    for action in np.random.default_rng(1).integers(0, 12, (NUM_DECISIONS, NUM_CARS)):
        held.step(action)
        blocks.step(np.repeat(action[:, None], 5, axis=1))
        check_same(held, blocks)
        np.testing.assert_array_equal(blocks.previous_keys[:, -1], held.previous_keys[:, -1])
    assert held.is_off_track.any()


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


def test_previous_actions_of_blocks(track) -> None:
    blocks = simulator(track, actions_per_decision=5)
    keys = blocks.table.keys()
    floats = np.empty((NUM_CARS, num_floats(5)), np.float32)
    chosen = np.random.default_rng(3).integers(0, 12, (3, NUM_CARS, 5))
    for block in chosen:
        blocks.step(block)
    blocks.floats(floats)
    seen = floats[:, float_slices(5)["previous_actions"]].reshape(NUM_CARS, 25, 4)
    expected = np.concatenate([np.full((NUM_CARS, 10), FORWARD), np.concatenate(chosen, axis=1)], axis=1)
    np.testing.assert_array_equal(seen, keys[expected])


def test_all_other_floats_are_those_of_single_actions(track) -> None:
    assert (num_floats(1), num_floats(5)) == (NUM_FLOATS, 264) == (184, 264)
    held, blocks = simulator(track), simulator(track, actions_per_decision=5)
    action = np.random.default_rng(4).integers(0, 12, NUM_CARS)
    held.step(action)
    blocks.step(np.repeat(action[:, None], 5, axis=1))
    plain, wide = np.empty((NUM_CARS, 184), np.float32), np.empty((NUM_CARS, 264), np.float32)
    held.floats(plain)
    blocks.floats(wide)
    for name, part in float_slices(1).items():
        if name != "previous_actions":
            np.testing.assert_array_equal(plain[:, part], wide[:, float_slices(5)[name]], err_msg=name)


@pytest.mark.parametrize("actions", [np.zeros(NUM_CARS, int), np.zeros((NUM_CARS, 4), int), np.full((NUM_CARS, 5), 12)])
def test_wrong_blocks_are_refused_and_nothing_moves(track, actions) -> None:
    blocks = simulator(track, actions_per_decision=5)
    before = blocks.save()
    with pytest.raises(SimulatorError, match="actions must be"):
        blocks.step(actions)
    assert blocks.save().tobytes() == before.tobytes()


def test_analog_controls_are_of_single_actions(track) -> None:
    with pytest.raises(SimulatorError, match="one action for each"):
        simulator(track, actions_per_decision=5).step_controls(np.zeros((NUM_CARS, 3), np.float32))


@pytest.mark.parametrize(("ticks", "count"), [(5, 2), (5, 0), (4, 5)])
def test_ticks_are_shared_evenly(ticks: int, count: int) -> None:
    with pytest.raises(ValueError, match="evenly"):
        action_table(ticks, count)
