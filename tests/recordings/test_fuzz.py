"""Damaged files: whatever the damage, a named error or a result, with bounded work and memory."""

import contextlib

import numpy as np
import pytest

from rulka.recordings.errors import RecordingError
from rulka.recordings.header import parse_header
from rulka.recordings.reader import parse_map, parse_recording, read_container
from tests.recordings.conftest import little_memory, little_work

MAX_BYTES_A_FILE, NUM_MEASURED = 400_000_000, 60
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        place = int(rng.integers(0, len(changed)))
        kind = int(rng.integers(0, 5))
        if kind == 0:
            changed[place] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            changed[place] = int(rng.choice(INTERESTING))
        elif kind == 2:
            changed[place : place + 4] = int(rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000])).to_bytes(4, "little")
        elif kind == 3:
            del changed[place : place + int(rng.integers(1, 9))]
        else:
            del changed[place:]
        if not changed:
            return b""
    return bytes(changed)


def either(data: bytes) -> object:
    """Reads a recording and its map, or a map."""
    try:
        parse_header(read_container(data, header_only=True))
        recording = parse_recording(data)
    except RecordingError:
        return parse_map(data)
    return parse_map(recording.map_data) if recording.map_data else recording


def both_ways(forge, files: list[bytes]) -> list[bytes]:
    """Also with their bodies stored plainly, so that the damage reaches the structures and not the compression."""
    opened = [(read_container(data), data) for data in files]
    return [
        stored
        for found, data in opened
        for stored in (data, forge.gbx(found.class_id, found.header, found.body, compression="U"))
    ]


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("seed", "kind"), [(1, "recordings"), (2, "maps"), (3, "real")])
def test_damage_is_a_named_error_or_a_result(
    forge, request: pytest.FixtureRequest, seed: int, kind: str, count: int
) -> None:
    """Files made by hand, and real ones of every generation; anything but a named error escapes."""
    if kind == "real":
        files = [file.read_bytes() for file in sorted(request.getfixturevalue("corpus").glob("*.Gbx"))]
    else:
        files = [forge.recording_file(num_ghosts=2)] if kind == "recordings" else [forge.map_file()]
    files, rng = both_ways(forge, files), np.random.default_rng(seed)
    for data in files:  # compiles all kernels
        with contextlib.suppress(RecordingError):
            either(data)
    for number in range(count):
        data = mutate(files[number % len(files)], rng)
        memory = little_memory(MAX_BYTES_A_FILE) if number < NUM_MEASURED else contextlib.nullcontext()
        with contextlib.suppress(RecordingError), little_work(), memory:
            either(data)
