"""Stage `capture`: every race, in an order that never changes, whatever the number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rulka.datasets.frames import FrameDataset, read_index
from rulka.datasets.races import load_races
from rulka.errors import UserError
from rulka.params import ActionParams, CaptureParams, TrackParams, read_params
from tasks.capture import capture
from tasks.races import races
from tests.conftest import sees

PARAMS = read_params()
OBSERVATION, ACTIONS = sees(64, 64), ActionParams(ticks_per_action=5)
TRACK = TrackParams(seed=3, length_m=200.0, width_m=16.0, max_slope=0.1, gate_spacing_m=100.0, difficulty="medium")


@pytest.fixture(scope="module")
def races_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "races"
    few = PARAMS.races.model_copy(update={"num_demonstrations": 4, "reference_decisions": 0})
    races(ACTIONS, PARAMS.simulator, TRACK, few, PARAMS.race_end, recordings_dir=folder / "none", out_dir=folder)
    return folder


def params(**changes: object) -> CaptureParams:
    values = {
        "backend": "simulator",
        "steer_dead_zone": 0.0153,
        "shard_frames": 300,
        "num_workers": 1,
        "validation_fraction": 0.3,
    }
    return CaptureParams.model_validate(values | changes)


def run(races_dir: Path, out_dir: Path, **changes: object) -> None:
    capture(OBSERVATION, ACTIONS, PARAMS.simulator, params(**changes), races_dir=races_dir, out_dir=out_dir)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_race_is_captured_to_its_end(races_dir: Path, tmp_path: Path) -> None:
    run(races_dir, tmp_path / "frames")
    dataset = load_races(races_dir)
    captured = {race.race_id: race.num_frames for race in read_index(tmp_path / "frames").races}
    assert captured == {race.race_id: -(-race.duration_ms // 50) for race in dataset.races}
    for split in ("train", "validation"):
        frames = FrameDataset(tmp_path / "frames", split)
        assert len(frames) > 0
        for race in frames.races:
            along_m = frames.along_m[race.start : race.start + race.num_frames]
            assert along_m[0] == pytest.approx(0.0, abs=1.0)
            assert along_m[-1] > dataset.main_track.length_m - 5.0  # the finish is in the data
            assert (np.diff(along_m) > -0.5).all()
    assert (tmp_path / "frames" / "README.md").is_file()
    assert (tmp_path / "frames" / "contact_sheet.png").is_file()


def test_workers_do_not_change_a_byte(races_dir: Path, tmp_path: Path) -> None:
    run(races_dir, tmp_path / "alone", num_workers=1)
    run(races_dir, tmp_path / "together", num_workers=2)
    assert content(tmp_path / "alone") == content(tmp_path / "together")


def test_missing_races_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dvc repro races"):
        run(tmp_path / "none", tmp_path / "frames")
