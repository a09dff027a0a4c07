"""Stage `capture`: every race, in an order that never changes, whatever the number of workers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.datasets.formats.frames import FrameDataset, read_index
from rulka.datasets.formats.races import Race, RaceDataset, load_races, write_races
from rulka.datasets.formats.split import SPLITS
from rulka.datasets.params import CaptureParams
from rulka.datasets.recovery import recovery_id
from rulka.machine.errors import UserError
from rulka.params import Params, read_params
from rulka.simulator.params import SimulatorParams
from rulka.tracks.params import TrackParams
from rulka.tracks.track import Track
from tasks.capture import capture
from tasks.races import races
from tests.tasks.conftest import content

PARAMS = read_params()
TRACK = TrackParams(seed=3, length_m=200.0, width_m=16.0, max_slope=0.1, gate_spacing_m=100.0, difficulty="medium")


@pytest.fixture(scope="module")
def races_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "races"
    races(few_races(2, 200.0), recordings_dir=folder / "none", out_dir=folder)
    return folder


def few_races(seed: int, length_m: float) -> Params:
    few = PARAMS.races.model_copy(update={"num_demonstrations": 4, "reference_decisions": 0, "seed": seed})
    return PARAMS.model_copy(update={"races": few, "track": TRACK.model_copy(update={"length_m": length_m})})


def run(races_dir: Path, out_dir: Path, **changes: object) -> None:
    values = {"num_workers": 1, "validation_fraction": 0.3, "test_fraction": 0.2} | changes
    params = PARAMS.model_copy(update={"capture": CaptureParams(**values)})
    capture(params, races_dir=races_dir, out_dir=out_dir, runs_dir=out_dir.parent / "runs")
    assert not (out_dir.parent / "runs").exists()


def test_every_race_is_captured_to_its_end(races_dir: Path, tmp_path: Path) -> None:
    run(races_dir, tmp_path / "frames")
    dataset = load_races(races_dir)
    captured = {race.race_id: race.num_frames for race in read_index(tmp_path / "frames").races}
    assert captured == {race.race_id: -(-race.duration_ms // 50) for race in dataset.races}
    for split in SPLITS:
        frames = FrameDataset(tmp_path / "frames", split)
        assert len(frames) > 0
        for race in frames.races:
            along_m = frames.along_m[race.start : race.start + race.num_frames]
            assert along_m[0] == pytest.approx(0.0, abs=1.0)
            assert along_m[-1] > dataset.main_track.length_m - 5.0  # the finish is in the data
            assert (np.diff(along_m) > -0.5).all()
    assert (tmp_path / "frames" / "README.md").is_file()
    assert (tmp_path / "frames" / "contact_sheet.png").is_file()


def test_races_of_training_are_driven_again(
    races_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that cannot be followed are left out by name; the others are the same with any number of workers."""
    run(races_dir, tmp_path / "frames", recoveries=1)
    assert re.search(
        r"capture: [\d,]+ of [\d,]+ frames are of recovery drives on .*: about \d+ min", capsys.readouterr().out
    )
    index = read_index(tmp_path / "frames")
    split_of = {race.race_id: race.split for race in index.races}
    again = {race_id for race_id in split_of if "recovery" in race_id}
    assert again == {f"{race_id}-recovery-0" for race_id in set(split_of) - again if split_of[race_id] == "train"}
    assert {split_of[race_id] for race_id in again} == {"train"}
    assert len(split_of) > len(again) > 1
    run(races_dir, tmp_path / "two", recoveries=1, num_workers=2)
    assert content(tmp_path / "two") == content(tmp_path / "frames")
    monkeypatch.setattr("rulka.datasets.recovery.MOST_TIME", 0.1)
    run(races_dir, tmp_path / "lost", recoveries=2)
    assert len(read_index(tmp_path / "lost").races) == len(split_of) - len(again)
    assert all(caplog.text.count(f"{race_id.removesuffix('-recovery-0')} cannot") == 1 for race_id in again)


