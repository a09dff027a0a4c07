"""Writes Gbx files (the counterpart of `stream` and `container`), and races as `.Replay.Gbx` files of Forever.

A replay holds the chunks that Forever writes, in the same order; its body is compressed, as validators demand.
Precision of the format: positions exact; rotations 0.00005 rad of angle and 0.0001 rad of axis; velocities 0.05 % of
magnitude, 0.013 rad of heading, 0.007 rad of pitch; forward speed 0.09 m/s, sideways speed 0.02; engine speed 0.23 rpm;
dampers 8 mm; keys exact, analog steering 1/65536.

Dimensions: T ticks of 10 ms, S states of the car.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import quoteattr

import numpy as np
from lzallright import LZOCompressor
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR
from rulka.machine.errors import UserError
from rulka.recordings.car_rows import interpolate_rows
from rulka.recordings.container import GHOST, REPLAY
from rulka.recordings.controls import FULL_LOCK
from rulka.recordings.inputs import EVENT, FINISH_LINE, RACE_RUNNING, STAMP_ZERO_MS
from rulka.recordings.reader import MAP_CHUNK
from rulka.recordings.samples import CAR_CLASS
from rulka.recordings.stream import END_OF_NODE, SKIPPABLE, Ident

ID_VERSION = 3
CONTAINER_VERSION = 6
SAMPLES = 0x0303F005
PROGRAM = "Rulka"
"""Written to the game-version field, so that our replays are not mistaken for the game's."""
LOGIN = "rulka"
PERIOD_MS = 100
_EMPTY_ID, _NEW_ID, _NO_NODE = 0xFFFFFFFF, 0x40000000, 0xFFFFFFFF
_REPLAY_VERSION, _GHOSTS_VERSION, _SAMPLES_VERSION, _GHOST_VERSION = 7, 10, 9, 7
_SAMPLE = np.dtype(
    {
        "names": [
            "position", "angle", "heading", "pitch", "velocity", "spin", "speeds", "controls", "wheel_angle", "wheels",
            "bits",
        ],
        "formats": [
            ("<f4", 3), "<u2", "<i2", "<i2", ("u1", 4), ("u1", 4), ("<u2", 3), ("u1", 3), "u1", ("u1", (4, 2)), "<u2",
        ],
        "offsets": [0, 12, 14, 16, 18, 22, 26, 40, 48, 49, 58],
        "itemsize": 61,
    }
)  # fmt: skip
"""Layout of a version 9 sample; omitted bytes are zero."""


def u32(*values: int) -> bytes:
    """Packs 32-bit integers, negative ones in two's complement."""
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))


def string(text: str) -> bytes:
    """Packs a length-prefixed UTF-8 string."""
    data = text.encode("utf-8")
    return u32(len(data)) + data


