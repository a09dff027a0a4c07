"""Recordings to races: what is taken over, what is refused and why, and which map has the main track."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rulka.contracts.observation import CAR
from rulka.datasets import from_recordings
from rulka.datasets.formats.races import RaceDataset
from rulka.datasets.from_recordings import (
    DamagedSamplesError,
    NoUsableRecordingError,
    RespawnError,
    UnfinishedError,
    UnreadableFolderError,
    find_recordings,
    plain_text,
    race_of_ghost,
    read_race_dataset,
)
from rulka.datasets.params import SelectParams
from rulka.datasets.selection import summary_of
from rulka.recordings.errors import TruncatedError
from rulka.recordings.model import Ghost, InputEvent, Recording, RecordingHeader
from rulka.recordings.summary import inspect_file
from rulka.stages.folders import utf8_path
from rulka.tracks.blocks import MapBlock
from rulka.tracks.from_paths import DrivenPath
from rulka.tracks.track import Track, TrackError
from tests.recordings import forge

SPEED_MPS = 20.0
ANY = SelectParams(
    device="any", with_respawns=False, min_race_s=None, max_race_s=None, environment=None, max_best_ratio=None
)


def make_ghost(race_time_ms: int | None = 6030, num_samples: int = 80, lateral_m: float = 0.0) -> Ghost:
    """A drive straight ahead at 20 m/s, sampled for longer than the race lasts."""
    time_ms = 100 * np.arange(num_samples, dtype=np.int64)
    position = np.stack([0 * time_ms + lateral_m, 0 * time_ms + 10, SPEED_MPS * time_ms / 1000], axis=1)
    velocity = np.tile(np.array([0, 0, SPEED_MPS], np.float32), (num_samples, 1))
    samples = forge.samples_at(time_ms, position.astype(np.float32), velocity, -(time_ms > 100).astype(np.float32))
    return Ghost(
        nickname="$f00Nick",
        race_time_ms=race_time_ms,
        respawns=0,
        checkpoint_times_ms=(race_time_ms // 2 if race_time_ms else 3000, race_time_ms),
        events=(InputEvent(0, "Accelerate", 1), InputEvent(100, "SteerLeft", 1)),
        num_inputs=2,
        samples=samples,
    )


def make_recording(*ghosts: Ghost, map_uid: str = "map-a", environment: str = "Stadium") -> Recording:
    return Recording("recording", RecordingHeader("recording"), map_uid, environment, "", ghosts, b"", ())


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RaceDataset]:
    """Returns a function that reads a folder with the given recordings, or errors, by file name."""

    def run(content: dict[str, Recording | Exception], map_uid: str | None = None, **select: object) -> RaceDataset:
        def fake(path: Path) -> Recording:
            found = content[path.relative_to(tmp_path).as_posix()]
            if isinstance(found, Exception):
                raise found
            return found

        for name in content:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        monkeypatch.setattr(from_recordings, "read_recording", fake)
        return read_race_dataset(
            tmp_path, find_recordings(tmp_path), map_uid, ANY.model_copy(update=select), lambda: None
        )

    return run


def test_a_race_is_taken_over_until_the_first_sample_after_the_finish() -> None:
    race = race_of_ghost(make_ghost(), "a.Gbx", "map-a")
    assert race.state_time_ms[-2:].tolist() == [6000, 6100]
    assert race.num_ticks == 603
    assert race.checkpoint_times_ms == (3015, 6030)
    assert (race.source, race.file, race.player, race.seed) == ("recording", "a.Gbx", "$f00Nick", None)
    # Forever shows a key stamped 100 ms in the state at 110 ms: it acts from 100 ms on.
    assert race.controls[9:11, 0].tolist() == [0.0, -1.0]
    np.testing.assert_array_equal(race.state[:, CAR["velocity"]][5], [0, 0, SPEED_MPS])


def test_what_makes_no_race_is_refused() -> None:
    ghost = make_ghost()
    assert race_of_ghost(make_ghost(num_samples=61), "a.Gbx", "map-a").state_time_ms[-1] == 6000
    assert ghost.samples is not None
    ghost.samples.velocity[17, 2] = np.nan
    with pytest.raises(DamagedSamplesError, match=r"the car's state at 1\.70 s is not a number"):
        race_of_ghost(ghost, "a.Gbx", "map")
    with pytest.raises(UnfinishedError):
        race_of_ghost(make_ghost(race_time_ms=None), "a.Gbx", "map-a")
    ghost.respawns = 1
    with pytest.raises(RespawnError, match=r"respawned 1 time\n"):
        race_of_ghost(ghost, "a.Gbx", "map-a")


def test_bad_files_are_quarantined_and_the_others_used(read: Callable[..., RaceDataset]) -> None:
    no_inputs = make_ghost(lateral_m=1.0)
    no_inputs.events = ()
    endless, strange = make_ghost(lateral_m=3.0), make_ghost(lateral_m=4.0)
    endless.race_time_ms, endless.checkpoint_times_ms = 2**31 - 1, (2**31 - 1,)
    strange.events = (InputEvent(0, "SteerRight", 1),)
    reverse, backs_up = make_ghost(lateral_m=5.0), make_ghost(lateral_m=6.0)
    for ghost, first in ((reverse, 0), (backs_up, 40)):  # drives along the same path, its nose behind
        assert ghost.samples is not None
        ghost.samples.quaternion[first:] = 0.0, 0.0, 1.0, 0.0
    dataset = read(
        {
            "good.Gbx": make_recording(make_ghost()),
            "more/Other.GBX": make_recording(make_ghost(lateral_m=0.5)),
            "more/copy.gbx": make_recording(make_ghost()),
            "cut.Gbx": TruncatedError("it ends early", hint="Get it again."),
            "unfinished.Gbx": make_recording(make_ghost(race_time_ms=None)),
            "no_inputs.Gbx": make_recording(no_inputs),
            "nowhere.Gbx": make_recording(make_ghost(lateral_m=2.0), map_uid=""),
            "empty.Gbx": make_recording(),
            "endless.Gbx": make_recording(endless),
            "strange.Gbx": make_recording(strange),
            "reverse.Gbx": make_recording(reverse),
            "backs_up.Gbx": make_recording(backs_up),
        }
    )
    expected = {
        "cut.Gbx": "TruncatedError",
        "empty.Gbx": "UnusableRecordingError",
        "endless.Gbx": "ContradictoryTimeError",
        "more/copy.gbx": "DuplicateError",
        "no_inputs.Gbx": "NoInputsError",
        "nowhere.Gbx": "NoMapUidError",
        "reverse.Gbx": "ReverseError",
        "strange.Gbx": "MisalignedInputsError",
        "unfinished.Gbx": "UnfinishedError",
    }
    assert kept(dataset) == (["backs_up.Gbx", "good.Gbx", "more/Other.GBX"], expected)
    assert dataset.main_track.uid == "map-a"
    reasons = {item.file: item for item in dataset.quarantine}
    assert reasons["cut.Gbx"].error == "TruncatedError: it ends early"
    assert all(item.hint for item in dataset.quarantine)
    assert "good.Gbx" in reasons["more/copy.gbx"].error
    assert "at -20 m/s along the car" in reasons["reverse.Gbx"].error
    assert ".Replay.Gbx" in reasons["nowhere.Gbx"].hint


def test_all_maps_are_kept_and_that_with_most_races_is_the_main_one_unless_one_is_named(
    read: Callable[..., RaceDataset],
) -> None:
    content = {
        "1.Gbx": make_recording(make_ghost(3000), map_uid="map-a"),
        "2.Gbx": make_recording(make_ghost(lateral_m=1.0), map_uid="map-b"),
        "3.Gbx": make_recording(make_ghost(lateral_m=2.0), map_uid="map-b"),
        "4.Gbx": make_recording(make_ghost(lateral_m=3.0), map_uid="map-c"),
    }
    dataset = read(content)
    assert kept(dataset) == (["1.Gbx", "2.Gbx", "3.Gbx", "4.Gbx"], {})
    assert list(dataset.tracks) == ["map-b", "map-a", "map-c"]
    assert [race.file for race in dataset.on_main_track()] == ["2.Gbx", "3.Gbx"]
    assert [track.length_m for track in dataset.tracks.values()] == pytest.approx([120.6, 60.0, 120.6], abs=1.0)
    named = read(content, "map-a")
    assert list(named.tracks) == ["map-a", "map-b", "map-c"]
    assert [race.file for race in named.on_main_track()] == ["1.Gbx"]
    with pytest.raises(NoUsableRecordingError, match=r"'map-d'.*map-b \(2\), map-a \(1\), map-c \(1\)") as caught:
        read(content, "map-d")
    assert "races.map_uid" in caught.value.hint


def test_a_track_has_the_medals_of_its_map(read: Callable[..., RaceDataset]) -> None:
    """As far as they are times: maps of other modes hold points in their place."""
    of_map = replace(make_recording(make_ghost()), map_uid=forge.MAP_UID, map_data=forge.map_file())
    without = replace(of_map, ghosts=(make_ghost(lateral_m=1.0),), map_data=b"")
    platform = replace(of_map, map_data=forge.map_file(medals_ms=(10, 3, 0, 35770)))
    for first, second, medals_ms in (
        (without, of_map, (1500, 2000, 3000, 4000)),
        (without, without, ()),
        (platform, platform, ()),
    ):
        assert read({"1.Gbx": first, "2.Gbx": second}).main_track.medals_ms == medals_ms


def kept(dataset: RaceDataset) -> tuple[list[str], dict[str, str]]:
    """Files that are used, and for the others the name of the reason."""
    reasons = {item.file: item.error.split(":")[0] for item in dataset.quarantine}
    return sorted(race.file for race in dataset.races), reasons


def pad(lateral_m: float) -> Recording:
    ghost = make_ghost(lateral_m=lateral_m)
    ghost.events = (*ghost.events, InputEvent(200, "Steer", 5000))
    return make_recording(ghost)


def test_filters(read: Callable[..., RaceDataset]) -> None:
    """Best 4.0 s of its map; at most 1.5 times that is 6.0 s exactly. Without respawns they make the track alone."""
    respawned = make_ghost(6010, lateral_m=5.0)
    respawned.respawns = 1
    content = {
        "a.Gbx": make_recording(make_ghost(4000)),
        "b.Gbx": make_recording(make_ghost(6000, lateral_m=0.1)),
        "other.Gbx": make_recording(make_ghost(7000), map_uid="map-b"),
        "pad.Gbx": pad(0.2),
        "island.Gbx": make_recording(make_ghost(4000, lateral_m=0.3), environment="Island"),
        "r.Gbx": make_recording(respawned),
    }
    refused = {
        ("device", "keyboard"): {"pad.Gbx": "OtherDeviceError"},
        ("min_race_s", 6.0): {"a.Gbx": "DurationError", "island.Gbx": "DurationError"},
        ("max_race_s", 6.0): {"other.Gbx": "DurationError", "pad.Gbx": "DurationError"},
        ("max_best_ratio", 1.5): {"pad.Gbx": "TooSlowError"},
        ("environment", "stadium"): {"island.Gbx": "OtherEnvironmentError"},
    }
    for (name, value), reasons in refused.items():
        respawn = {"r.Gbx": "DurationError" if name == "max_race_s" else "RespawnError"}
        assert kept(read(content, **{name: value}))[1] == reasons | respawn, name
    assert set(kept(read(content, device="analog"))[0]) == {"pad.Gbx"}
    dataset = read(content, with_respawns=True)
    assert kept(dataset) == (sorted(content), {})
    assert np.abs(dataset.main_track.centre_m[:, 0]).max() < 1.0


def test_only_races_of_the_simulated_car_are_used(read: Callable[..., RaceDataset]) -> None:
    """Unless any is asked for. Recordings of the oldest games name no car, and TrackMania 2 has a StadiumCar too."""
    cars = {"": "", "StadiumCar": "TmForever.2.11", "SnowCar": "TmForever.2.11", "of two": "ManiaPlanet.3.3.0"}
    content = {}
    for number, (car, version) in enumerate(cars.items()):
        ghost = make_ghost(lateral_m=0.1 * number)
        ghost.vehicle, ghost.game_version = ("StadiumCar" if car == "of two" else car), version
        content[f"{number}.Gbx"] = make_recording(ghost)
    dataset = read(content)
    assert {race.file: race.car for race in dataset.races} == {"0.Gbx": "", "1.Gbx": "StadiumCar"}
    snow, later = dataset.quarantine
    assert snow.error == "OtherCarError: driven with the car 'SnowCar', 'StadiumCar' is wanted"
    assert "StadiumCar of ManiaPlanet" in later.error
    assert "races.select.car" in snow.hint
    assert {race.car for race in read(content, car=None).races} == {
        "",
        "StadiumCar",
        "SnowCar",
        "StadiumCar of ManiaPlanet",
    }
    assert [race.file for race in read(content, car="SnowCar").races] == ["0.Gbx", "2.Gbx"]


def leaping(lateral_m: float = 0.0, respawns: int = 0) -> Ghost:
    """A drive that is 500 m further on from 2 s on."""
    ghost = make_ghost(lateral_m=lateral_m)
    assert ghost.samples is not None
    ghost.samples.position[20:, 2] += 500.0
    ghost.respawns = respawns
    return ghost


def standing() -> Ghost:
    ghost = make_ghost(lateral_m=7.0)
    assert ghost.samples is not None
    ghost.samples.position[:, 2] = 0.0
    return ghost


def test_a_path_that_makes_no_track_is_quarantined_by_name(read: Callable[..., RaceDataset]) -> None:
    """The others go on, also where the bad ones are more and of a map of their own."""
    content = {
        "good.Gbx": make_recording(make_ghost()),
        "leap.Gbx": make_recording(leaping()),
        "stand.Gbx": make_recording(standing()),
        "b1.Gbx": make_recording(leaping(1.0), map_uid="map-b"),
        "b2.Gbx": make_recording(leaping(2.0), map_uid="map-b"),
    }
    dataset = read(content)
    reasons = {item.file: item.error for item in dataset.quarantine}
    assert kept(dataset) == (["good.Gbx"], dict.fromkeys(reasons, "UnusablePathError"))
    assert "jumps 502 m between 1.90 s and 2.00 s, though no respawn is counted" in reasons["leap.Gbx"]
    assert "too short: 0 m" in reasons["stand.Gbx"]
    assert all(item.hint for item in dataset.quarantine)


def test_a_map_without_a_track_gives_way_to_the_next(read: Callable[..., RaceDataset]) -> None:
    content = {
        "r1.Gbx": make_recording(leaping(respawns=1)),
        "r2.Gbx": make_recording(leaping(1.0, respawns=2)),
        "w.Gbx": make_recording(make_ghost(), map_uid="map-b"),
    }
    dataset = read(content, with_respawns=True)
    assert kept(dataset) == (["w.Gbx"], {"r1.Gbx": "UnusablePathError", "r2.Gbx": "UnusablePathError"})
    assert list(dataset.tracks) == ["map-b"]
    with pytest.raises(NoUsableRecordingError, match=r"no race on the map 'map-a' can be used"):
        read(content, "map-a", with_respawns=True)


def test_unusable_recordings_are_named_and_below_each_what_to_do(read: Callable[..., RaceDataset]) -> None:
    with pytest.raises(NoUsableRecordingError) as caught:
        read({"w.Gbx": make_recording(make_ghost(race_time_ms=None))})
    assert str(caught.value) == (
        "none of the recordings can be used:\n"
        "  w.Gbx: UnfinishedError: the race was not finished\n"
        "    Use a recording of a finished race."
    )


def test_the_race_whose_track_runs_into_itself_is_found(
    read: Callable[..., RaceDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that looks drivable by itself can still make no track: it is found by building each alone."""
    build = from_recordings.track_from_paths

    def refuse(uid: str, name: str, paths: list[DrivenPath], blocks: Sequence[MapBlock]) -> Track:
        if any(path.position[0, 0] == 3.0 for path in paths):
            raise TrackError("it runs into itself")
        return build(uid, name, paths, blocks)

    monkeypatch.setattr(from_recordings, "track_from_paths", refuse)
    content = {f"{lateral_m}.Gbx": make_recording(make_ghost(lateral_m=lateral_m)) for lateral_m in (0.0, 1.0, 3.0)}
    assert kept(read(content)) == (["0.0.Gbx", "1.0.Gbx"], {"3.0.Gbx": "UnusablePathError"})


