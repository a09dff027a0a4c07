import pytest

from rulka.recordings.errors import DamagedError, UnsupportedGenerationError
from rulka.recordings.stream import Cursor
from rulka.recordings.tick_inputs import read_tick_inputs

VEHICLE, ON_FOOT = 2, 1


class Bits:
    """Writes bits, least significant first."""

    def __init__(self) -> None:
        self.bits: list[int] = []

    def put(self, value: int, count: int) -> None:
        self.bits += [value >> i & 1 for i in range(count)]

    def done(self) -> bytes:
        padded = self.bits + [0] * (-len(self.bits) % 8)
        return bytes(sum(bit << i for i, bit in enumerate(padded[k : k + 8])) for k in range(0, len(padded), 8))


def write_ticks(ticks: list[dict[str, int]], state_bits: int = 34) -> bytes:
    bits, mode = Bits(), 0
    for tick in ticks:
        bits.put("state" not in tick and "short" not in tick, 1)
        if "state" in tick:
            bits.put(0, 1)
            bits.put(tick["state"], state_bits)
            mode = mode or tick["state"] & 3
        elif "short" in tick:
            bits.put(1, 1)
            bits.put(tick["short"], 2)
        bits.put("mouse" not in tick, 1)
        if "mouse" in tick:
            bits.put(tick["mouse"], 32)
        if mode == VEHICLE:
            bits.put("steer" not in tick, 1)
            if "steer" in tick:
                bits.put(tick["steer"] & 255 | tick["gas"] << 8 | tick["brake"] << 9, 10)
        elif mode == ON_FOOT:
            bits.put("walk" not in tick, 1)
            if "walk" in tick:
                bits.put(tick["walk"], 8)
    return bits.done()


def chunk(forge, data: bytes, num_ticks: int, *, version: int = 4, inner: int = 12, start: int = 0) -> Cursor:
    offset = forge.u32(start) if version >= 4 else b""
    return Cursor(forge.u32(version, 1, inner, 0) + offset + forge.u32(num_ticks, len(data)) + data)


def test_a_drive_by_hand(forge) -> None:
    ticks = [
        {"state": VEHICLE},
        {"steer": -127, "gas": 1, "brake": 0},
        {},
        {"steer": -127, "gas": 1, "brake": 1},
        {"short": 2},  # horn
        {"state": VEHICLE | 1 << 31, "mouse": 5},  # respawn; the horn bit is off again
    ]
    events, num_stored = read_tick_inputs(chunk(forge, write_ticks(ticks), 6, start=20))
    assert num_stored == 6
    assert [tuple(event) for event in events] == [
        (30, "SteerByte", -127),
        (30, "Accelerate", 1),
        (50, "Brake", 1),
        (60, "Horn", 1),
        (70, "Respawn", 1),
        (70, "Horn", 0),
    ]


@pytest.mark.parametrize(("inner", "state_bits"), [(11, 33), (12, 34)])
def test_a_driver_on_foot_is_read_past(forge, inner: int, state_bits: int) -> None:
    """Of each version, to the last bit; what would be steering in a vehicle is no part of it."""
    ticks = [{"walk": 1}, {"state": ON_FOOT, "walk": 3}, {"mouse": 1 << 31, "walk": 255}, {"short": 2}, {"walk": 0}]
    data = write_ticks(ticks, state_bits)
    events, num_stored = read_tick_inputs(chunk(forge, data, len(ticks), inner=inner))
    assert [tuple(event) for event in events] == [(30, "Horn", 1)]
    assert num_stored == 6


def test_the_first_state_says_the_mode_in_two_bits(forge) -> None:
    """0xE is a vehicle from the start on: read as a mode of its own, all that follows comes late and out of step."""
    ticks = [{"state": 0xE, "steer": 5, "gas": 1, "brake": 0}, {"steer": 9, "gas": 1, "brake": 0}, {"state": 0xF}, {}]
    ticks += [{"steer": -9, "gas": 1, "brake": 0}]
    events, _ = read_tick_inputs(chunk(forge, write_ticks(ticks), len(ticks)))
    assert [tuple(event) for event in events] == [
        (0, "SteerByte", 5),
        (0, "Accelerate", 1),
        (10, "SteerByte", 9),
        (40, "SteerByte", -9),
    ]


def test_bits_left_over_are_damage(forge) -> None:
    """The last byte is filled with zeros."""
    data = write_ticks([{"state": VEHICLE}, {"steer": 1, "gas": 0, "brake": 0}])
    for wrong in (data + b"\0", data + b"\1\0", data + bytes(40), data[:-1] + bytes([data[-1] | 0x80])):
        with pytest.raises(DamagedError, match="left over"):
            read_tick_inputs(chunk(forge, wrong, 2))


def test_what_cannot_be(forge) -> None:
    data = write_ticks([{"state": VEHICLE}, {"steer": 1, "gas": 0, "brake": 0}])
    assert read_tick_inputs(chunk(forge, data, 2, version=3))[0][0] == (10, "SteerByte", 1)  # has no start
    with pytest.raises(UnsupportedGenerationError, match="version 8"):
        read_tick_inputs(chunk(forge, data, 2, inner=8))
    with pytest.raises(DamagedError, match="before the last"):
        read_tick_inputs(chunk(forge, data[:2], 2))
    with pytest.raises(DamagedError, match="ticks are stated"):
        read_tick_inputs(chunk(forge, data, 1 << 30))
    with pytest.raises(DamagedError):
        read_tick_inputs(Cursor(forge.u32(4, 1000) + bytes(12_000)))
