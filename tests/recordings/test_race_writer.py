"""Races come back from the recordings that are written of them."""

from __future__ import annotations

import numpy as np
import pytest

from rulka.datasets.from_recordings import race_of_ghost
from rulka.observation import CAR
from rulka.recordings.controls import events_to_controls
from rulka.recordings.reader import parse_recording
from tests.datasets.test_export import make_race
from tests.recordings.race_writer import controls_to_events, recording_of_race
from tests.recordings.writer import encode_recording


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