def of_clip(lateral_m: float, race_time_ms: int | None = 6030, map_uid: str = "") -> Ghost:
    return replace(make_ghost(race_time_ms, lateral_m=lateral_m), validated_map_uid=map_uid, is_from_clip=True)


def test_every_ghost_of_a_file_is_a_race_or_says_why_not(read: Callable[..., RaceDataset]) -> None:
    """The fourth begins 20 m beside the first, so that it is of another map; the fifth says of which."""
    ghosts = (
        make_ghost(),
        of_clip(0.5),
        of_clip(1.0, None),
        of_clip(20.0),
        of_clip(30.0, map_uid="map-b"),
        of_clip(0.5),
    )
    dataset = read({"a.Gbx": make_recording(*ghosts), "b.Gbx": make_recording(make_ghost())})
    assert [(race.file, race.map_uid) for race in dataset.races] == [
        ("a.Gbx", "map-a"),
        ("a.Gbx", "map-a"),
        ("a.Gbx", "map-b"),
    ]
    assert len({race.race_id for race in dataset.races}) == 3
    assert [(item.file, item.error) for item in dataset.quarantine] == [
        ("a.Gbx", "UnfinishedError: ghost 3 of 6: the race was not finished"),
        (
            "a.Gbx",
            "OtherMapError: ghost 4 of 6: it begins 20 m from the recorded run, so it was driven on another map",
        ),
        ("a.Gbx", "DuplicateError: ghost 6 of 6: the same race is in a.Gbx"),
        ("b.Gbx", "DuplicateError: the same race is in a.Gbx"),
    ]
    assert all(item.hint for item in dataset.quarantine)
    assert dataset.tracks["map-b"].name == "map-b", "the file's name is that of the other map"


