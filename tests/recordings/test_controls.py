import numpy as np
import pytest

from rulka.actions import action_table
from rulka.recordings.controls import TAP_TICKS, analog_value, events_to_controls, label_decisions, tapped_steer
from rulka.recordings.errors import ContradictoryTimeError
from rulka.recordings.model import InputEvent

TABLE = action_table(5)


def steer_at(events: list[tuple[int, str, int]], tick: int) -> float:
    controls = events_to_controls([InputEvent(*event) for event in events], num_ticks=100, shift_ticks=0)
    return float(controls[tick, 0])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (0, 0.0),
        (0xFF0000, 1.0),  # -65536 in 24 bits, negated: full right
        (0x010000, -1.0),
        (0xFF8000, 0.5),
        (0xAAFF0000, 1.0),  # the upper byte does not count
        (0x7FFFFF, -1.0),  # beyond full lock
    ],
)
def test_analog_values_by_hand(raw: int, expected: float) -> None:
    assert analog_value(raw) == pytest.approx(expected)


@pytest.mark.parametrize(("shift_ticks", "first"), [(0, 3), (1, 4), (2, 5)])
def test_when_an_event_shows(shift_ticks: int, first: int) -> None:
    """Stamped 30, it is visible in the state of 40 (row 4) with the usual shift of one tick."""
    controls = events_to_controls([InputEvent(30, "Accelerate", 1)], num_ticks=10, shift_ticks=shift_ticks)
    assert controls[:, 1].tolist() == [0.0] * first + [1.0] * (10 - first)


def test_stamps_between_ticks_show_at_the_next_tick() -> None:
    """United stores single milliseconds: 31 is seen at 40 without a shift."""
    controls = events_to_controls([InputEvent(31, "Brake", 1)], num_ticks=6, shift_ticks=0)
    assert controls[:, 2].tolist() == [0, 0, 0, 0, 1, 1]


def test_events_before_the_start_hold_from_the_start() -> None:
    assert steer_at([(-2000, "SteerLeft", 1)], 0) == -1
    assert steer_at([(-2000, "SteerLeft", 1), (-1000, "SteerLeft", 0)], 0) == 0


def test_keys_and_axis() -> None:
    axis = (0, "Steer", 0xFF8000)
    assert steer_at([axis], 5) == 0.5
    assert steer_at([axis, (10, "SteerLeft", 1)], 5) == -1
    assert steer_at([axis, (10, "SteerLeft", 1), (20, "SteerLeft", 0)], 5) == 0.5


def test_both_keys_the_later_one_counts() -> None:
    right, left = (0, "SteerRight", 1), (10, "SteerLeft", 1)
    assert steer_at([right, left], 5) == -1
    assert steer_at([right, left, (20, "SteerLeft", 0)], 5) == 1


def test_analog_gas() -> None:
    """The game stores full gas as the raw value that full left would be; the other side is the brake."""
    events = [InputEvent(0, "Gas", 0x010000), InputEvent(50, "Gas", 0xFF0000)]
    controls = events_to_controls(events, num_ticks=10, shift_ticks=0)
    assert controls[2].tolist() == [0, 1, 0]
    assert controls[7].tolist() == [0, 0, 1]


def test_a_flipped_axis() -> None:
    assert steer_at([(0, "_FakeDontInverseAxis", 1), (0, "Steer", 0xFF0000)], 5) == -1


def test_steering_of_the_2020_game() -> None:
    assert steer_at([(0, "SteerByte", 127)], 1) == 1
    assert steer_at([(0, "SteerByte", -128)], 1) == -1


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


def test_held_controls_equal_a_naive_twin(rng: np.random.Generator) -> None:
    """Playing the events tick by tick gives the same as looking them up."""
    names = ["Accelerate", "Brake", "SteerLeft", "SteerRight"]
    for _ in range(20):
        times = np.sort(rng.integers(-20, 100, 40)) * 10
        events = [InputEvent(int(t), str(rng.choice(names)), int(rng.integers(0, 2))) for t in times]
        found = events_to_controls(events, num_ticks=100, shift_ticks=1)
        for tick in range(0, 100, 7):
            down = dict.fromkeys(names, 0)
            last = 0
            for event in events:
                if event.time_ms <= 10 * tick - 10:
                    down[event.name] = event.value
                    if event.value and event.name.startswith("Steer"):
                        last = 1 if event.name == "SteerRight" else -1
            steer = down["SteerRight"] - down["SteerLeft"]
            if down["SteerRight"] and down["SteerLeft"]:
                steer = last
            assert found[tick].tolist() == [steer, down["Accelerate"], down["Brake"]]


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


def test_ties_go_to_the_action_held_first() -> None:
    controls = np.array([[0, 0, 1]] * 2 + [[0, 1, 0]] * 2 + [[1, 1, 0]], dtype=np.float32)
    majority = label_decisions(controls, TABLE, np.array([0]), 0.1).action
    assert majority.tolist() == [6]


def test_ticks_past_the_end_repeat_the_last_row() -> None:
    controls = np.array([[0, 1, 0], [0, 0, 1]], dtype=np.float32)
    shares, majority, by_tick = label_decisions(controls, TABLE, np.array([0, 1]), 0.1)
    np.testing.assert_allclose(shares[0, [0, 6]], [0.2, 0.8], atol=1e-7)
    assert majority.tolist() == [6, 6]
    assert by_tick.tolist() == [[0, 6, 6, 6, 6], [6, 6, 6, 6, 6]]


def test_the_dead_zone() -> None:
    """Five ticks of 0.4 make two of full steering, so that a key goes down in the fifth; inside the zone none does."""
    controls = np.array([[0.4, 1, 0]] * 5, dtype=np.float32)
    assert label_decisions(controls, TABLE, np.array([0]), 0.4).by_tick.tolist() == [[0, 0, 0, 0, 0]]
    assert label_decisions(controls, TABLE, np.array([0]), 0.39).by_tick.tolist() == [[0, 0, 0, 0, 2]]


def test_taps_by_hand() -> None:
    """Half steering to the right: in the fourth tick two of full steering are missing, and the key goes down.

    Six ticks later it would have given two too many, and six more later two are missing again.
    """
    keys = tapped_steer(np.full(20, 0.5, np.float32), 0.1)
    assert keys.tolist() == 3 * [0] + 6 * [1] + 6 * [0] + 5 * [1]
    np.testing.assert_array_equal(tapped_steer(np.full(20, -0.5, np.float32), 0.1), -keys)


def test_keys_stay_as_they_are_and_what_was_missing_is_forgotten_between() -> None:
    steer = np.array([0, 1, -1, -1, 0, 1, 0.5, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 1, -0.5], np.float32)
    assert tapped_steer(steer, 0.1).tolist() == [0, 1, -1, -1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_taps_are_down_for_the_share_of_the_steering(seed: int) -> None:
    """Whatever it does, the keys are never further from it than a tap; and they never steer the other way."""
    rng = np.random.default_rng(seed)
    steer = np.repeat(rng.uniform(0.05, 0.95, 60), 30).astype(np.float32)
    keys = tapped_steer(steer, 0.01)
    assert set(keys.tolist()) == {0.0, 1.0}
    assert np.abs(np.cumsum(steer - keys)).max() <= TAP_TICKS + 1e-3
    changes = np.flatnonzero(np.diff(keys))
    assert np.diff(changes).min() >= 2 * TAP_TICKS - 1, "a tap, or a pause, lasts 30 ms or more"
