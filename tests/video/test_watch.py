"""Recordings, agents and stored races in one picture."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from rulka.evaluation.results import RaceResult
from rulka.machine.errors import UserError
from rulka.params import Params, reference_params
from rulka.video.hud import HudTexts
from rulka.video.race_video import VideoRace, race_frames
from rulka.video.show import show_races
from rulka.video.sources import LEFT_TO_RIGHT, OtherMapError, gather, recorded_races, sort_sources

RECORDINGS = Path(os.environ.get("RULKA_RECORDINGS", "../shared/recordings"))
needs_recordings = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no real recordings here")
B13 = ("TMNF_B13_Obstacle_a_a_00_24_93.Replay.Gbx", "TMNF_B13_Obstacle_Rollin_00_24_94.Replay.Gbx")
A3 = "TMU_StadiumA3_00_09_69.Replay.Gbx"


@pytest.fixture
def small() -> Params:
    """The reference parameters with a small, slow video."""
    params = reference_params()
    video = {"video_width": 320, "video_height": 180, "video_fps": 2}
    return params.model_copy(update={"evaluate": params.evaluate.model_copy(update=video)})


def test_ghosts_are_seen_and_the_own_car_through_them(make_race: Callable[..., RaceResult], small: Params) -> None:
    """A ghost at the very place of the own car changes the picture there, but less than if it hid the car."""
    own = make_race(20)
    settings = (small.simulator.camera, small.observation, small.evaluate)
    alone = next(race_frames(VideoRace(own, (), HudTexts("", "", "")), *settings)).astype(int)
    beside = make_race(20)
    beside.cars[:, 0] += 2.5
    together = next(race_frames(VideoRace(own, (beside,), HudTexts("", "", "")), *settings)).astype(int)
    changed = np.abs(together - alone).max(axis=2) > 8
    assert 50 < changed.sum() < 0.2 * changed.size


@needs_recordings
def test_recordings_of_one_map_share_a_track_and_of_two_are_refused() -> None:
    track, races = recorded_races([RECORDINGS / name for name in B13])
    assert [race.time_ms for _, race in races] == [24930, 24940]
    assert 2300 < track.length_m < 2500
    assert all(race.is_finished and race.gate_times_ms[-1] == race.time_ms for _, race in races)
    assert races[0][1].controls[:, 1].max() == 1.0  # somebody pressed the gas
    with pytest.raises(OtherMapError, match="2 maps"):
        recorded_races([RECORDINGS / B13[0], RECORDINGS / A3])


@needs_recordings
def test_a_recording_becomes_a_video(tmp_path: Path, small: Params) -> None:
    out = tmp_path / "race.mp4"
    said = show_races([RECORDINGS / A3], small, track=None, num_races=1, out=out)
    assert "9.69 s" in said
    assert "1 ghost" in said, "the shipped driver"
    assert said.isprintable(), "marks of direction are for pictures"
    with av.open(str(out)) as video:
        assert sum(1 for _ in video.decode(video=0)) == round((0.6 + 9.69 + 1.6) * 2)


def test_the_lap_that_comes_with_a_campaign_track(small: Params) -> None:
    shown = gather(sort_sources([Path("copper-oval")]), small, None, 1)
    assert shown.race.track.name == "Copper Oval"
    assert shown.race.is_finished
    assert shown.texts.title.startswith(f"{LEFT_TO_RIGHT}Reference lap")


@pytest.mark.parametrize(("sources", "message"), [((), "nothing is named"), ((Path("runs/none"),), "none is nothing")])
def test_what_is_missing_is_said(tmp_path: Path, small: Params, sources: tuple[Path, ...], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        show_races(sources, small, track=None, num_races=1, out=tmp_path / "race.mp4")
    assert "runs/train" in refused.value.hint
