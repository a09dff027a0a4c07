"""Gbx files that are forged or written, read, written anew and read again, whatever they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR, NUM_CAR_FIELDS
from rulka.machine.errors import UserError
from rulka.recordings.alignment import inputs_to_controls
from rulka.recordings.car_rows import car_rows
from rulka.recordings.container import read_container
from rulka.recordings.errors import NoSamplesError
from rulka.recordings.reader import parse_map, parse_recording
from rulka.recordings.stream import Cursor, Ident
from rulka.recordings.writer import Ids, gbx, replay_bytes, string
from tests.recordings import forge
from tests.recordings.test_damage import facts

TEXTS = st.text("aZ09 _$<&\"'\n\0äß€漢🏁", max_size=12)  # tables of all of Unicode take seconds to make
NAMES = st.one_of(TEXTS, st.integers(0, 1 << 31).map(str))
TIMES = st.integers(1, 3_600_000)
COMPRESSIONS = st.sampled_from(["C", "U"])


def written_anew(data: bytes, compression: str) -> bytes:
    found = read_container(data)
    return gbx(found.class_id, found.header, found.body, num_nodes=9, compression=compression)


@given(st.lists(NAMES, max_size=8), st.lists(TEXTS, max_size=4))
def test_names_and_texts(names: list[str], texts: list[str]) -> None:
    """A name that comes again is a reference to where it came first."""
    ids = Ids()
    data = ids(*names, *names) + b"".join(map(string, texts))
    cursor = Cursor(data)
    assert [cursor.id() for _ in range(2 * len(names))] == [*names, *names]
    assert [cursor.string() for _ in texts] == texts
    assert cursor.remaining == 0


@given(
    race_time=TIMES,
    events=st.lists(
        st.tuples(st.integers(-500, 3_600_000), st.integers(0, 4), st.integers(0, (1 << 32) - 1)), max_size=9
    ),
    num_ghosts=st.integers(1, 3),
    uid=TEXTS.filter(bool),
    compression=COMPRESSIONS,
)
def test_forged_recordings(
    race_time: int, events: list[tuple[int, int, int]], num_ghosts: int, uid: str, compression: str
) -> None:
    events = [(time, 1 + name % 4, value) for time, name, value in events]  # the race's start is another test's
    data = forge.recording_file(
        num_ghosts=num_ghosts, header_time=race_time, uid=uid, race_time=race_time, events=events
    )
    found = parse_recording(data)
    names = ["_FakeIsRaceRunning", "Accelerate", "SteerLeft", "SteerRight", "Steer"]
    for ghost in found.ghosts:
        assert [*ghost.events] == [(time, names[name], value) for time, name, value in events]
        assert (ghost.race_time_ms, ghost.checkpoint_times_ms[-1]) == (race_time, race_time)
    assert (found.map_uid, len(found.ghosts), found.header.race_time_ms) == (uid, num_ghosts, race_time)
    assert found.map_data == forge.map_file(uid=uid)
    assert facts(parse_recording(written_anew(data, compression))) == facts(found)


@given(
    name=TEXTS.filter(bool),
    uid=TEXTS.filter(bool),
    medals_ms=st.tuples(*[st.integers(1, (1 << 31) - 1)] * 4),
    compression=COMPRESSIONS,
)
def test_forged_maps(name: str, uid: str, medals_ms: tuple[int, int, int, int], compression: str) -> None:
    data = forge.map_file(block_name=name, uid=uid, medals_ms=medals_ms)
    found = parse_map(data)
    assert (found.header.map_uid, found.header.medals_ms) == (uid, medals_ms)
    assert [block.name for block in found.blocks] == [name, "StadiumCheckpoint"]
    assert facts(parse_map(written_anew(data, compression))) == facts(found)


def random_drive(finish_ms: int, is_analog: bool, seed: int) -> dict[str, NDArray]:
    """Controls of each tick, and states every tenth of a second of a car that tumbles."""
    rng = np.random.default_rng(seed)
    num_ticks, num_states = math.ceil(finish_ms / TICK_MS), math.ceil(finish_ms / 100) + 1
    steer = rng.integers(-65536, 65537, num_ticks) / 65536 if is_analog else rng.integers(-1, 2, num_ticks)
    state = np.zeros((num_states, NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"]] = rng.uniform(-1000, 1000, (num_states, 3))
    state[:, CAR["rotation"]] = Rotation.random(num_states, rng).as_matrix().reshape(-1, 9)
    state[:, CAR["velocity"]] = rng.normal(size=(num_states, 3)) * 10.0 ** rng.uniform(-3, 2)
    state[:, CAR["rpm"]] = rng.uniform(0, 11_000, (num_states, 1))
    state[:, CAR["damper"]] = rng.uniform(0.005, 0.15, (num_states, 4))
    for flag in ("has_contact", "is_sliding"):
        state[:, CAR[flag]] = rng.integers(0, 2, (num_states, 4))
    state[:, CAR["material"]] = rng.integers(0, 256, (num_states, 4))
    return {
        "controls": np.stack([steer, *rng.integers(0, 2, (2, num_ticks))], axis=1).astype(np.float32),
        "state_time_ms": 100 * np.arange(num_states),
        "state": state,
    }


@given(
    ident=st.builds(Ident, TEXTS.filter(bool), TEXTS, TEXTS),
    player=TEXTS,
    finish_ms=st.integers(1, 1500),
    split=st.floats(0.0, 1.0),
    is_analog=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_written_races(ident: Ident, player: str, finish_ms: int, split: float, is_analog: bool, seed: int) -> None:
    """Exact, or as precise as `rulka.recordings.writer` says; and what was read and is written anew is the same."""
    drive, passed_ms = random_drive(finish_ms, is_analog, seed), (max(1, int(split * finish_ms)), finish_ms)
    for rotation, direction, speed in ((3e-4, 0.015, 6e-4), (1e-6, 1e-5, 1e-5)):
        data = replay_bytes(
            map_ident=ident, map_data=forge.map_file(), player=player, checkpoint_times_ms=passed_ms, **drive
        )
        recording = parse_recording(data)
        (ghost,) = recording.ghosts
        assert (recording.map_uid, recording.header.environment, recording.header.map_author) == ident
        assert (recording.map_data, recording.notes, ghost.nickname) == (forge.map_file(), (), player)
        assert (ghost.race_time_ms, ghost.checkpoint_times_ms, ghost.respawns) == (finish_ms, passed_ms, 0)
        assert (ghost.vehicle, ghost.game_version) == ("StadiumCar", "Rulka")
        assert (recording.header.race_time_ms, recording.header.xml["times.validable"]) == (finish_ms, "1")
        assert [ghost.events[place].name for place in (0, -1)] == ["_FakeIsRaceRunning", "_FakeFinishLine"]
        assert [event.time_ms for event in ghost.events] == sorted(event.time_ms for event in ghost.events)
        assert ghost.events[-1].time_ms == finish_ms
        controls, (time_ms, state) = inputs_to_controls(ghost, len(drive["controls"])), car_rows(ghost)
        assert np.array_equal(controls, drive["controls"])
        assert np.array_equal(time_ms, drive["state_time_ms"])
        assert ghost.samples is not None
        state[:, CAR["velocity"]] = ghost.samples.velocity  # as stored: rows make a better guess at the direction
        for name in ("position", "has_contact", "is_sliding", "material"):
            assert np.array_equal(state[:, CAR[name]], drive["state"][:, CAR[name]]), name
        for name, tolerance in (("rotation", rotation), ("rpm", 0.25), ("damper", 0.008)):
            np.testing.assert_allclose(state[:, CAR[name]], drive["state"][:, CAR[name]], atol=tolerance, rtol=0)
        now, before = (each[:, CAR["velocity"]].astype(float) for each in (state, drive["state"]))
        lengths = np.linalg.norm(now, axis=1), np.linalg.norm(before, axis=1)
        np.testing.assert_allclose(*lengths, rtol=speed)
        angle = np.arccos(np.clip((now * before).sum(axis=1) / np.prod(lengths, axis=0), -1.0, 1.0))
        assert angle.max() < max(direction, 1e-3)
        drive = {"controls": controls, "state_time_ms": time_ms, "state": state}


def test_what_the_format_cannot_hold_is_refused() -> None:
    whole = random_drive(950, is_analog=False, seed=0)
    pressed = whole["controls"].copy()
    pressed[3, 1] = 0.5
    without_states = {name: whole[name][:0] for name in ("state", "state_time_ms")}
    for changed, error, message in (
        ({"controls": pressed}, UserError, "pressed in part"),
        (without_states, NoSamplesError, "the last sample is at None ms"),
    ):
        with pytest.raises(error, match=message):
            replay_bytes(
                map_ident=Ident("a", "b", "c"),
                map_data=b"",
                player="",
                checkpoint_times_ms=(950,),
                **whole | changed,
            )
