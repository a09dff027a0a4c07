from pathlib import Path

import numpy as np
import pytest

from rulka.recordings.alignment import inputs_to_controls, require_inputs
from rulka.recordings.errors import (
    DamagedError,
    NoInputsError,
    UnreadableFileError,
    UnsupportedGenerationError,
    WrongKindError,
)
from rulka.recordings.inputs import TOOL_OFFSET_MS
from rulka.recordings.model import Ghost, InputEvent, RecordingHeader
from rulka.recordings.reader import complete_ghosts, parse_recording, read_header, read_map, read_recording


def test_a_recording_made_by_hand(forge, tmp_path: Path) -> None:
    path = tmp_path / "a.Replay.Gbx"
    path.write_bytes(forge.recording_file(num_ghosts=2))
    recording = read_recording(path)
    assert (recording.kind, recording.map_uid, recording.environment) == ("recording", forge.MAP_UID, "Stadium")
    assert len(recording.ghosts) == 2
    assert recording.notes == ()
    ghost = recording.ghosts[1]
    assert (ghost.login, ghost.nickname, ghost.vehicle) == ("driver", "Nick", "StadiumCar")
    assert (ghost.race_time_ms, ghost.respawns, ghost.stunts) == (300, 2, 7)
    assert ghost.checkpoint_times_ms == (150, 300)
    assert [event.name for event in ghost.events] == ["_FakeIsRaceRunning", "Accelerate", "SteerRight", "SteerRight"]
    assert [(event.time_ms, event.value) for event in ghost.events] == [(0, 1), (10, 1), (100, 1), (200, 0)]
    assert ghost.game_version == "Exe"
    assert ghost.samples is not None
    assert ghost.samples.time_ms.tolist() == [0, 100, 200, 300, 400]


def test_the_header_alone(forge, tmp_path: Path) -> None:
    """The body is garbage, which header reading never sees."""
    path = tmp_path / "a.Replay.Gbx"
    data = forge.recording_file()
    path.write_bytes(data[:-200] + bytes(200))
    header = read_header(path)
    assert (header.map_uid, header.race_time_ms, header.login, header.nickname) == (
        forge.MAP_UID,
        300,
        "driver",
        "Nick",
    )
    assert (header.respawns, header.stunts) == (2, 7)


def test_no_time_is_none(forge) -> None:
    recording = parse_recording(forge.recording_file(race_time=0xFFFFFFFF, header_time=0xFFFFFFFF))
    ghost = recording.ghosts[0]
    assert (recording.header.race_time_ms, ghost.race_time_ms, ghost.is_finished) == (None, None, False)
    assert ghost.checkpoint_times_ms == (150, None)


def test_inputs_of_tools_and_none(forge) -> None:
    """Stamps of tools are late by a constant; those before the start stay."""
    ghost = parse_recording(forge.recording_file(offset=TOOL_OFFSET_MS)).ghosts[0]
    assert [event.time_ms for event in ghost.events] == [0, 10, 100, 200]
    ghost = parse_recording(forge.recording_file(events=[(-2468, 1, 0), (0, 0, 1), (10, 1, 1)])).ghosts[0]
    assert [event.time_ms for event in require_inputs(ghost)] == [-2468, 0, 10]
    with pytest.raises(NoInputsError) as caught:
        require_inputs(parse_recording(forge.recording_file(events=[])).ghosts[0])
    assert caught.value.hint


def beside(forge, **recording: object):
    """A recording whose ghosts hold no inputs: those of the games before United stand behind them."""
    ids = forge.Ids()
    ids.is_new = False
    listed = forge.events_payload(ids, ["Accelerate", "SteerRight"], [(10, 0, 1), (100, 1, 1), (200, 1, 0)])
    chunk = forge.chunk(0x0309300D, forge.u32(1) + listed)
    return parse_recording(forge.recording_file(events=[], tail=chunk + forge.u32(forge.END), **recording))


def test_inputs_beside_the_ghost_are_its_own(forge) -> None:
    ghost = beside(forge).ghosts[0]
    assert [tuple(event) for event in ghost.events] == [
        (10, "Accelerate", 1),
        (100, "SteerRight", 1),
        (200, "SteerRight", 0),
    ]
    assert ghost.num_inputs == 3
    assert len(require_inputs(ghost)) == 3
    assert "beside" in ghost.notes[0]
    np.testing.assert_array_equal(inputs_to_controls(ghost, 30)[[9, 10, 19, 20], 0], [0, 1, 1, 0])


