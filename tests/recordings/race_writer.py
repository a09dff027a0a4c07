"""Races as `.Replay.Gbx` files in the layout of Forever: what the tests read back.

What the format keeps: positions as they are; rotations to 0.00005 rad of angle and 0.0001 rad of axis; velocities to
0.05 % of their size and 0.013 rad of heading, 0.007 rad of pitch; forward speed to 0.09 m/s, engine speed to 0.23 rpm;
controls to 0.004; dampers to 8 mm. The recording embeds no map, as the tracks of the simulator are none of the game.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from rulka.actions import TICK_MS
from rulka.datasets.races import Race
from rulka.observation import CAR
from rulka.recordings.car_rows import interpolate_rows
from rulka.recordings.container import GHOST, REPLAY
from tests.recordings.forge import END, events_payload, samples_chunk
from tests.recordings.gbx_writer import Ids, chunk, gbx, skippable, string, u32

PERIOD_MS = 100
NAMES = ["_FakeIsRaceRunning", "SteerLeft", "SteerRight", "Accelerate", "Brake"]
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
"""Where everything lies in a sample of version 9; what is left out is zero."""


def write_race(path: Path, race: Race) -> None:
    """Writes a finished race that was driven with keys."""
    ids = Ids()
    times = b"".join(u32(time_ms, 0) for time_ms in race.checkpoint_times_ms)
    time_ms = race.race_time_ms or 0
    ghost = samples_chunk([row.tobytes() for row in _samples(race)])
    ghost += skippable(GHOST | 0x005, u32(time_ms)) + skippable(GHOST | 0x008, u32(0))
    ghost += skippable(GHOST | 0x00B, u32(len(race.checkpoint_times_ms)) + times)
    ghost += chunk(GHOST | 0x015, ids(race.player)) + chunk(GHOST | 0x018, ids("StadiumCar", "Vehicles", "Nadeo"))
    inputs = u32(time_ms) + events_payload(ids, NAMES, [(0, 0, 1), *sorted(_events(race.controls))])
    inputs += string("TmForever.2011-02-21") + u32(0, 0, 0) + string("") + u32(0)
    ghost += chunk(GHOST | 0x019, inputs) + u32(END)
    body = chunk(REPLAY | 0x014, u32(10, 1, 1, GHOST) + ghost + u32(0, 0)) + u32(END)
    header = u32(7) + Ids()(race.map_uid, "Stadium", "") + u32(time_ms) + string(race.player) + string("")
    path.write_bytes(gbx(REPLAY, {REPLAY: header}, body, num_nodes=2))


def _events(controls: NDArray[np.float32]) -> Iterator[tuple[int, int, int]]:
    """Yields time, number of the name and value of every change of a key; all begin released."""
    steer, gas, brake = controls.T
    for name, is_down in enumerate((steer < 0, steer > 0, gas > 0, brake > 0), start=1):
        for tick in np.flatnonzero(np.diff(is_down.astype(np.int64), prepend=0)).tolist():
            yield TICK_MS * tick, name, int(is_down[tick])


def _samples(race: Race) -> NDArray:
    """Returns samples from 0 to the first at or after the finish, or to the last known state."""
    last_ms = min(race.duration_ms, int(race.state_time_ms[-1])) + PERIOD_MS - 1
    time_ms = np.arange(last_ms // PERIOD_MS + 1, dtype=np.int64) * PERIOD_MS
    car = interpolate_rows(race.state_time_ms, race.state, time_ms)
    rotation = car[:, CAR["rotation"]].reshape(-1, 3, 3).astype(np.float64)
    rows = np.zeros(len(time_ms), dtype=_SAMPLE)
    rows["position"] = car[:, CAR["position"]]
    turn = Rotation.from_matrix(rotation).as_rotvec()
    angle = np.linalg.norm(turn, axis=1)
    heading, pitch = _angles(turn / np.maximum(angle, 1e-12)[:, None])
    rows["angle"] = np.rint(angle / 2 / np.pi * 65535)
    rows["heading"], rows["pitch"] = np.rint(heading / np.pi * 32767), np.rint(pitch / (np.pi / 2) * 32767)
    rows["velocity"], rows["spin"] = _packed(car[:, CAR["velocity"]]), _packed(car[:, CAR["angular_velocity"]])
    forward_mps = (rotation[:, :, 2] * car[:, CAR["velocity"]]).sum(axis=1)
    speeds = (forward_mps + 1000) / 11000, np.full(len(rows), 0.5), car[:, CAR["rpm"]][:, 0] / 30000
    rows["speeds"] = np.stack([_steps(speed, 65535) for speed in speeds], axis=1)
    tick = np.clip(time_ms // TICK_MS - 1, 0, len(race.controls) - 1)  # the state shows the tick before it
    felt = np.where((time_ms > 0)[:, None], race.controls[tick], 0)
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
    """Returns [S, 4] bytes for [S, 3] vectors: the logarithm of the magnitude, heading and pitch."""
    magnitude = np.linalg.norm(vectors.astype(np.float64), axis=1)
    is_zero = magnitude < np.exp(-32.767)
    length = np.where(is_zero, 1.0, magnitude)
    heading, pitch = _angles(vectors / length[:, None])
    packed = np.zeros(len(vectors), dtype=[("exponent", "<i2"), ("heading", "i1"), ("pitch", "i1")])
    packed["exponent"] = np.where(is_zero, -32768, np.clip(np.rint(1000 * np.log(length)), -32767, 32767))
    packed["heading"], packed["pitch"] = np.rint(heading / np.pi * 127), np.rint(pitch / (np.pi / 2) * 127)
    return packed.view(np.uint8).reshape(-1, 4)


def _steps(share: NDArray, most: int) -> NDArray[np.float64]:
    """Returns shares of a range as whole steps of it; beyond the range as its end."""
    return np.clip(np.rint(np.asarray(share, dtype=np.float64) * most), 0, most)
