import numpy as np
import pytest
from lzallright import LZOCompressor, LZOError

from rulka.recordings.errors import DamagedError
from rulka.recordings.lzo import decompress
from tests.recordings.conftest import little_memory

END = bytes([0x11, 0, 0])


def test_streams_by_hand() -> None:
    rows = (
        (bytes([17 + 5]) + b"hello" + END, b"hello"),
        # t = 1 with nothing before: a run of 1 + 3 literals
        (bytes([1]) + b"abcd" + END, b"abcd"),
        # 17 + 3 literals, then t = 64 + (2 << 2): length 64 >> 5 + 1 = 3, distance 1 + 2 + 0 = 3: "abc" again
        (bytes([17 + 3]) + b"abc" + bytes([64 + (2 << 2), 0]) + END, b"abcabc"),
        # distance 1 and length 5 (t = 128): the last byte five times, overlapping itself
        (bytes([17 + 1]) + b"x" + bytes([128, 0]) + END, b"x" + b"x" * 5),
        # one trailing literal: t & 3 = 1
        (bytes([17 + 3]) + b"abc" + bytes([64 + (2 << 2) + 1, 0]) + b"!" + END, b"abcabc!"),
        # t = 32 + 4: length 6, distance 1 + (word >> 2) with word = 2 << 2
        (bytes([17 + 3]) + b"abc" + bytes([32 + 4, 2 << 2, 0]) + END, b"abcabcabc"),
        # t = 32: length 33 + extension 1 = 34
        (bytes([17 + 1]) + b"x" + bytes([32, 1, 0, 0]) + END, b"x" * 35),
        # t = 32 and a zero byte: 33 + 255 + 1 = 289
        (bytes([17 + 1]) + b"x" + bytes([32, 0, 1, 0, 0]) + END, b"x" * 290),
        # t = 0 and nothing before: 18 + 1 literals; with a zero byte 18 + 255 + 1
        (bytes([0, 1]) + bytes(19) + END, bytes(19)),
        (bytes([0, 0, 1]) + bytes(274) + END, bytes(274)),
        # after three literals t < 16 is a match of length 2, distance 1 + (t >> 2) + (next << 2) = 1 + 1
        (bytes([17 + 3]) + b"abc" + bytes([4, 0]) + END, b"abcbc"),
    )
    for stream, expected in rows:
        assert decompress(stream, len(expected)) == expected


def test_damaged_streams() -> None:
    rows = (
        (b"", 0, "ends in the middle"),
        (bytes([17 + 5]) + b"hel", 5, "ends in the middle"),
        (bytes([17 + 5]) + b"hello", 5, "ends in the middle"),  # no end mark
        (bytes([17 + 5]) + b"hello" + END, 4, "more than the stated size"),
        (bytes([17 + 5]) + b"hello" + END, 6, "5 bytes instead of the stated 6"),
        (bytes([17 + 1]) + b"x" + bytes([64 + (7 << 2), 9]) + END, 4, "before its start"),
        (bytes([17 + 1]) + b"x" + bytes([32]) + bytes(1000), 5, "ends in the middle"),
        (bytes([17 + 4]) + b"abcd" + END + b"x", 4, "end mark"),
    )
    for stream, size, problem in rows:
        with pytest.raises(DamagedError, match=problem):
            decompress(stream, size)


def test_what_is_counted_is_what_lzallright_writes(rng: np.random.Generator) -> None:
    """Of random bytes and of damaged streams: the bound holds only where both read a stream alike."""
    num_whole = 0
    for number in range(4000):
        stream = bytearray(rng.integers(0, 256, int(rng.integers(0, 60))).astype(np.uint8).tobytes() + END)
        if number % 2:
            words = rng.integers(0, 2 + number % 7, int(rng.integers(1, 3000))).astype(np.uint8).tobytes()
            stream = bytearray(LZOCompressor().compress(words))
            for place in rng.integers(0, len(stream), number % 3):
                stream[place] = int(rng.integers(0, 256))
        try:
            expected = LZOCompressor.decompress(bytes(stream))
        except LZOError:
            with pytest.raises(DamagedError):
                decompress(bytes(stream), 1000)
            continue
        assert decompress(bytes(stream), len(expected)) == expected
        num_whole += 1
    assert num_whole > 1000


def test_a_stream_for_far_more_than_the_stated_size_takes_no_memory() -> None:
    """A megabyte that stands for 255."""
    stream = bytes([17 + 1]) + b"x" + bytes([32]) + bytes(1_000_000) + bytes([1, 0, 0]) + END
    decompress(bytes([17 + 1]) + b"x" + END, 1)
    with little_memory(1_000_000), pytest.raises(DamagedError, match="more than the stated size"):
        decompress(stream, 1000)


def test_a_repeat_from_far_back(rng: np.random.Generator) -> None:
    """From 16 kB on, distances have a code of their own."""
    word, between = (rng.integers(0, 256, size).astype(np.uint8).tobytes() for size in (40, 20_000))
    assert decompress(LZOCompressor().compress(word + between + word), 20_080) == word + between + word
