"""Races of people in the simulator: what their files hold, what is refused, and how the stage `races` reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rulka.contracts.observation import CAR
from rulka.datasets.drives import (
    MAX_TICKS,
    DriveFileError,
    PlayerNameError,
    Recorder,
    RedriveError,
    check_player,
    read_drive,
    recorded_controls,
    save_drive,
)
from rulka.datasets.formats.races import Race, RaceDataset, load_races, write_races
from rulka.datasets.from_recordings import NoUsableRecordingError, find_recordings, read_race_dataset
from rulka.datasets.params import SelectParams
from rulka.machine.errors import UserError
from rulka.operations.recordings import describe_folder, inspect_recording
from rulka.params import Params
from rulka.tracks.track import Track
from rulka.video.sources import LEFT_TO_RIGHT, gather, sort_sources
from tests.conftest import straight_track

SIMULATOR = Params().simulator
ANY = SelectParams(max_best_ratio=None)
GAS = recorded_controls(0.0, 1.0, 0.0)


def drive(steer: float = 0.0, ticks: int = MAX_TICKS, track: Track | None = None, player: str = "Ann") -> Race:
    """Full gas from the start line, with steering in the first tick only."""
    recorder = Recorder(track or straight_track(), SIMULATOR)
    while not recorder.has_ended and recorder.num_ticks < ticks:
        recorder.tick(GAS if recorder.num_ticks else recorded_controls(steer, 1.0, 0.0))
    return recorder.race(player)


@pytest.fixture(scope="module")
def race() -> Race:
    return drive()


def keep(folder: Path, race: Race, track: Track | None = None) -> Path:
    return save_drive(folder, race, track or straight_track(), SIMULATOR)


def test_a_race_comes_back_as_it_was(tmp_path: Path, race: Race) -> None:
    path = keep(tmp_path, race)
    again, track = read_drive(path)
    assert path.name == f"straight-Ann-{race.race_time_ms}ms-{race.race_id[-8:]}.drive.npz"
    for name in Race.__dataclass_fields__:
        assert np.array_equal(getattr(again, name), getattr(race, name)), name
    for name in Track.__dataclass_fields__:
        assert np.array_equal(getattr(track, name), getattr(straight_track(), name)), name
    assert (race.source, race.car, race.is_finished, len(race.checkpoint_times_ms)) == ("drive", "StadiumCar", True, 3)
    assert race.state_time_ms[:3].tolist() == [0, 50, 100]
    assert race.state_time_ms[-1] == 10 * race.num_ticks
    assert 0 <= 10 * race.num_ticks - (race.race_time_ms or 0) < 10, "the finish is in the last tick"
    assert race.controls.tolist() == [[0.0, 1.0, 0.0]] * race.num_ticks
    # A change of gear takes 5 decisions at most, not 25.
    assert race.state[:, CAR["gearbox_counter"]].max() < 10
    with pytest.raises(UserError, match="exists"):
        keep(tmp_path, race)


def test_controls_are_what_every_format_can_hold() -> None:
    assert recorded_controls(0.3, 0.31, 0.3).tolist() == [np.float32(19661 / 65536), 1.0, 0.0]
    assert recorded_controls(-1.0, 0.0, 1.0).tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("player", ["../../etc/passwd", "a/b\\c:d", "Zoë \N{SNOWMAN}", "-rf", "..", "$f00x"])
def test_no_name_leaves_the_folder(tmp_path: Path, race: Race, player: str) -> None:
    path = keep(tmp_path, replace(race, player=player))
    assert path.parent == tmp_path
    assert set(path.name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
    assert read_drive(path)[0].player == player


def test_names_are_checked() -> None:
    assert check_player("  Ann ") == "Ann"
    for wrong in ("", "   ", "a" * 41, "a\nb", "a\x1b[31m", "a\N{RIGHT-TO-LEFT OVERRIDE}b"):
        with pytest.raises(PlayerNameError, match="cannot be the name of a driver"):
            check_player(wrong)


def test_inputs_that_drive_another_race_are_refused(tmp_path: Path, race: Race) -> None:
    """A tick later on the gas, or a state that the car never was in."""
    later, elsewhere = race.controls.copy(), race.state.copy()
    later[0, 1] = 0.0
    elsewhere[7, 0] += 1e-4
    for wrong in (replace(race, controls=later), replace(race, state=elsewhere)):
        with pytest.raises(RedriveError, match="the race was not kept: its inputs, driven again, end after"):
            keep(tmp_path, wrong)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def stored(tmp_path: Path, race: Race) -> dict[str, Any]:
    """The arrays of a file."""
    with np.load(keep(tmp_path, race)) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("drive_schema", lambda _: np.int64(2), "has drive schema 2, this version reads 1"),
        ("player", lambda _: np.array("a\nb"), "cannot be the name of a driver"),
        ("player", lambda _: np.array(["a" * 41]), "cannot be the name of a driver"),
        ("controls", lambda old: old[:0], "it needs 1 to 60,000 ticks of steer in [-1, 1]"),
        ("controls", lambda old: old[:, :2], "it needs 1 to 60,000 ticks"),
        ("controls", lambda old: np.where(old > 0, np.nan, old), "it needs 1 to 60,000 ticks"),
        ("controls", lambda old: 2 * old, "it needs 1 to 60,000 ticks"),
        ("controls", lambda old: -old, "it needs 1 to 60,000 ticks"),
        ("controls", lambda old: old.astype(np.float64), "its controls is float64"),
        ("state", lambda old: old[1:], "samples have states of shape"),
        ("state", lambda old: np.full_like(old, np.inf), "not finite"),
        ("state_time_ms", lambda old: old + 50, "samples do not rise from 0"),
        ("state_time_ms", lambda old: old[::-1], "samples do not rise from 0"),
        ("controls", lambda old: np.repeat(old, 2, axis=0), "samples do not rise from 0 to its end"),
        ("gate_times_ms", lambda old: np.append(old, old[-1] + 1), "or are more than 3"),
        ("gate_times_ms", lambda old: old[::-1], "gate times do not rise"),
        ("gate_times_ms", lambda old: old + 10**6, "gate times do not rise"),
        ("track.uid", lambda _: np.array("u" * 201), "the UID of its track has more than 200 characters"),
        ("track.centre_m", lambda old: old[:1], "the centreline needs at least two points"),
        ("track.schema", lambda _: np.int64(99), "has track schema 99"),
        ("track.gate_m", lambda old: old.astype(str), "its track.gate_m is <U"),
    ],
)
def test_what_contradicts_itself_is_named(
    tmp_path: Path, stored: dict[str, Any], name: str, change: Callable[[Any], Any], says: str
) -> None:
    path = tmp_path / "a.drive.npz"
    np.savez(path, allow_pickle=False, **(stored | {name: change(stored[name])}))
    with pytest.raises(DriveFileError) as error:
        read_drive(path)
    assert says in str(error.value)
    assert error.value.hint


def test_damage_is_named_or_means_nothing(tmp_path: Path, stored: dict[str, Any], race: Race) -> None:
    path, (good,) = tmp_path / "a.drive.npz", tmp_path.iterdir()
    whole = good.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DriveFileError, match="not a readable drive file"):
            read_drive(path)
    for place in range(0, len(whole), len(whole) // 200):
        content = bytearray(whole)
        content[place] ^= 0x10
        path.write_bytes(content)
        with suppress(DriveFileError):
            assert read_drive(path)[0].race_id == race.race_id
    np.savez(path, allow_pickle=True, **(stored | {"player": np.array({"a": 1}, object)}))
    with pytest.raises(DriveFileError, match="another kind of file, or damaged"):
        read_drive(path)
    for without in ("player", "track.uid", "state"):
        np.savez(path, allow_pickle=False, **{name: value for name, value in stored.items() if name != without})
        with pytest.raises(DriveFileError, match="does not hold the fields of a"):
            read_drive(path)
    straight_track().save(path)
    with pytest.raises(DriveFileError, match="has drive schema -1"):
        read_drive(path)
    with pytest.raises(DriveFileError, match="No such file"):
        read_drive(tmp_path / "none.drive.npz")


def read(folder: Path, **select: object) -> RaceDataset:
    files = find_recordings(folder, with_drives=True)
    return read_race_dataset(folder, files, None, ANY.model_copy(update=select), lambda: None)


def test_the_stage_races_reads_drives(tmp_path: Path, race: Race) -> None:
    """They count as a person's, are of the simulator, and bring their track."""
    recordings, out = tmp_path / "recordings", tmp_path / "races"
    for folder in (recordings / "deep", recordings / "other", out):
        folder.mkdir(parents=True)
    path = keep(recordings / "deep", race)
    wide = replace(straight_track(), width_m=straight_track().width_m + 2.0)
    keep(recordings, drive(0.1))
    keep(recordings, drive(ticks=200))
    keep(recordings / "other", drive(0.2, track=wide), wide)
    (recordings / "copy.drive.npz").write_bytes(path.read_bytes())
    (recordings / "cut.DRIVE.npz").write_bytes(path.read_bytes()[:100])
    assert find_recordings(recordings) == [], "no recordings of the game"
    dataset = read(recordings)
    write_races(out, dataset)
    again = load_races(out)
    assert {(each.source, each.player, each.map_uid) for each in again.races} == {("drive", "Ann", "straight")}
    assert len(again.races) == 2
    assert np.array_equal(again.main_track.width_m, straight_track().width_m)
    assert again.main_track.source == straight_track().source, "no guess of recorded paths"
    reasons = {item.file: item.error.split(":")[0] for item in dataset.quarantine}
    unfinished = next(name for name in reasons if "unfinished" in name)
    other = next(name for name in reasons if name.startswith("other/"))
    assert reasons == {
        "cut.DRIVE.npz": "DriveFileError",
        f"deep/{path.name}": "DuplicateError",
        unfinished: "UnfinishedError",
        other: "OtherShapeError",
    }
    assert [each.file for each in read(recordings, device="keyboard").races] == ["copy.drive.npz"]
    with pytest.raises(NoUsableRecordingError, match=r"driven with the car 'StadiumCar', 'SnowCar' is wanted"):
        read(recordings, car="SnowCar")