def test_an_interrupted_capture_resumes_by_race(
    races_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other parameters everything is driven anew, whatever was kept; a damaged file is told and made again."""
    driven: list[str] = []
    last_drive = 1

    def drive(race: Race, _track: Track, _simulator: SimulatorParams, _ticks: int, number: int) -> Race:
        if len(driven) == last_drive:
            raise KeyboardInterrupt
        driven.append(recovery_id(race, number))
        return replace(race, race_id=driven[-1], source="recovery", controls=race.controls * (1, 1, number))

    monkeypatch.setattr("tasks.capture.drive_again", drive)
    for dead_zone in (0.2, 0.1):
        driven.clear()
        with pytest.raises(KeyboardInterrupt):
            run(races_dir, tmp_path / "frames", recoveries=2, steer_dead_zone=dead_zone)
        assert len(driven) == last_drive, "nothing was kept for these parameters"
    assert not (tmp_path / "frames").exists()
    last_drive = 3
    with pytest.raises(KeyboardInterrupt):
        run(races_dir, tmp_path / "frames", recoveries=2, steer_dead_zone=0.1)
    newest = max((tmp_path / "runs").rglob("*.npz"), key=lambda file: file.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-100])
    (newest.parent / ".new-killed.npz").touch()
    last_drive = 99
    run(races_dir, tmp_path / "frames", recoveries=2, steer_dead_zone=0.1)
    assert caplog.text.count("is damaged, its race is captured again") == 1
    interrupted, num_drives = content(tmp_path / "frames"), len(driven)
    driven.clear()
    run(races_dir, tmp_path / "frames", recoveries=2, steer_dead_zone=0.1)
    assert content(tmp_path / "frames") == interrupted
    assert num_drives == len(driven) + 1


@pytest.fixture
def two_maps(races_dir: Path, tmp_path: Path) -> Path:
    """The same races, and as many on a road that is 150 m long."""
    races(few_races(7, 150.0), recordings_dir=tmp_path / "none", out_dir=tmp_path / "short")
    first, second = load_races(races_dir), load_races(tmp_path / "short")
    (tmp_path / "races").mkdir()
    both = RaceDataset(first.races + second.races, first.main_track, (), (second.main_track,))
    write_races(tmp_path / "races", both)
    return tmp_path / "races"


def test_races_of_all_maps_are_captured_on_their_own_track(
    two_maps: Path, tmp_path: Path, races_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_races(two_maps)
    run(two_maps, tmp_path / "frames")
    index = read_index(tmp_path / "frames")
    assert {race.race_id: race.map_uid for race in index.races} == {
        race.race_id: race.map_uid for race in dataset.races
    }
    assert index.main_track == dataset.main_track.uid
    train = FrameDataset(tmp_path / "frames", "train")
    for race in train.races:
        end_m = float(train.along_m[race.start : race.start + race.num_frames][-1])
        assert end_m == pytest.approx(dataset.tracks[race.map_uid].length_m, abs=5.0)
    on_main = {race.race_id for race in dataset.on_main_track()}
    assert {race.race_id for race in train.on_main_track()} == on_main & {race.race_id for race in train.races}
    monkeypatch.setattr("tasks.capture.drive_again", lambda race, *_: replace(race, race_id=recovery_id(race, 0)))
    run(two_maps, tmp_path / "again", recoveries=1)
    again = {race.race_id: race.map_uid for race in read_index(tmp_path / "again").races if "recovery" in race.race_id}
    assert set(again.values()) == {dataset.main_track.uid}
    run(two_maps, tmp_path / "main", maps="main")
    run(races_dir, tmp_path / "alone")
    assert content(tmp_path / "main") == content(tmp_path / "alone")


def test_no_race_on_the_main_track_is_named(two_maps: Path, tmp_path: Path) -> None:
    dataset = load_races(two_maps)
    elsewhere = tuple(race for race in dataset.races if race.map_uid != dataset.main_track.uid)
    (tmp_path / "elsewhere").mkdir()
    write_races(tmp_path / "elsewhere", replace(dataset, races=elsewhere))
    with pytest.raises(UserError, match=f"holds no race on its main track {dataset.main_track.uid}") as caught:
        run(tmp_path / "elsewhere", tmp_path / "frames")
    assert "dvc repro races" in caught.value.hint


def test_workers_do_not_change_a_byte(races_dir: Path, tmp_path: Path) -> None:
    run(races_dir, tmp_path / "alone", num_workers=1)
    run(races_dir, tmp_path / "together", num_workers=2)
    assert content(tmp_path / "alone") == content(tmp_path / "together")
