"""Takeovers: what their files hold, who reads them, and which frames are labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rulka.contracts.actions import action_table
from rulka.contracts.observation import FLOATS
from rulka.datasets.capture import CaptureSettings, capture_race
from rulka.datasets.drives import DriveFileError, Recorder, read_drive, recorded_controls, save_drive
from rulka.datasets.formats.races import Race
from rulka.datasets.from_recordings import NoUsableRecordingError, find_recordings, read_race_dataset
from rulka.datasets.params import SelectParams
from rulka.datasets.takeovers import captured_takeovers, find_takeovers
from rulka.params import Params
from rulka.simulator.render import camera_array
from rulka.simulator.scene import bake_scene
from rulka.video.sources import gather, sort_sources
from tests.conftest import straight_track

SIMULATOR = Params().simulator
GAS, BRAKE = recorded_controls(0.0, 1.0, 0.0), recorded_controls(0.0, 0.0, 1.0)
SETTINGS = CaptureSettings(24, 32, action_table(5), 0.0, camera_array(SIMULATOR.camera))


def takeover(stretches: list[tuple[int, int]], ticks: int) -> Race:
    """Full gas by an agent, except in the stretches of ticks, in which a person brakes."""
    recorder = Recorder(straight_track(), SIMULATOR)
    for tick in range(ticks):
        by_person = any(first <= tick < end for first, end in stretches)
        recorder.tick(BRAKE if by_person else GAS, by_person=by_person)
    return recorder.race("Ann")


@pytest.fixture(scope="module")
def race() -> Race:
    """The person drives ticks 2 to 17, which are whole decisions from 5 to 15, 100 to 110, and all from 150 on."""
    return takeover([(2, 17), (100, 110), (150, 163)], 163)


def test_a_takeover_comes_back_and_is_no_recording(tmp_path: Path, race: Race) -> None:
    path = save_drive(tmp_path, race, straight_track(), SIMULATOR)
    again, _ = read_drive(path)
    assert again.source == race.source == "takeover"
    for name in Race.__dataclass_fields__:
        assert np.array_equal(getattr(again, name), getattr(race, name)), name
    assert find_takeovers(tmp_path) == [path]
    assert gather(sort_sources([path]), Params(), None, 1).race.duration_ms == 1600
    with pytest.raises(NoUsableRecordingError, match="an agent drove part of it") as caught:
        read_race_dataset(tmp_path, find_recordings(tmp_path, with_drives=True), None, SelectParams(), lambda: None)
    assert "Move it to data/takeovers." in str(caught.value)


def test_a_file_that_does_not_say_who_drove_each_tick_is_refused(tmp_path: Path, race: Race) -> None:
    path = save_drive(tmp_path, race, straight_track(), SIMULATOR)
    with np.load(path) as stored:
        fields = dict(stored)
    np.savez(path, allow_pickle=False, **fields | {"by_person": fields["by_person"][1:]})
    with pytest.raises(DriveFileError, match="says of 162 ticks who drove, but has 163"):
        read_drive(path)


def test_whole_decisions_of_the_person_are_labels_with_what_led_to_them(tmp_path: Path, race: Race) -> None:
    path = save_drive(tmp_path, race, straight_track(), SIMULATOR)
    every = capture_race(race, straight_track(), bake_scene(straight_track()), SETTINGS)
    assert len(every.image) == 33
    found = list(captured_takeovers([path], SETTINGS, 3))
    # Five previous actions lead to a stretch, or as many as there were.
    assert [(part.race_id.rpartition("-")[2], before, len(part.image)) for part, before in found] == [
        ("1", 1, 3),
        ("20", 5, 7),
        ("30", 5, 7),
    ]
    for (part, before), first in zip(found, (1, 20, 30), strict=True):
        rows = slice(first - before, first - before + len(part.image))
        np.testing.assert_array_equal(part.image, every.image[rows])
        np.testing.assert_array_equal(part.floats, every.floats[rows])
        assert part.controls[before:].tolist() == [[0.0, 0.0, 1.0]] * (len(part.image) - before)
        assert part.time_ms[before] == 50 * first
    last_keys = found[1][0].floats[5, FLOATS["previous_actions"]].reshape(5, 4)
    assert last_keys.tolist() == 5 * [[1.0, 0.0, 0.0, 0.0]], "the agent's gas"
    assert len(list(captured_takeovers([path], SETTINGS, 9))[1][0].image) == 10, "eight frames of a stack before it"


def test_a_hand_on_the_key_for_less_than_a_decision_teaches_nothing(tmp_path: Path) -> None:
    path = save_drive(tmp_path, takeover([(41, 49)], 100), straight_track(), SIMULATOR)
    assert list(captured_takeovers([path], SETTINGS, 1)) == []
