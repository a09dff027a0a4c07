"""Structural damage never passes for a whole file, and small files never take much.

Structural damage is: the file ends early, at any byte; a stated size or count is another; a compressed block is changed
(sample blocks carry a checksum) or its end is. A changed number or letter in a stored body is no structural damage:
the format has no checksum for it, and no reader can tell.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
import zlib
from types import FrameType

import numpy as np
import pytest

from rulka.recordings import stream
from rulka.recordings.container import read_container
from rulka.recordings.errors import DamagedError, RecordingError
from rulka.recordings.reader import parse_map, parse_recording
from rulka.recordings.stream import Cursor
from tests.recordings.conftest import little_memory, little_work

MAX_BYTES = 10 * (1 << 26)


def facts(value: object) -> object:
    """Everything in a result, in a form that can be compared."""
    if dataclasses.is_dataclass(value):
        return {field.name: facts(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return [facts(one) for one in value] if isinstance(value, (tuple, list)) else value


def stored_recording(forge) -> tuple[bytes, int]:
    """A recording whose body is not compressed, and where the body begins."""
    body = read_container(forge.recording_file(num_ghosts=2)).body
    data = forge.gbx(0x03093000, forge.replay_header(), body, compression="U")
    return data, len(data) - len(body)


def test_a_recording_cut_off_at_any_byte_is_an_error(forge) -> None:
    data, _ = stored_recording(forge)
    packed = forge.recording_file()
    for whole in (data, packed):
        for size in range(len(whole)):
            with pytest.raises(RecordingError):
                parse_recording(whole[:size])


def test_a_map_cut_off_before_its_blocks_end_is_an_error(forge) -> None:
    """Compressed at any byte; stored plainly up to the end mark, which follows the blocks."""
    packed = forge.map_file()
    stored = forge.gbx(0x03043000, {}, read_container(packed).body, compression="U")
    for whole in (packed, stored[:-4]):
        for size in range(len(whole)):
            with pytest.raises(RecordingError):
                parse_map(whole[:size])


def test_a_stated_size_or_count_that_is_another_does_not_pass(forge) -> None:
    """Every size in the body, found by watching the reader: the file is refused, or notes say what was not read."""
    data, start = stored_recording(forge)
    body = data[start:]
    places: set[int] = set()

    before = {Cursor.count.__code__: 0, Cursor.string.__code__: 0, Cursor.part.__code__: 4}

    def watch(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in before and (cursor := frame.f_locals["self"]).data == body:
            places.add(cursor.position - before[frame.f_code])

    sys.setprofile(watch)
    try:
        expected = parse_recording(data)
    finally:
        sys.setprofile(None)
    assert len(places) > 30
    for place in sorted(places):
        (size,) = struct.unpack_from("<I", body, place)
        for changed in {size + 1, size - 1, size + 100, 0x7FFFFFFF, 0xFFFFFFFF} - {-1}:
            damaged = bytearray(data)
            struct.pack_into("<I", damaged, start + place, changed)
            try:
                found = parse_recording(bytes(damaged))
            except RecordingError:
                continue
            notes = [*found.notes, *(note for ghost in found.ghosts for note in ghost.notes)]
            assert notes or facts(found) == facts(expected), (place, size, changed)


def test_a_changed_byte_in_a_block_of_samples_is_an_error(forge) -> None:
    data, _ = stored_recording(forge)
    first = data.find(b"\x78\x9c")
    size = struct.unpack_from("<I", data, first - 4)[0]
    for place in range(first, first + size):
        damaged = bytearray(data)
        damaged[place] ^= 0x11
        with pytest.raises(DamagedError):
            parse_recording(bytes(damaged))


def limited(parse, data: bytes) -> RecordingError:
    """Parses a file that must be refused, within the limits of work and memory."""
    with pytest.raises(RecordingError):
        parse(data)  # so that all kernels are compiled
    with pytest.raises(RecordingError) as caught, little_work():
        parse(data)
    with little_memory(MAX_BYTES), pytest.raises(RecordingError):
        parse(data)
    return caught.value


def test_many_blocks_that_each_are_within_the_limit(forge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty ghosts whose samples are four megabytes of nothing each; the limit is lowered to keep the test quick."""
    monkeypatch.setattr(stream, "MAX_SPENT_BYTES", 1 << 24)
    packed = zlib.compress(bytes(1 << 22))
    block = forge.chunk(0x0303F005, forge.u32(1 << 22, len(packed)) + packed) + forge.u32(forge.END)
    ghosts = b"".join(forge.u32(k + 1, 0x03092000) + block for k in range(40))
    body = forge.chunk(0x03093014, forge.u32(10, 40) + ghosts + forge.u32(0, 0)) + forge.u32(forge.END)
    error = limited(parse_recording, forge.gbx(0x03093000, {}, body))
    assert "together" in str(error)


def test_counts_that_the_bytes_could_hold_but_no_recording_does(forge) -> None:
    """Ten million empty references, checkpoints, events and skins: four bytes or so each."""
    many = 10_000_000
    empty = b"\xff" * (4 * many)
    files = [forge.chunk(0x03093014, forge.u32(10, many) + empty)]
    for identifier, start, item in ((0x0309200B, b"", 8), (0x03092019, forge.u32(1, 0, 0), 9), (0x03092017, b"", 5)):
        count = len(empty) // item
        ghost = forge.chunk(identifier, start + forge.u32(count) + empty)
        files.append(forge.chunk(0x03093014, forge.u32(10, 1, 1, 0x03092000) + ghost))
    for body in files:
        limited(parse_recording, forge.gbx(0x03093000, {}, body, compression="U"))


def test_endless_chunks_and_endless_nesting(forge) -> None:
    chunks = forge.skippable(0x03093FFF, b"") * 2_000_000
    assert "chunks" in str(limited(parse_recording, forge.gbx(0x03093000, {}, chunks, compression="U")))
    clip = b"".join(
        forge.u32(2 * k + 2, 0x03079000, 0x03079005, 10, 1, 2 * k + 3, 0x03078000, 0x03078001, 0, 10, 1)
        for k in range(500)
    )
    nested = parse_recording(forge.recording_file(tail=forge.chunk(0x03093015, clip)))
    assert "clip" in nested.notes[0]
    folders = forge.u32(1, 0) + (forge.u32(1) + forge.text("a")) * 2000
    limited(parse_recording, forge.gbx(0x03093000, {}, b"", references=folders))


def test_a_body_that_says_it_is_huge(forge) -> None:
    data = forge.gbx(0x03093000, {}, b"")
    start = data[: -len(forge.u32(0, 3)) - 3]
    for size in (1 << 27, 0xFFFFFFFF):
        limited(parse_recording, start + forge.u32(size, 2_000_000) + bytes(2_000_000))


def test_placeholders_of_a_map_without_end(forge) -> None:
    ids = forge.Ids()
    body = forge.map_start(ids, 6, 1) + ids("Hole") + bytes(4) + forge.u32(0xFFFFFFFF)
    hole = ids("Hole") + bytes(4) + forge.u32(0xFFFFFFFF)
    limited(parse_map, forge.gbx(0x03043000, {}, body + hole * 400_000, compression="U"))