def test_of_several_ghosts_the_one_that_drove_the_time_of_the_recording_has_the_inputs(forge) -> None:
    fast, slow = Ghost(race_time_ms=300), Ghost(race_time_ms=400)
    events = (InputEvent(0, "Accelerate", 1),)
    complete_ghosts([slow, fast], events, RecordingHeader("recording", race_time_ms=300))
    assert (fast.events, slow.events) == (events, ())
    unknown = [Ghost(), Ghost()]
    complete_ghosts(unknown, events, RecordingHeader("recording"))
    assert [ghost.events for ghost in unknown] == [events, ()]


def test_unknown_chunks_are_passed_or_named(forge) -> None:
    extra = forge.skippable(0x030920AA, b"anything at all")
    assert parse_recording(forge.recording_file(extra=extra)).ghosts[0].login == "driver"
    with pytest.raises(UnsupportedGenerationError, match="0x030920AA"):
        parse_recording(forge.recording_file(extra=forge.chunk(0x030920AA, b"....")))
    with pytest.raises(DamagedError):
        parse_recording(forge.recording_file(tail=b""))  # the record has no end mark


def test_a_recording_without_known_ghosts_names_its_map(forge) -> None:
    track = forge.map_file()
    body = forge.chunk(0x24 << 24 | 0x03F002, forge.u32(len(track)) + track) + forge.chunk(0x2403F003, forge.u32(5))
    with pytest.raises(UnsupportedGenerationError, match="0x03093003") as caught:
        parse_recording(forge.gbx(0x2403F000, {}, body))
    assert caught.value.map_uid == forge.MAP_UID


def test_samples_of_an_unknown_version_are_noted(forge) -> None:
    ids = forge.Ids()
    strange = forge.samples_chunk([bytes(61)] * 3, version=5)
    ghost = forge.u32(1, 0x03092000) + strange + forge.chunk(0x0309200F, forge.text("driver")) + forge.u32(forge.END)
    body = forge.chunk(0x03093014, forge.u32(10, 1) + ghost + forge.u32(0, 0)) + forge.u32(forge.END)
    assert ids.is_new
    found = parse_recording(forge.gbx(0x03093000, {}, body)).ghosts[0]
    assert found.samples is None
    assert "version 5" in found.notes[0]


def test_a_driver_of_a_newer_game_is_read_as_of_the_newest_known(forge) -> None:
    seen = forge.u32(10, 0) + forge.Ids()("CarSport", "", "") + bytes(12) + forge.u32(0, 0)
    seen += forge.text("Nick") + 2 * forge.text("") + bytes(4) + forge.u32(0)
    body = forge.chunk(0x03092000, seen) + forge.u32(forge.END)
    (ghost,) = parse_recording(forge.gbx(0x03092000, {}, body)).ghosts
    assert (ghost.vehicle, ghost.nickname) == ("CarSport", "Nick")
    assert "has version 10; it is read as version 9" in ghost.notes[0]


def test_a_shared_node_is_read_once(forge) -> None:
    ghost = forge.u32(1, 0x03092000) + forge.ghost_body(forge.Ids())
    body = forge.chunk(0x03093014, forge.u32(10, 2) + ghost + forge.u32(1) + forge.u32(0, 0)) + forge.u32(forge.END)
    first, second = parse_recording(forge.gbx(0x03093000, {}, body)).ghosts
    assert first is second


def test_wrong_kinds_and_missing_files(forge, tmp_path: Path) -> None:
    path = tmp_path / "a.Challenge.Gbx"
    path.write_bytes(forge.map_file())
    with pytest.raises(WrongKindError, match="this is a map"):
        read_recording(path)
    path.write_bytes(forge.recording_file())
    with pytest.raises(WrongKindError, match="this is a recording"):
        read_map(path)
    for unreadable in (tmp_path / "none.Gbx", tmp_path):
        with pytest.raises(UnreadableFileError):
            read_recording(unreadable)
