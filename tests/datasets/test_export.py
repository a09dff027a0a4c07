"""Races as recordings: the way out and the way back in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.datasets.export import NoSuchRaceError, export_race, find_race, recording_of_race, write_race
from rulka.datasets.from_recordings import race_of_ghost
from rulka.datasets.races import Race
from rulka.errors import UserError
from rulka.input_script import read_script
from rulka.observation import CAR, NUM_CAR_FIELDS
from rulka.recordings import UnwritableError, encode_recording, events_to_controls, parse_recording
from rulka.recordings.controls import controls_to_events


def make_race(race_id: str = "driver-1-0001", *, period_ms: int = 50) -> Race:
    """Straight ahead at 20 m/s for 3.03 s, keys pressed at random."""
    rng = np.random.default_rng(0)
    time_ms = np.arange(0, 3001 + period_ms, period_ms)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"]] = np.stack([0 * time_ms, 0 * time_ms + 9, 0.02 * time_ms], axis=1)
    state[:, CAR["rotation"]] = np.eye(3).reshape(-1)
    state[:, CAR["velocity"]] = [0, 0, 20]
    state[:, CAR["has_contact"]], state[:, CAR["material"]], state[:, CAR["damper"]] = 1, 16, 0.05
    state[:, CAR["rpm"]] = 4380
    keys = rng.integers(0, 2, (61, 3)).repeat(5, axis=0)[:303]
    controls = np.stack([keys[:, 0] - rng.integers(0, 2, 61).repeat(5)[:303], keys[:, 1], keys[:, 2]], axis=1)
    return Race(
        race_id, "driver", "", "Nick", "map-a", 3030, True, (1500, 3030), 1, controls.astype(np.float32), time_ms, state
    )


def test_a_race_comes_back_from_its_recording() -> None:
    race = make_race()
    recording = parse_recording(encode_recording(recording_of_race(race)))
    assert (recording.map_uid, recording.header.race_time_ms, recording.notes) == ("map-a", 3030, ())
    back = race_of_ghost(recording.ghosts[0], "x", "map-a")
    assert (back.race_time_ms, back.checkpoint_times_ms, back.player) == (3030, (1500, 3030), "Nick")
    np.testing.assert_array_equal(back.controls, race.controls)
    np.testing.assert_array_equal(back.state_time_ms, np.arange(0, 3101, 100))
    fields = {"position": 1e-4, "rotation": 1e-3, "velocity": 0.02, "damper": 0.008, "rpm": 0.3, "material": 0}
    for name, tolerance in fields.items():
        expected = np.zeros(1) + race.state[:1, CAR[name]]
        if name != "position":
            np.testing.assert_allclose(back.state[:, CAR[name]], np.tile(expected, (32, 1)), atol=tolerance)
    np.testing.assert_allclose(back.state[:, CAR["position"]][:, 2], 0.02 * back.state_time_ms, atol=1e-3)


@pytest.mark.parametrize("kind", ["keys", "axes", "an axis for each pedal"])
def test_controls_come_back_from_their_events(kind: str) -> None:
    rng = np.random.default_rng(1)
    controls = rng.integers(-1, 2, (200, 3)).astype(np.float32)
    controls[:, 1:] = np.abs(controls[:, 1:])
    if kind != "keys":
        controls[:, 0] = np.rint(rng.uniform(-1, 1, 200) * 65536) / 65536
        pedal = np.rint(rng.uniform(-1, 1, 200) * 65536) / 65536
        controls[:, 1], controls[:, 2] = np.maximum(pedal, 0), np.maximum(-pedal, 0)
    if kind == "an axis for each pedal":
        controls[:, 1:] = np.rint(rng.uniform(0, 1, (200, 2)) * 65536) / 65536
    events = controls_to_events(controls, 2000)
    np.testing.assert_array_equal(events_to_controls(events, num_ticks=200, shift_ticks=0), controls)
    assert (events[0].name, events[-1].name) == ("_FakeIsRaceRunning", "_FakeFinishLine")
    assert any(event.name == "Steer" for event in events) == (kind != "keys")
    pedals = {"keys": "Accelerate", "axes": "Gas", "an axis for each pedal": "AccelerateReal"}
    assert {event.name for event in events} & set(pedals.values()) == {pedals[kind]}


@pytest.mark.parametrize("row", [(1.5, 0, 0), (0, -0.1, 0), (float("nan"), 0, 0)])
def test_controls_that_no_recording_holds(row: tuple[float, float, float]) -> None:
    with pytest.raises(UnwritableError):
        controls_to_events(np.array([row], np.float32), None)


def test_a_race_is_found_by_the_beginning_of_its_name() -> None:
    races = (make_race("driver-1-0001"), make_race("driver-1-0010"), make_race("driver-1-001"))
    assert find_race(races, "driver-1-0001").race_id == "driver-1-0001"
    assert find_race(races, "driver-1-001").race_id == "driver-1-001"
    with pytest.raises(NoSuchRaceError, match="more than one"):
        find_race(races, "driver")
    with pytest.raises(NoSuchRaceError, match="no race") as caught:
        find_race(races, "other")
    assert "driver-1-0010" in caught.value.hint


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    race = make_race()
    monkeypatch.setattr("rulka.datasets.export.load_races", lambda _: type("Set", (), {"races": (race,)}))
    out = tmp_path / "x.Replay.Gbx"
    assert export_race(tmp_path, "driver", out) is race
    with pytest.raises(UserError, match="exists"):
        export_race(tmp_path, "driver", out)
    with pytest.raises(UserError, match="cannot be written"):
        export_race(tmp_path, "driver", tmp_path / "nowhere" / "x.Gbx")


def test_an_unfinished_race_ends_with_its_last_state() -> None:
    race = replace(make_race(), race_time_ms=None, is_finished=False, checkpoint_times_ms=())
    ghost = parse_recording(encode_recording(recording_of_race(race))).ghosts[0]
    assert ghost.race_time_ms is None
    assert ghost.samples is not None
    assert ghost.samples.time_ms[-1] == 3100


def test_a_script_reads_back_to_the_inputs(tmp_path: Path) -> None:
    race = make_race()
    write_race(race, tmp_path / "race.txt")
    text = (tmp_path / "race.txt").read_text()
    assert text.startswith("# race: driver-1-0001")
    np.testing.assert_array_equal(read_script(text, race.num_ticks), race.controls)
    with pytest.raises(UserError, match="exists"):
        write_race(race, tmp_path / "race.txt")
