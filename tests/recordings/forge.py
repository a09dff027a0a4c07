"""Gbx files made by hand, in the layouts that the game writes and in those that it never would."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from rulka.recordings.model import Samples, VehicleState
from rulka.recordings.stream import END_OF_NODE as END
from rulka.recordings.writer import Ids, chunk, events_payload, gbx, skippable, u32
from rulka.recordings.writer import string as text

MAP_UID = "AbCdEfGhIjKlMnOpQrStUvWxYz0"


def sample_bytes(position: tuple[float, float, float], *, steer: int = 127, gas: int = 0, brake: int = 0) -> bytes:
    """One sample of version 9: level, facing +z, moving at exp(2) m/s along +z, all wheels on asphalt."""
    rotation = struct.pack("<Hhh", 0, 0, 0)
    ahead = struct.pack("<hbb", 2000, 0, 127)  # pitch of a quarter turn: the third axis
    still = struct.pack("<hbb", -32768, 0, 0)
    speeds = struct.pack("<HHH", round(1007 / 11000 * 65535), 32767, 32767)
    wheels = b"\x80\x10" * 4
    return (
        struct.pack("<3f", *position) + rotation + ahead + still + speeds + bytes(8)
        + bytes([steer, gas, brake]) + bytes(6) + wheels + bytes([0, 0x80, 0b101010, 255])
    )  # fmt: skip


def samples_chunk(
    samples: list[bytes], *, version: int = 9, sizes: list[int] | None = None, period_ms: int = 100
) -> bytes:
    states = b"".join(samples)
    data = u32(0x0A02B000, 1, 0, period_ms, version, len(states)) + states + u32(len(samples), 0)
    data += u32(len(samples[0])) if sizes is None else u32(0xFFFFFFFF, *sizes)
    packed = zlib.compress(data)
    return chunk(0x0303F005, u32(len(data), len(packed)) + packed)


def ghost_body(
    ids: Ids,
    *,
    race_time: int = 300,
    events: list[tuple[int, int, int]] | None = None,
    offset: int = 0,
    extra: bytes = b"",
    period_ms: int = 100,
    car: str = "StadiumCar",
) -> bytes:
    names = ["_FakeIsRaceRunning", "Accelerate", "SteerLeft", "SteerRight", "Steer"]
    if events is None:
        events = [(0, 0, 1), (10, 1, 1), (100, 3, 1), (200, 3, 0)]
    shown = [sample_bytes((0.0, 1.0, 0.7 * i), steer=255 if i == 2 else 127, gas=255) for i in range(5)]
    body = samples_chunk(shown, period_ms=period_ms)
    body += skippable(0x03092005, u32(race_time)) + skippable(0x03092008, u32(2)) + skippable(0x0309200A, u32(7))
    body += skippable(0x0309200B, u32(2, min(150, race_time // 2), 3, race_time, 7))
    body += extra
    body += chunk(0x0309200E, ids("ghost-uid")) + chunk(0x0309200F, text("driver")) + chunk(0x03092010, ids(""))
    body += chunk(0x03092015, ids("Nick")) + chunk(0x03092018, ids(car, "Vehicles", "Nadeo"))
    stamped = [(time + offset, name, value) for time, name, value in events]
    validation = u32(race_time) + events_payload(ids, names, stamped) if events else u32(0)
    tail = text("Exe") + u32(1, 2, 3) + text("settings") + u32(9) if events else b""
    return body + chunk(0x03092019, validation + tail) + u32(END)


def map_start(ids: Ids, version: int, count: int, *, uid: str = MAP_UID) -> bytes:
    """The chunk of the blocks of a map, up to the first of them; versions from 1 on."""
    start = u32(0x0304301F) + ids(uid, "Stadium", "author") + text("Hand-made") + ids("Day", "Stadium", "Nadeo")
    return start + u32(32, 32, 32, 0, version, count)


def map_file(
    *,
    block_name: str = "StadiumRoadMain",
    uid: str = MAP_UID,
    medals_ms: tuple[int, int, int, int] = (4000, 3000, 2000, 1500),
) -> bytes:
    ids = Ids()
    medals = u32(0x0305B004, *medals_ms, 0, END)
    body = u32(0x0304300D) + ids("", "Vehicles", "") + u32(0x03043011, 0xFFFFFFFF, 5, 0x0305B000) + medals + u32(6)
    body += map_start(ids, 1, 2, uid=uid) + ids(block_name) + bytes([3, 2, 1, 4]) + u32(0x1000)
    body += ids("Hole") + bytes(4) + u32(0xFFFFFFFF)  # a placeholder that does not count
    body += ids("StadiumCheckpoint") + bytes([1, 11, 1, 19]) + u32(0, END)
    common = b"\x05" + Ids()(uid, "Stadium", "author") + text("Hand-made") + b"\x08"
    description = b"\x0b" + u32(0, *medals_ms)
    return gbx(0x03043000, {0x03043002: description, 0x03043003: common}, body)


def replay_header(race_time: int = 300, uid: str = MAP_UID) -> dict[int, bytes]:
    basic = u32(7) + Ids()(uid, "Stadium", "author") + u32(race_time) + text("Nick") + text("driver")
    xml = '<header type="replay"><map uid="x"/><times best="300" respawns="2" stuntscore="7" validable="1"/></header>'
    return {0x03093000: basic, 0x03093001: text(xml)}


def recording_file(
    *, tail: bytes = u32(END), num_ghosts: int = 1, header_time: int = 300, uid: str = MAP_UID, **ghost: object
) -> bytes:
    ids = Ids()
    ghosts = b"".join(u32(k + 1, 0x03092000) + ghost_body(ids, **ghost) for k in range(num_ghosts))  # pyright: ignore[reportArgumentType]
    track = map_file(uid=uid)
    body = chunk(0x03093002, u32(len(track)) + track) + skippable(0x03093007, u32(0))
    body += chunk(0x03093014, u32(10, num_ghosts) + ghosts + u32(0, 1) + bytes(8)) + tail
    return gbx(0x03093000, replay_header(header_time, uid), body)


def samples_at(
    time_ms: NDArray[np.int64], position: NDArray[np.float32], velocity: NDArray[np.float32], steer: NDArray[np.float32]
) -> Samples:
    """Samples [S] of a car that faces +z on four wheels on asphalt, on full gas."""
    zeros, wheels = np.zeros(len(time_ms), np.float32), np.zeros((len(time_ms), 4))
    vehicle = VehicleState(
        forward_speed_mps=velocity[:, 2],
        rpm=zeros + 5000,
        steer=steer,
        gas=zeros + 1,
        brake=zeros,
        has_contact=wheels == 0,
        is_sliding=wheels > 0,
        material=(wheels + 16).astype(np.uint8),
        damper_m=(wheels + 0.02).astype(np.float32),
        side_speed_mps=zeros,
        turbo=zeros,
    )
    level = np.tile(np.array([1, 0, 0, 0], np.float32), (len(time_ms), 1))
    return Samples(9, 61, int(time_ms[1]), time_ms, position, level, velocity, 0 * velocity, vehicle)
