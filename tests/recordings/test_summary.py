import json
from pathlib import Path

from rulka.recordings.summary import inspect_file
from tests.recordings.forge import MAP_UID

EXPECTED = {
    "file": "a.Replay.Gbx",
    "kind": "recording",
    "error": None,
    "hint": None,
    "map_uid": MAP_UID,
    "map_name": "Hand-made",
    "environment": "Stadium",
    "car": "StadiumCar",
    "player_login": "driver",
    "race_time_ms": 300,
    "checkpoint_times_ms": [150, 300],
    "respawns": 2,
    "stunts": 7,
    "num_inputs": 4,
    "num_samples": 5,
    "sample_period_ms": 100,
    "device": "keyboard",
    "input_lag_ticks": 1,
}


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_recording(forge, tmp_path: Path) -> None:
    found = inspect_file(put(tmp_path, "a.Replay.Gbx", forge.recording_file(num_ghosts=2)))
    assert found == EXPECTED | {"ghosts": [EXPECTED, EXPECTED]}
    assert json.loads(json.dumps(found)) == found


def test_what_contradicts_itself_is_said_beside_what_was_read(forge, tmp_path: Path) -> None:
    """The samples end at 400 ms."""
    found = inspect_file(put(tmp_path, "a.Replay.Gbx", forge.recording_file(race_time=2**31 - 1)))
    assert found["error"].startswith("ContradictoryTimeError: the race time 2147483647 ms")
    assert found["hint"]
    assert (found["race_time_ms"], found["num_inputs"], found["input_lag_ticks"]) == (2**31 - 1, 4, None)
    late = [(0, 0, 1), *((time, 3, time // 10 % 2) for time in range(10, 400, 10))]
    found = inspect_file(put(tmp_path, "b.Replay.Gbx", forge.recording_file(events=late)))
    assert found["error"] is None  # three samples of steering tell too little to refuse


def test_the_car_is_told(forge, tmp_path: Path) -> None:
    found = inspect_file(put(tmp_path, "a.Replay.Gbx", forge.recording_file(car="SnowCar")))
    assert (found["car"], found["environment"], found["map_name"]) == ("SnowCar", "Stadium", "Hand-made")


def test_a_map(forge, tmp_path: Path) -> None:
    found = inspect_file(put(tmp_path, "a.Challenge.Gbx", forge.map_file()))
    assert (found["kind"], found["error"], found["map_uid"], found["ghosts"]) == ("map", None, forge.MAP_UID, [])
    assert (found["map_name"], found["map_author"], found["num_blocks"]) == ("Hand-made", "author", 2)
    assert found["medals_ms"] == {"bronze": 4000, "silver": 3000, "gold": 2000, "author": 1500}
    assert found["checkpoints_m"] == [[11 * 32 + 16, 8, 19 * 32 + 16]]
    assert found["blocks"][0]["name"] == "StadiumRoadMain"
    assert json.loads(json.dumps(found))["blocks"][1]["coordinates"] == [11, 1, 19]
    path = put(tmp_path, "b.Challenge.Gbx", forge.map_file(block_name="TMUnlimiter is required"))
    found = inspect_file(path)
    assert found["error"].startswith("UnlimiterMapError: ")
    assert (found["kind"], found["map_uid"]) == ("map", forge.MAP_UID)


def test_a_ghost_file(forge, tmp_path: Path) -> None:
    found = inspect_file(put(tmp_path, "a.Ghost.Gbx", forge.gbx(0x03092000, {}, forge.ghost_body(forge.Ids()))))
    assert (found["kind"], found["race_time_ms"], found["num_samples"]) == ("ghost", 300, 5)


def test_what_is_no_recording(tmp_path: Path) -> None:
    for path, problem in (
        (put(tmp_path, "text.txt", b"hello"), "NotGbxError"),
        (put(tmp_path, "empty.Gbx", b""), "NotGbxError"),
        (tmp_path / "none.Gbx", "UnreadableFileError"),
    ):
        found = inspect_file(path)
        assert set(found) == {*EXPECTED, "ghosts"}
        assert (found["kind"], found["file"]) == ("unknown", path.name)
        assert found["error"].startswith(f"{problem}: ")


def test_a_cut_recording_still_tells_its_header(forge, tmp_path: Path) -> None:
    data = forge.recording_file()
    found = inspect_file(put(tmp_path, "a.Replay.Gbx", data[: len(data) // 2]))
    assert found["error"].startswith("TruncatedError: ")
    assert (found["kind"], found["map_uid"], found["race_time_ms"]) == ("recording", forge.MAP_UID, 300)
