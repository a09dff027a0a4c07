"""Races written as replays of Forever, read back by our own reader and compared with files of the game."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.datasets.formats.races import Race
from rulka.datasets.from_recordings import race_of_ghost
from rulka.datasets.replay import find_map, write_replay
from rulka.machine.errors import UserError
from rulka.recordings.alignment import inputs_to_controls
from rulka.recordings.car_rows import car_rows
from rulka.recordings.container import REPLAY
from rulka.recordings.errors import NoSamplesError
from rulka.recordings.reader import parse_recording, read_recording
from rulka.recordings.stream import END_OF_NODE, Cursor, Ident
from rulka.recordings.writer import replay_bytes

IDENT = Ident("AbCd", "Stadium", "author")
FINISH_MS = 950
GHOST_TOLERANCE = {"position": 0.0, "rotation": 3e-4, "velocity": 0.15, "damper": 0.008, "rpm": 0.25}


@dataclass
class Driven:
    """What a race holds: a second on a straight, a bit more than its 950 ms."""

    controls: NDArray[np.float32]
    state_time_ms: NDArray[np.int64]
    state: NDArray[np.float32]

    def replay(self, map_data: bytes = b"") -> bytes:
        times = (500, FINISH_MS)
        return replay_bytes(map_ident=IDENT, map_data=map_data, player="Nick", checkpoint_times_ms=times, **vars(self))


@pytest.fixture
def driven(rng: np.random.Generator) -> Driven:
    time_ms = np.arange(0, 1050, 50)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"]] = np.stack([0 * time_ms, 0 * time_ms, time_ms / 100], axis=1)
    state[:, CAR["rotation"]] = np.eye(3).ravel()
    state[:, CAR["velocity"]], state[:, CAR["rpm"]], state[:, CAR["damper"]] = (0.0, 0.0, 10.0), 3000.0, 0.02
    state[:, CAR["has_contact"]], state[:, CAR["material"]] = 1.0, 16.0
    controls = np.stack([rng.integers(-1, 2, 100), *rng.integers(0, 2, (2, 100))], axis=1).astype(np.float32)
    return Driven(controls, time_ms, state)


def test_a_race_reads_back_as_it_was(driven: Driven, rng: np.random.Generator, forge) -> None:
    """With keys and with a steering wheel; from full left to full right within a tick, too."""
    analog = driven.controls.copy()
    analog[:, 0] = (rng.integers(-65536, 65537, 100) / 65536).astype(np.float32)
    for controls in (driven.controls, analog):
        driven.controls = controls
        recording = parse_recording(driven.replay(forge.map_file()))
        (ghost,) = recording.ghosts
        assert (recording.map_uid, recording.environment, recording.map_author) == IDENT
        assert (recording.map_data, recording.notes) == (forge.map_file(), ())
        assert (ghost.race_time_ms, ghost.checkpoint_times_ms, ghost.respawns) == (FINISH_MS, (500, FINISH_MS), 0)
        assert (ghost.nickname, ghost.vehicle, ghost.game_version) == ("Nick", "StadiumCar", "Rulka")
        assert recording.header.race_time_ms == FINISH_MS
        assert recording.header.xml["times.validable"] == "1"
        num_ticks = FINISH_MS // TICK_MS
        assert np.array_equal(inputs_to_controls(ghost, num_ticks), controls[:num_ticks])
        assert [ghost.events[place].name for place in (0, -1)] == ["_FakeIsRaceRunning", "_FakeFinishLine"]
        assert [event.time_ms for event in ghost.events] == sorted(event.time_ms for event in ghost.events)
        assert ghost.events[-1].time_ms == FINISH_MS
        time_ms, rows = car_rows(ghost)
        assert time_ms.tolist() == list(range(0, FINISH_MS + 100, 100))
        for name, tolerance in GHOST_TOLERANCE.items():
            np.testing.assert_allclose(rows[:, CAR[name]], driven.state[::2, CAR[name]], atol=tolerance, rtol=0)
        for name in ("has_contact", "is_sliding", "material"):
            assert np.array_equal(rows[:, CAR[name]], driven.state[::2, CAR[name]])


def test_what_the_format_cannot_hold_is_refused(driven: Driven) -> None:
    whole = driven.controls.copy()
    driven.controls[3, 1] = 0.5
    with pytest.raises(UserError, match="pressed in part"):
        driven.replay()
    driven.controls, driven.state, driven.state_time_ms = whole, driven.state[:0], driven.state_time_ms[:0]
    with pytest.raises(NoSamplesError):
        driven.replay()


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
