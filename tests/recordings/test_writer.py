"""Written recordings are read back equal, by the reader that real ones are read with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lzallright import LZOCompressor
from scipy.spatial.transform import Rotation

from rulka.recordings.errors import DamagedError, RecordingError
from rulka.recordings.lzo import decompress
from rulka.recordings.model import Ghost, Recording
from rulka.recordings.reader import parse_recording, read_header, read_recording
from tests.recordings.gbx_writer import UnwritableError
from tests.recordings.writer import encode_recording, write_recording

FIELDS = (
    "login", "nickname", "vehicle", "validated_map_uid", "race_time_ms", "respawns", "stunts", "checkpoint_times_ms",
    "checkpoint_stunts", "events", "num_inputs", "stamp_offset_ms", "game_version",
)  # fmt: skip


def assert_same_ghost(found: Ghost, ghost: Ghost) -> None:
    for name in FIELDS:
        assert getattr(found, name) == getattr(ghost, name), name
    assert (found.samples is None) == (ghost.samples is None)
    if found.samples is None or ghost.samples is None:
        return
    a, b = found.samples, ghost.samples
    np.testing.assert_array_equal(a.time_ms, b.time_ms)
    np.testing.assert_array_equal(a.position, b.position)
    np.testing.assert_allclose(
        Rotation.from_quat(a.quaternion, scalar_first=True).as_matrix(),
        Rotation.from_quat(b.quaternion, scalar_first=True).as_matrix(),
        atol=3e-4,
    )
    for first, second in ((a.velocity, b.velocity), (a.angular_velocity, b.angular_velocity)):
        size = np.linalg.norm(second, axis=1)
        assert (np.linalg.norm(first - second, axis=1) <= 0.016 * size + 1e-6).all()
    assert a.vehicle is not None
    assert b.vehicle is not None
    steps = {"forward_speed_mps": 0.09, "side_speed_mps": 0.016, "rpm": 0.24, "steer": 0.004}
    for name in ("forward_speed_mps", "side_speed_mps", "rpm", "steer", "gas", "brake", "turbo", "dirt"):
        step = steps.get(name, 0.002)
        np.testing.assert_allclose(getattr(a.vehicle, name), getattr(b.vehicle, name), atol=step, err_msg=name)
    np.testing.assert_allclose(a.vehicle.damper_m, b.vehicle.damper_m, atol=0.008)
    for name in ("has_contact", "is_sliding", "material"):
        np.testing.assert_array_equal(getattr(a.vehicle, name), getattr(b.vehicle, name), err_msg=name)


def test_a_recording_by_hand_comes_back(forge, tmp_path: Path) -> None:
    recording = parse_recording(forge.recording_file(num_ghosts=2, offset=65535))
    path = tmp_path / "out.Replay.Gbx"
    write_recording(path, recording)
    found = read_recording(path)
    assert (found.map_uid, found.environment, found.map_author) == (forge.MAP_UID, "Stadium", "author")
    assert (found.map_data, found.notes, len(found.ghosts)) == (recording.map_data, (), 2)
    for ghost, original in zip(found.ghosts, recording.ghosts, strict=True):
        assert_same_ghost(ghost, original)
    header = read_header(path)
    assert (header.kind, header.map_uid, header.race_time_ms) == ("recording", forge.MAP_UID, 300)
    assert (header.login, header.nickname, header.is_validable) == ("driver", "Nick", True)
    with pytest.raises(FileExistsError):
        write_recording(path, recording)


def test_writing_twice_gives_the_same_bytes(forge) -> None:
    """What the format loses is lost the first time."""
    once = encode_recording(parse_recording(forge.recording_file()))
    assert encode_recording(parse_recording(once)) == once


def test_an_unfinished_run_without_inputs_and_samples(forge) -> None:
    ghost = Ghost(login="x", checkpoint_times_ms=(100, None))
    recording = replace(parse_recording(forge.recording_file()), ghosts=(ghost,), map_data=b"")
    found = parse_recording(encode_recording(recording))
    assert_same_ghost(found.ghosts[0], replace(ghost, checkpoint_stunts=(0, 0)))
    assert not found.header.is_validable


def test_what_cannot_be_written_is_named(forge) -> None:
    recording = parse_recording(forge.recording_file())
    samples = recording.ghosts[0].samples
    assert samples is not None
    bad = [
        replace(samples, time_ms=samples.time_ms + 50),
        replace(samples, vehicle=None),
        replace(samples, position=samples.position * np.float32(np.nan)),
    ]
    for one in bad:
        with pytest.raises(UnwritableError):
            encode_recording(replace(recording, ghosts=(replace(recording.ghosts[0], samples=one),)))
    with pytest.raises(UnwritableError, match="without a ghost"):
        encode_recording(replace(recording, ghosts=()))


def test_quotes_in_names_do_not_break_the_header(forge) -> None:
    recording = parse_recording(forge.recording_file())
    ghost = replace(recording.ghosts[0], game_version='a "b" <c>', nickname="ünï $f00")
    header = parse_recording(encode_recording(replace(recording, ghosts=(ghost,)))).header
    assert header.xml["header.exever"] == 'a "b" <c>'
    assert (header.xml["times.best"], header.nickname) == ("300", "ünï $f00")


def test_real_recordings_come_back(corpus: Path) -> None:
    """Every one whose samples are those of a car, whatever the game it is from."""
    num_checked = 0
    for file in sorted(corpus.glob("*.Gbx")):
        try:
            recording: Recording = read_recording(file)
            data = encode_recording(recording)
        except RecordingError:
            continue
        found = parse_recording(data)
        own = [ghost for ghost in recording.ghosts if not ghost.is_from_clip]
        assert len(found.ghosts) == len(own)
        for ghost, original in zip(found.ghosts, own, strict=True):
            stunts = original.checkpoint_stunts or (0,) * len(original.checkpoint_times_ms)
            num_inputs = len(original.events)
            assert_same_ghost(ghost, replace(original, checkpoint_stunts=stunts, num_inputs=num_inputs))
        num_checked += 1
    assert num_checked >= 20


SIZES = (0, 1, 3, 4, 17, 18, 19, 21, 237, 238, 239, 255, 256, 273, 274, 528, 5000, 70_000)
"""At the edges of every length code."""


@pytest.mark.parametrize("kind", ["noise", "zeros", "words", "far"])
def test_compression_comes_back(kind: str) -> None:
    """`far` repeats at distances around the edges of the distance codes."""
    wrong = {}
    for size in SIZES:
        data = some_bytes(kind, size, np.random.default_rng(0))
        packed = LZOCompressor().compress(data)
        if decompress(packed, len(data)) != data:
            wrong[size] = "other bytes come back"
        elif len(packed) > len(data) + len(data) // 255 + 16:
            wrong[size] = f"{len(packed)} bytes for {len(data)}"
        elif data and not is_refused(packed[:-1], len(data)):
            wrong[size] = "cut short, it is taken for whole"
    assert not wrong


def is_refused(packed: bytes, size: int) -> bool:
    try:
        decompress(packed, size)
    except DamagedError:
        return True
    return False


def some_bytes(kind: str, size: int, rng: np.random.Generator) -> bytes:
    if kind == "noise":
        return rng.integers(0, 256, size, dtype=np.uint8).tobytes()
    if kind == "zeros":
        return bytes(size)
    if kind == "words":
        words = [rng.integers(0, 256, length, dtype=np.uint8).tobytes() for length in (1, 2, 3, 5, 9, 34)]
        return b"".join(words[index] for index in rng.integers(0, len(words), size // 4 + 1))[:size]
    word = rng.integers(0, 256, 40, dtype=np.uint8).tobytes()
    gaps = (2007, 2008, 2009, 16343, 16344, 16345, 49110, 49111, 49112)
    return b"".join(word + rng.integers(0, 256, gap, dtype=np.uint8).tobytes() for gap in gaps)[: 3 * size]
