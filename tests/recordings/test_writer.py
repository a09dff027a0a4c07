"""Races written as replays of Forever, read back by our own reader and compared with files of the game."""

from pathlib import Path

import numpy as np
import pytest

from rulka.contracts.observation import CAR
from rulka.datasets.formats.races import Race
from rulka.datasets.from_recordings import race_of_ghost
from rulka.datasets.replay import find_map, write_replay
from rulka.recordings.container import REPLAY
from rulka.recordings.reader import parse_recording, read_recording
from rulka.recordings.stream import END_OF_NODE, Cursor


def chunks_of(data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Returns the ids of all chunks of a recording in their order, and whether each may be passed over."""
    found = []

    def noted(cursor: Cursor) -> tuple[int, bool]:
        found.append(original(cursor))
        return found[-1]

    original = Cursor.chunk_head
    with monkeypatch.context() as patch:
        patch.setattr(Cursor, "chunk_head", noted)
        parse_recording(data)
    return found


def race_in(file: Path) -> Race:
    recording = read_recording(file)
    return race_of_ghost(recording.ghosts[0], file.name, recording.map_uid)


REAL = ("TMNF_example_replay_1", "TMNF_B13_Obstacle_a_a_00_24_93", "TMUF_StadiumA2_bigbang1112BIGBANG1112_00_15_67")
"""Driven with keys, with a pad, and in United."""


def test_a_race_of_the_game_is_written_as_the_game_does(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same chunks in the same order, and the same container; inputs, times and the path stay to the bit."""
    for name in REAL:
        file, written = corpus / f"{name}.Replay.Gbx", tmp_path / f"{name}.Replay.Gbx"
        race = race_in(file)
        write_replay(written, race, find_map(race.map_uid, file))
        ours, theirs = written.read_bytes(), file.read_bytes()
        chunks = chunks_of(theirs, monkeypatch)
        without_clip = chunks[: chunks.index((REPLAY | 0x015, False)) + 1]
        assert chunks_of(ours, monkeypatch) == [*without_clip, (END_OF_NODE, False)]
        assert ours[:9] == theirs[:9] == b"GBX\x06\x00BUCR"
        assert parse_recording(ours).map_data == parse_recording(theirs).map_data
        again = race_in(written)
        assert (again.race_time_ms, again.checkpoint_times_ms) == (race.race_time_ms, race.checkpoint_times_ms)
        assert np.array_equal(again.controls, race.controls)
        assert np.array_equal(again.state_time_ms, race.state_time_ms)
        assert np.array_equal(again.state[:, CAR["position"]], race.state[:, CAR["position"]])
        np.testing.assert_allclose(again.state[:, CAR["rotation"]], race.state[:, CAR["rotation"]], atol=3e-4)
