"""Decisions of several actions, and decisions taken several times: the same physics, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.contracts.actions import FORWARD, ActionTable, Parts, action_table
from rulka.contracts.observation import float_slices, num_floats
from rulka.params import reference_params
from rulka.simulator.physics import ALONG_BEFORE_ROW, TIME_BEFORE_ROW
from rulka.simulator.simulator import Simulator, SimulatorError
from rulka.tracks.generate import generate_track

NUM_CARS = 7


@pytest.fixture(scope="module")
def track():
    return generate_track(**reference_params().track.model_dump() | {"length_m": 400.0, "difficulty": "hard"})


def simulator(track, ticks: int = 5, actions_per_decision: Parts = 1, repeats: int = 1) -> Simulator:
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


def test_actions_may_begin_at_any_offsets(track) -> None:
    """At 0, 10 and 30 ms of 50: held for 1, 2 and 2 ticks, against the same inputs in a chunk of five ticks."""
    uneven, ticks = simulator(track, actions_per_decision=(0, 10, 30)), simulator(track, actions_per_decision=5)
    chosen = np.random.default_rng(5).integers(0, 12, (40, NUM_CARS, 3))
    for block in chosen:
        uneven.step(block)
        ticks.step(block[:, [0, 1, 1, 2, 2]])
        np.testing.assert_array_equal(uneven.cars, ticks.cars)
    is_driving = ~uneven.is_finished & ~uneven.is_off_track
    assert is_driving.any()
    keys = ticks.previous_keys[is_driving][:, [0, 1, 3, 5, 6, 8, 10, 11, 13, 15, 16, 18, 20, 21, 23]]
    np.testing.assert_array_equal(uneven.previous_keys[is_driving], keys)


def test_offsets_of_equal_parts_are_the_same_table() -> None:
    table = action_table(6, (0, 10, 40), repeats=2)
    assert (table.ticks_per_action, table.actions_per_decision, table.parts) == ((1, 3, 2), 3, (0, 10, 40))
    assert (table.decision_ticks, table.duration_ms) == (6, 120)
    assert action_table(6, (0, 20, 40)) == action_table(6, 3)
    assert action_table(6, (0,)) == action_table(6)
    assert action_table(6, 3).held_ticks.tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="2 numbers for 3 actions"):
        ActionTable(table.controls, (1, 2), 3)


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ((), "begin at 0 ms"),
        ((10, 20), "begin at 0 ms"),
        ((0, 15), "be multiples of 10 ms, but 15 is not"),
        ((0, 20, 20), "increase, but 20 follows 20"),
        ((0, 30, 20), "increase, but 20 follows 30"),
        ((0, 50), "lie within the decision of 50 ms, but 50 does not"),
    ],
)
def test_wrong_offsets_are_refused(offsets: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=f"need to {says}"):
        action_table(5, offsets)


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
