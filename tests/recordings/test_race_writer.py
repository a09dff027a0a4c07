"""Races come back from the recordings that are written of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rulka.datasets.from_recordings import race_of_ghost
from rulka.observation import CAR
from rulka.recordings.reader import read_recording
from tests.datasets.test_export import make_race
from tests.recordings.race_writer import write_race


def test_a_race_comes_back_from_its_recording(tmp_path: Path) -> None:
    race = make_race()
    write_race(tmp_path / "a.Replay.Gbx", race)
    recording = read_recording(tmp_path / "a.Replay.Gbx")
    assert (recording.map_uid, recording.header.race_time_ms, recording.notes) == ("map-a", 3030, ())
    back = race_of_ghost(recording.ghosts[0], "x", "map-a")
    assert (back.race_time_ms, back.checkpoint_times_ms, back.player) == (3030, (1500, 3030), "Nick")
    np.testing.assert_array_equal(back.controls, race.controls)
    np.testing.assert_array_equal(back.state_time_ms, np.arange(0, 3101, 100))
    fields = {"rotation": 1e-3, "velocity": 0.02, "damper": 0.008, "rpm": 0.3, "material": 0}
    for name, tolerance in fields.items():
        np.testing.assert_allclose(
            back.state[:, CAR[name]], np.tile(race.state[:1, CAR[name]], (32, 1)), atol=tolerance
        )
    np.testing.assert_allclose(back.state[:, CAR["position"]][:, 2], 0.02 * back.state_time_ms, atol=1e-3)
