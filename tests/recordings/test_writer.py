"""Written recordings are read back equal, by the reader that real ones are read with."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from rulka.recordings.errors import RecordingError
from rulka.recordings.model import Ghost, Recording
from rulka.recordings.reader import parse_recording, read_header, read_recording
from tests.recordings.writer import encode_recording, write_recording

FIELDS = (
    "login", "nickname", "vehicle", "validated_map_uid", "race_time_ms", "respawns", "stunts", "checkpoint_times_ms",
    "events", "num_inputs", "stamp_offset_ms", "game_version",
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
    steps = {"forward_speed_mps": 0.09, "rpm": 0.24, "steer": 0.004, "gas": 0.002, "brake": 0.002}
    for name, step in steps.items():
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
    assert (header.login, header.nickname) == ("driver", "Nick")


def test_real_recordings_come_back(corpus: Path) -> None:
    """Every one whose samples are those of a car, whatever the game it is from."""
    num_checked = 0
    for file in sorted(corpus.glob("*.Gbx")):
        try:
            recording: Recording = read_recording(file)
            data = encode_recording(recording)
        except (RecordingError, AssertionError, struct.error):  # of a layout that is not written here
            continue
        found = parse_recording(data)
        own = [ghost for ghost in recording.ghosts if not ghost.is_from_clip]
        assert len(found.ghosts) == len(own)
        for ghost, original in zip(found.ghosts, own, strict=True):
            assert_same_ghost(ghost, replace(original, num_inputs=len(original.events)))
        num_checked += 1
    assert num_checked >= 20