def test_the_summary_counts_reasons(read: Callable[..., RaceDataset]) -> None:
    content = {
        "a.Gbx": make_recording(make_ghost()),
        "b.Gbx": TruncatedError("it ends"),
        "c.Gbx": TruncatedError("it ends"),
        "d.Gbx": pad(0.1),
    }
    dataset = read(content, device="keyboard")
    assert summary_of(dataset) == "1 race of 1 map used, 3 not used: 2 Truncated, 1 OtherDevice"
    with pytest.raises(NoUsableRecordingError, match="none of the recordings") as caught:
        read(content | {f"{n:02}.Gbx": TruncatedError("it ends") for n in range(8)}, environment="Bay")
    assert len(caught.value.quarantine) == 12
    lines = str(caught.value).splitlines()
    assert "00.Gbx: TruncatedError: it ends" in lines[1]
    assert lines[-1].strip() == "and 2 more"


def test_a_name_that_is_no_utf8_is_escaped_and_used(read: Callable[..., RaceDataset]) -> None:
    assert utf8_path("two\nlines.Gbx") == r"two\nlines.Gbx"
    bad = os.fsdecode(b"caf\xe9/\xff.Gbx")
    dataset = read({bad: make_recording(make_ghost()), "cut" + bad: TruncatedError("it ends early")})
    assert dataset.races[0].file == r"caf\xe9/\xff.Gbx"
    assert [item.file for item in dataset.quarantine] == [r"cutcaf\xe9/\xff.Gbx"]
    summary = inspect_file(bad)
    assert summary["file"] == r"\xff.Gbx"
    assert r"caf\xe9/\xff.Gbx cannot be read" in summary["error"]