def test_inspect_names_drives(tmp_path: Path, race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = keep(tmp_path, race)
    (tmp_path / "bad.drive.npz").write_bytes(b"PK")
    found, bad = inspect_recording(path), inspect_recording(tmp_path / "bad.drive.npz")
    assert (found["kind"], found["error"], found["car"], found["map_uid"]) == ("drive", None, "StadiumCar", "straight")
    assert (found["num_inputs"], found["device"]) == (race.num_ticks, "keyboard")
    assert (found["race_time_ms"], found["checkpoint_times_ms"][-1]) == (race.race_time_ms, race.race_time_ms)
    assert (bad["kind"], bad["error"].split(":")[0], bad["ghosts"]) == ("drive", "DriveFileError", [])
    assert found.keys() == bad.keys()
    table = describe_folder(tmp_path, [found, bad])
    assert "straight <b>road</b> StadiumCar" in table
    assert "main track" in table
    assert "DriveFileError: 1" in table


def test_drives_are_watched(tmp_path: Path, race: Race) -> None:
    shown = gather(sort_sources([keep(tmp_path, race)]), Params(), None, 1)
    assert shown.texts.title.startswith(f"{LEFT_TO_RIGHT}Ann{LEFT_TO_RIGHT}")
    assert shown.race.time_ms == race.race_time_ms
    assert shown.race.track.uid == "straight"
