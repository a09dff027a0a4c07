import numpy as np
import pytest
from lzallright import LZOCompressor

from rulka.recordings.errors import DamagedError
from rulka.recordings.lzo import decompress
from tests.recordings.conftest import little_memory

END = bytes([0x11, 0, 0])


def literal_run(data: bytes) -> bytes:
    rest, stream = len(data) - 18, bytearray([0])
    while rest > 255:
        rest -= 255
        stream.append(0)
    return bytes(stream) + bytes([rest]) + data


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
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
        # after three literals t < 16 is a match of length 2, distance 1 + (t >> 2) + (next << 2) = 1 + 1
        (bytes([17 + 3]) + b"abc" + bytes([4, 0]) + END, b"abcbc"),
    ],
)
def test_streams_by_hand(stream: bytes, expected: bytes) -> None:
    assert LZOCompressor.decompress(stream) == expected
    assert decompress(stream, len(expected)) == expected


def test_far_matches_by_hand(rng: np.random.Generator) -> None:
    """The two long distances: 2049 on after a long run, and 16384 on."""
    data = rng.integers(0, 256, 20000).astype(np.uint8).tobytes()
    near = literal_run(data) + bytes([0b0100, 1]) + END  # distance 2049 + 1 + (1 << 2)
    assert decompress(near, 20003) == data + data[20000 - 2054 : 20000 - 2054 + 3]
    far = literal_run(data) + bytes([16 + 3, 7 << 2, 0]) + END  # length 5, distance 16384 + 7
    assert decompress(far, 20005) == data + data[20000 - 16391 : 20000 - 16391 + 5]


def test_random_streams_equal_another_decoder(rng: np.random.Generator) -> None:
    """Random instructions whose distances stay inside what is written."""
    for _ in range(200):
        stream = bytearray(literal_run(rng.integers(0, 256, 2300).astype(np.uint8).tobytes()))
        run = 4
        for _ in range(int(rng.integers(1, 40))):
            choice = int(rng.integers(0, 3))
            trailing = int(rng.integers(0, 4))
            literals = rng.integers(0, 256, trailing).astype(np.uint8).tobytes()
            if choice == 0:
                token = int(rng.integers(64, 256)) & ~3 | trailing
                stream += bytes([token, int(rng.integers(0, 200))]) + literals
            elif choice == 1:
                word = int(rng.integers(0, 2000)) << 2 | trailing
                token = 32 + int(rng.integers(0, 32))
                extension = bytes([0, int(rng.integers(1, 256))]) if token == 32 else b""
                stream += bytes([token]) + extension + bytes([word & 255, word >> 8]) + literals
            elif run:
                stream += bytes([int(rng.integers(0, 4)) << 2 | trailing, int(rng.integers(0, 50))]) + literals
            else:
                continue
            run = trailing
        stream += END
        expected = LZOCompressor.decompress(bytes(stream))
        assert decompress(bytes(stream), len(expected)) == expected


@pytest.mark.parametrize(
    ("stream", "size", "problem"),
    [
        (b"", 0, "ends in the middle"),
        (bytes([17 + 5]) + b"hel", 5, "ends in the middle"),
        (bytes([17 + 5]) + b"hello", 5, "ends in the middle"),  # no end mark
        (bytes([17 + 5]) + b"hello" + END, 4, "more than the stated size"),
        (bytes([17 + 5]) + b"hello" + END, 6, "5 bytes instead of the stated 6"),
        (bytes([17 + 1]) + b"x" + bytes([64 + (7 << 2), 9]) + END, 4, "before its start"),
        (bytes([17 + 1]) + b"x" + bytes([32]) + bytes(1000), 5, "ends in the middle"),
    ],
)
def test_damaged_streams(stream: bytes, size: int, problem: str) -> None:
    with pytest.raises(DamagedError, match=problem):
        decompress(stream, size)


def test_any_bytes_end_in_a_result_or_a_named_error(rng: np.random.Generator) -> None:
    for _ in range(3000):
        stream = rng.integers(0, 256, int(rng.integers(0, 60))).astype(np.uint8).tobytes()
        size = int(rng.integers(0, 500))
        try:
            assert len(decompress(stream, size)) == size
        except DamagedError:
            continue


def test_bytes_after_the_end_mark_are_damage() -> None:
    with pytest.raises(DamagedError, match="end mark"):
        decompress(bytes([17 + 4]) + b"abcd" + END + b"x", 4)


def test_a_stream_for_far_more_than_the_stated_size_takes_no_memory() -> None:
    """A megabyte that stands for 255."""
    stream = bytes([17 + 1]) + b"x" + bytes([32]) + bytes(1_000_000) + bytes([1, 0, 0]) + END
    decompress(bytes([17 + 1]) + b"x" + END, 1)
    with little_memory(1_000_000), pytest.raises(DamagedError, match="more than the stated size"):
        decompress(stream, 1000)


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