class Ids:
    """Encodes the ids of one stream: each name once, then references to it."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.is_new = True

    def __call__(self, *names: str) -> bytes:
        """Encodes ids; digits are a collection number, an empty string is the empty id."""
        return b"".join(map(self._one, names))

    def _one(self, name: str) -> bytes:
        start = u32(ID_VERSION) if self.is_new else b""
        self.is_new = False
        if not name:
            return start + u32(_EMPTY_ID)
        if name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < _NEW_ID:
            return start + u32(int(name))
        if name in self.known:
            return start + u32(_NEW_ID | self.known[name])
        self.known[name] = len(self.known) + 1
        return start + u32(_NEW_ID) + string(name)


def chunk(identifier: int, payload: bytes = b"") -> bytes:
    """Packs a chunk that readers must parse."""
    return u32(identifier) + payload


def skippable(identifier: int, payload: bytes) -> bytes:
    """Packs a chunk that readers can skip."""
    return u32(identifier, SKIPPABLE, len(payload)) + payload


def events_payload(ids: Ids, names: Sequence[str], events: Iterable[tuple[int, int, int]]) -> bytes:
    """Packs a list of inputs.

    Args:
        ids: id encoder of the stream.
        names: control names.
        events: time in ms, index of the control name, value.
    """
    listed = [EVENT.pack(STAMP_ZERO_MS + time_ms, name, value & 0xFFFFFFFF) for time_ms, name, value in events]
    return u32(0, len(names)) + ids(*names) + u32(len(listed), 0) + b"".join(listed)


def gbx(
    class_id: int,
    header: Mapping[int, bytes],
    body: bytes,
    *,
    num_nodes: int = 1,
    compression: str = "C",
    references: bytes = bytes(4),
) -> bytes:
    """Packs a whole file.

    Args:
        class_id: class of the file.
        header: payload of each header chunk by id.
        body: the uncompressed body.
        num_nodes: number of node indices in use, including the file's own.
        compression: "C", or "U" to store the body uncompressed.
        references: table of external references.
    """
    user = u32(len(header)) + b"".join(u32(key, len(value)) for key, value in header.items())
    user += b"".join(header.values())
    packed = LZOCompressor().compress(body)
    stored = u32(len(body), len(packed)) + packed if compression == "C" else body
    start = b"GBX" + struct.pack("<H", CONTAINER_VERSION) + b"BU" + compression.encode() + b"R" + u32(class_id)
    return start + u32(len(user)) + user + u32(num_nodes) + references + stored


def replay_bytes(
    *,
    map_ident: Ident,
    map_data: bytes,
    player: str,
    checkpoint_times_ms: Sequence[int],
    controls: NDArray[np.float32],
    state_time_ms: NDArray[np.int64],
    state: NDArray[np.float32],
) -> bytes:
    """Returns a finished race of a StadiumCar as the bytes of a `.Replay.Gbx`.

    Args:
        map_ident: UID, environment and author of the map.
        map_data: bytes of the map's file; empty to embed none.
        player: nickname.
        checkpoint_times_ms: time at every checkpoint; the last is the finish, i.e. the race time.
        controls: [T, 3] steer in [-1, 1] (positive right), gas and brake, 0 or 1; row t acts from 10 t ms on. Rows
            after the finish are dropped.
        state_time_ms: [S] ascending times of the states.
        state: [S, NUM_CAR_FIELDS] `CAR` rows.

    Raises:
        UserError: if a pedal is partially pressed.
        NoSamplesError: if there are no states.
    """
    ids, time_ms = Ids(), checkpoint_times_ms[-1]
    rows = _samples(controls, state_time_ms, state, time_ms)
    ghost = _samples_chunk(rows) + skippable(GHOST | 0x005, u32(time_ms)) + skippable(GHOST | 0x008, u32(0))
    ghost += skippable(GHOST | 0x009, bytes(12)) + skippable(GHOST | 0x00A, u32(0))
    passed = b"".join(u32(passed_ms, 0) for passed_ms in checkpoint_times_ms)
    ghost += skippable(GHOST | 0x00B, u32(len(checkpoint_times_ms)) + passed) + chunk(GHOST | 0x00C, u32(0))
    ghost += chunk(GHOST | 0x00E, ids("")) + chunk(GHOST | 0x00F, string(LOGIN)) + chunk(GHOST | 0x010, ids(""))
    ghost += chunk(GHOST | 0x012, bytes(20)) + skippable(GHOST | 0x013, bytes(8))
    ghost += skippable(GHOST | 0x014, u32(_GHOST_VERSION)) + chunk(GHOST | 0x015, ids(player))
    ghost += skippable(GHOST | 0x017, u32(0) + string(player) + string(""))
    ghost += chunk(GHOST | 0x018, ids("StadiumCar", "Vehicles", "Nadeo"))
    names, events = _events(controls[: -(-time_ms // TICK_MS)])
    names, events = [RACE_RUNNING, *names, FINISH_LINE], [(0, 0, 1), *events, (time_ms, len(names) + 1, 1)]
    inputs = u32(time_ms) + events_payload(ids, names, events) + string(PROGRAM) + bytes(12) + string("") + u32(0)
    ghost += chunk(GHOST | 0x019, inputs) + u32(END_OF_NODE)
    body = chunk(MAP_CHUNK, u32(len(map_data)) + map_data) if map_data else b""
    body += skippable(REPLAY | 0x007, u32(-1)) + chunk(REPLAY | 0x014, u32(_GHOSTS_VERSION, 1, 1, GHOST) + ghost)
    body += u32(0, 0) + chunk(REPLAY | 0x015, u32(_NO_NODE)) + u32(END_OF_NODE)
    basic = u32(_REPLAY_VERSION) + Ids()(*map_ident) + u32(time_ms) + string(player) + string(LOGIN)
    xml = f'<header type="replay" version="TMr.7" exever="{PROGRAM}"><challenge uid={quoteattr(map_ident.uid)}/>'
    xml += f'<times best="{time_ms}" respawns="0" stuntscore="0" validable="1"/></header>'
    return gbx(REPLAY, {REPLAY: basic, REPLAY | 0x001: string(xml)}, body, num_nodes=2)


def _events(controls: NDArray[np.float32]) -> tuple[list[str], list[tuple[int, int, int]]]:
    """Returns the control names, and every change as (time in ms, index of the name counted from 1, value)."""
    steer, gas, brake = controls.T
    if not np.isin(controls[:, 1:], (0.0, 1.0)).all():
        message = "gas or brake are pressed in part, which the game knows of neither"
        raise UserError(message, hint="Only races with pedals that are pressed or not can be written.")
    held = {"Accelerate": gas, "Brake": brake}
    if np.isin(steer, (-1.0, 0.0, 1.0)).all():
        held |= {"SteerLeft": steer < 0, "SteerRight": steer > 0}
    else:
        held["Steer"] = np.rint(-FULL_LOCK * steer.astype(np.float64))
    values = [each.astype(np.int64) & 0xFFFFFF for each in held.values()]
    changes = [
        (TICK_MS * tick, number, int(value[tick]))
        for number, value in enumerate(values, start=1)
        for tick in np.flatnonzero(np.diff(value, prepend=0)).tolist()
    ]
    return list(held), sorted(changes)


def _samples_chunk(rows: NDArray) -> bytes:
    states = rows.tobytes()
    data = u32(CAR_CLASS, 1, 0, PERIOD_MS, _SAMPLES_VERSION, len(states)) + states + u32(len(rows), 0, _SAMPLE.itemsize)
    packed = zlib.compress(data)
    return chunk(SAMPLES, u32(len(data), len(packed)) + packed)


def _samples(
    controls: NDArray[np.float32], state_time_ms: NDArray[np.int64], state: NDArray[np.float32], race_time_ms: int
) -> NDArray:
    """Returns samples from 0 to the first at or after the finish, or to the last known state."""
    last_ms = min(race_time_ms, int(state_time_ms[-1]) if len(state) else 0) + PERIOD_MS - 1
    time_ms = np.arange(last_ms // PERIOD_MS + 1, dtype=np.int64) * PERIOD_MS
    car = interpolate_rows(state_time_ms, state, time_ms)
    rotation = car[:, CAR["rotation"]].reshape(-1, 3, 3).astype(np.float64)
    rows = np.zeros(len(time_ms), dtype=_SAMPLE)
    rows["position"] = car[:, CAR["position"]]
    turn = Rotation.from_matrix(rotation).as_rotvec()
    angle = np.linalg.norm(turn, axis=1)
    heading, pitch = _angles(turn / np.maximum(angle, 1e-12)[:, None])
    rows["angle"] = np.rint(angle / 2 / np.pi * 65535)
    rows["heading"], rows["pitch"] = np.rint(heading / np.pi * 32767), np.rint(pitch / (np.pi / 2) * 32767)
    rows["velocity"], rows["spin"] = _packed(car[:, CAR["velocity"]]), _packed(car[:, CAR["angular_velocity"]])
    side_mps, _, forward_mps = np.einsum("sij,si->js", rotation, car[:, CAR["velocity"]])
    speeds = (forward_mps + 1000) / 11000, (side_mps + 1000) / 2000, car[:, CAR["rpm"]][:, 0] / 30000
    rows["speeds"] = np.stack([_steps(speed, 65535) for speed in speeds], axis=1)
    tick = np.clip(time_ms // TICK_MS - 1, 0, len(controls) - 1)  # a state reflects the previous tick
    felt = np.where((time_ms > 0)[:, None], controls[tick], 0)
    rows["controls"] = _steps(np.stack([(felt[:, 0] + 1) / 2, felt[:, 1], felt[:, 2]], axis=1), 255)
    rows["wheel_angle"] = 128
    rows["wheels"][:, :, 0] = _steps((car[:, CAR["damper"]] + 2) / 4, 255)
    rows["wheels"][:, :, 1] = car[:, CAR["material"]]
    places = 6 + 2 * np.arange(4)
    slides, touches = car[:, CAR["is_sliding"]] > 0, car[:, CAR["has_contact"]] > 0
    rows["bits"] = (slides << places | touches.astype(np.int64) << (places + 1)).sum(axis=1)
    return rows


def _angles(unit: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.arctan2(unit[:, 1], unit[:, 0]), np.arcsin(np.clip(unit[:, 2], -1, 1))


def _packed(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Packs [S, 3] vectors to [S, 4] bytes: log magnitude, heading and pitch."""
    magnitude = np.linalg.norm(vectors.astype(np.float64), axis=1)
    is_zero = magnitude < np.exp(-32.767)
    length = np.where(is_zero, 1.0, magnitude)
    heading, pitch = _angles(vectors / length[:, None])
    packed = np.zeros(len(vectors), dtype=[("exponent", "<i2"), ("heading", "i1"), ("pitch", "i1")])
    packed["exponent"] = np.where(is_zero, -32768, np.clip(np.rint(1000 * np.log(length)), -32767, 32767))
    packed["heading"], packed["pitch"] = np.rint(heading / np.pi * 127), np.rint(pitch / (np.pi / 2) * 127)
    return packed.view(np.uint8).reshape(-1, 4)


def _steps(share: NDArray, most: int) -> NDArray[np.float64]:
    """Quantises fractions of a range to whole steps, clipped to the range."""
    return np.clip(np.rint(np.asarray(share, dtype=np.float64) * most), 0, most)
