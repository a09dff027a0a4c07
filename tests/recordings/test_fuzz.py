"""Damaged files: whatever the damage, a named error or a result, with bounded work and memory."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rulka.recordings.errors import RecordingError
from rulka.recordings.header import parse_header
from rulka.recordings.reader import parse_map, parse_recording, read_container
from tests.recordings.conftest import little_memory, little_work

MAX_BYTES_A_FILE = 400_000_000
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
how_often = pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])


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


def hammer(files: list[bytes], parse: Callable[[bytes], object], seed: int, count: int) -> None:
    """Parses the files, so that all kernels are compiled, then mutations of them in turn.

    Anything but a named error escapes.
    """
    for data in files:
        with contextlib.suppress(RecordingError):
            parse(data)
    rng = np.random.default_rng(seed)
    for number in range(count):
        data = mutate(files[number % len(files)], rng)
        with contextlib.suppress(RecordingError), little_work():
            parse(data)


def both(data: bytes) -> object:
    parse_header(read_container(data, header_only=True))
    recording = parse_recording(data)
    return parse_map(recording.map_data) if recording.map_data else recording


@how_often
def test_damaged_recordings_made_by_hand(forge, count: int) -> None:
    """Stored bodies are mutated inside, where the structures are; compressed ones mostly break the compression."""
    packed = forge.recording_file(num_ghosts=2)
    body = read_container(packed).body
    stored = forge.gbx(0x03093000, forge.replay_header(), body, compression="U")
    both(stored)
    both(packed)
    hammer([stored, packed], both, seed=1, count=count)


@how_often
def test_damaged_maps_made_by_hand(forge, count: int) -> None:
    packed = forge.map_file()
    stored = forge.gbx(0x03043000, {}, read_container(packed).body, compression="U")
    hammer([stored, packed], parse_map, seed=2, count=count)


@how_often
def test_damaged_real_recordings(forge, corpus: Path, count: int) -> None:
    """Their bodies stored plainly, so that the damage reaches every structure of every generation."""
    files = []
    for file in sorted(corpus.glob("*.Gbx")):
        data = file.read_bytes()
        container = read_container(data)
        files += [data, forge.gbx(container.class_id, container.header, container.body, compression="U")]

    def parse(data: bytes) -> object:
        try:
            return both(data)
        except RecordingError:
            return parse_map(data)

    hammer(files, parse, seed=3, count=count)


def test_memory_stays_bounded(forge) -> None:
    rng = np.random.default_rng(4)
    data = forge.recording_file(num_ghosts=2)
    stored = forge.gbx(0x03093000, forge.replay_header(), read_container(data).body, compression="U")
    for _ in range(60):
        with little_memory(MAX_BYTES_A_FILE), contextlib.suppress(RecordingError):
            parse_recording(mutate(stored, rng))
