import numpy as np
import pytest
import torch

from rulka.contracts.actions import PRESSED, action_table
from rulka.pretraining.cloning import keys_of_controls
from rulka.recordings.controls import analog_value, events_to_controls, label_decisions, steer_to_key_taps
from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.model import InputEvent
from rulka.simulator.physics import NUM_COMMANDS, command_cars

TABLE = action_table(5)


def steer_at(events: list[tuple[int, str, int]], tick: int) -> float:
    controls = events_to_controls([InputEvent(*event) for event in events], num_ticks=100, shift_ticks=0)
    return float(controls[tick, 0])


def test_analog_values_by_hand() -> None:
    """Full right is -65536 in 24 bits, negated; the upper byte does not count; beyond full lock is full lock."""
    values = {0: 0.0, 0xFF0000: 1.0, 0x010000: -1.0, 0xFF8000: 0.5, 0xAAFF0000: 1.0, 0x7FFFFF: -1.0}
    assert {raw: analog_value(raw) for raw in values} == pytest.approx(values)


def test_when_an_event_shows() -> None:
    """Stamped 30, it is visible in the state of 40 (row 4) with the usual shift of one tick; 31 a tick later."""
    for stamp, shift_ticks, first in ((30, 0, 3), (30, 1, 4), (30, 2, 5), (31, 0, 4), (-2000, 0, 0)):
        events = [InputEvent(stamp, "Accelerate", 1)]
        controls = events_to_controls(events, num_ticks=10, shift_ticks=shift_ticks)
        assert controls[:, 1].tolist() == [0.0] * first + [1.0] * (10 - first)


def test_what_events_amount_to() -> None:
    """A key outweighs an axis; of both keys the later one counts; a flipped axis; steering of the 2020 game."""
    axis, left, right = (0, "Steer", 0xFF8000), (10, "SteerLeft", 1), (0, "SteerRight", 1)
    released = (20, "SteerLeft", 0)
    for events, expected in (
        ([axis], 0.5),
        ([axis, left], -1),
        ([axis, left, released], 0.5),
        ([right, left], -1),
        ([right, left, released], 1),
        ([(0, "_FakeDontInverseAxis", 1), (0, "Steer", 0xFF0000)], -1),
        ([(0, "SteerByte", 127)], 1),
        ([(0, "SteerByte", -128)], -1),
    ):
        assert steer_at(events, 5) == expected, events
    # The game stores full gas as the raw value that full left would be; the other side is the brake.
    events = [InputEvent(0, "Gas", 0x010000), InputEvent(50, "Gas", 0xFF0000)]
    assert events_to_controls(events, num_ticks=10, shift_ticks=0)[[2, 7]].tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_pedal_becomes_a_key_at_the_threshold_of_the_game() -> None:
    """0x4E00 of 0x10000, in labels, in what a simulated car remembers as its keys and in what the clone is fed."""
    assert pytest.approx(0.3047, abs=1e-4) == PRESSED
    commands = np.empty((1, NUM_COMMANDS), np.float32)
    for pedal, is_pressed in ((0.3, False), (0.31, True), (0.5, True)):
        controls = np.array([[0.0, pedal, pedal]], np.float32)
        action = TABLE.index_of(controls[:, 1], controls[:, 2], controls[:, 0], 0.0)
        assert TABLE.keys()[action][0, :2].tolist() == 2 * [is_pressed]
        command_cars(controls, commands)
        assert commands[0, 3:5].tolist() == 2 * [is_pressed]
        assert keys_of_controls(torch.from_numpy(controls))[0, :2].tolist() == 2 * [is_pressed]


def test_recordings_of_the_competition_patch() -> None:
    """Marker 2: of the repeated sub-tick stamps only certain phases count, moved to the next whole tick."""
    events = [(0, "_FakeIsRaceRunning", 2), (41, "SteerRight", 1), (55, "SteerRight", 0), (62, "SteerRight", 0)]
    assert [steer_at(events, tick) for tick in (4, 5, 6, 7)] == [0, 1, 1, 0]
    plain = [(0, "_FakeIsRaceRunning", 1), *events[1:]]
    assert [steer_at(plain, tick) for tick in (4, 5, 6, 7)] == [0, 1, 0, 0]


def test_no_race_has_more_ticks_than_three_hours() -> None:
    assert events_to_controls((), num_ticks=1_080_000, shift_ticks=0).shape == (1_080_000, 3)
    with pytest.raises(ContradictoryTimeError, match="214748364 ticks"):
        events_to_controls((), num_ticks=(2**31 - 1) // 10, shift_ticks=0)


def test_label_shares_by_hand() -> None:
    """Two ticks forward, three forward and left; then five coasting to the right."""
    controls = np.array([[0, 1, 0]] * 2 + [[-1, 1, 0]] * 3 + [[1, 0, 0]] * 5, dtype=np.float32)
    shares, majority, by_tick = label_decisions(controls, TABLE, np.array([0, 5, 1]), 0.1)
    expected = np.zeros((3, 12))
    expected[0, [0, 1]] = 0.4, 0.6
    expected[1, 5] = 1.0
    expected[2, [0, 1, 5]] = 0.2, 0.6, 0.2
    np.testing.assert_allclose(shares, expected, atol=1e-7)
    assert majority.tolist() == [1, 5, 1]
    assert by_tick.tolist() == [[0, 0, 1, 1, 1], [5, 5, 5, 5, 5], [0, 1, 1, 1, 5]]


def test_ties_go_to_the_action_held_first_and_ticks_past_the_end_repeat_the_last() -> None:
    controls = np.array([[0, 0, 1]] * 2 + [[0, 1, 0]] * 2 + [[1, 1, 0]], dtype=np.float32)
    assert label_decisions(controls, TABLE, np.array([0]), 0.1).action.tolist() == [6]
    by_tick = label_decisions(controls[1:3], TABLE, np.array([0, 1]), 0.1).by_tick
    assert by_tick.tolist() == [[6, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_the_dead_zone() -> None:
    """Five ticks of 0.4 make two of full steering, so that a key goes down in the fifth; inside the zone none does."""
    controls = np.array([[0.4, 1, 0]] * 5, dtype=np.float32)
    assert label_decisions(controls, TABLE, np.array([0]), 0.4).by_tick.tolist() == [[0, 0, 0, 0, 0]]
    assert label_decisions(controls, TABLE, np.array([0]), 0.39).by_tick.tolist() == [[0, 0, 0, 0, 2]]


def test_taps_by_hand() -> None:
    """Half steering to the right: in the fourth tick two of full steering are missing, and the key goes down.

    Six ticks later it would have given two too many, and six more later two are missing again.
    """
    keys = steer_to_key_taps(np.full(20, 0.5, np.float32), 0.1)
    assert keys.tolist() == 3 * [0] + 6 * [1] + 6 * [0] + 5 * [1]
    np.testing.assert_array_equal(steer_to_key_taps(np.full(20, -0.5, np.float32), 0.1), -keys)


def test_keys_stay_as_they_are_and_what_was_missing_is_forgotten_between() -> None:
    steer = np.array([0, 1, -1, -1, 0, 1, 0.5, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 1, -0.5], np.float32)
    assert steer_to_key_taps(steer, 0.1).tolist() == [0, 1, -1, -1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0]