def test_plain_text() -> None:
    assert plain_text("A\0B\x1b[1mC\n") == "AB[1mC"
    names = {"$f00A$o$iB": "AB", "TM$ec0S $fff- $$5": "TMS - $5", "$h[bigbang1112]$ffffile": "file", "plain": "plain"}
    names |= {"A$$B$$C": "A$B$C", "$$f00": "$f00", "$$$f00red": "$red", "$$$$": "$$"}
    assert {name: plain_text(name) for name in names} == names


def test_recordings_are_found_at_any_depth_and_sorted(tmp_path: Path) -> None:
    """The reader says what is wrong with a link that leads nowhere; it would wait for ever for a pipe."""
    for name in ("b.Replay.Gbx", "a/c.GBX", "a/notes.txt", "folder.gbx/d.gbx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "lost.gbx").symlink_to(tmp_path / "none.gbx")
    os.mkfifo(tmp_path / "pipe.gbx")
    names = [path.relative_to(tmp_path).as_posix() for path in find_recordings(tmp_path)]
    assert names == ["a/c.GBX", "b.Replay.Gbx", "folder.gbx/d.gbx", "lost.gbx"]
    assert find_recordings(tmp_path / "none") == []
    whole = tmp_path.with_name("linked")
    whole.symlink_to(tmp_path)
    assert len(find_recordings(whole)) == 4, "the folder itself may be a link"


def test_what_may_hold_recordings_that_are_not_seen_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "a.Gbx").touch()
    for place, said in ((tmp_path / "mine", "a folder"), (tmp_path / "not_mounted", "nothing")):
        (tmp_path / "link").symlink_to(place)
        with pytest.raises(UnreadableFolderError, match=f"link is a link to {said}"):
            find_recordings(tmp_path)
        (tmp_path / "link").unlink()
    lost = tmp_path.with_name("lost")
    lost.symlink_to(tmp_path / "not_mounted")
    for folder, said in ((lost, "No such file"), (tmp_path / "a.Gbx", "Not a directory")):
        with pytest.raises(UnreadableFolderError, match=f"{folder} cannot be read: {said}"):
            find_recordings(folder)
    scandir = os.scandir

    def scan(folder: str):
        """What the system does for a user who may not read a folder; root may read all."""
        if os.fspath(folder) == str(tmp_path / "mine"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    with pytest.raises(UnreadableFolderError, match="mine cannot be read: Permission denied"):
        find_recordings(tmp_path)
