"""Samples of a car as bytes of version 9 (Forever): the counterpart of `samples`.

What the format keeps: positions as they are; rotations to 0.00005 rad of angle and 0.0001 rad of axis; velocities and
angular velocities to 0.05 % of their size and 0.013 rad of heading, 0.007 rad of pitch; forward speed to 0.09 m/s,
engine speed to 0.23 rpm; steering to 0.004, gas and brake to 0.002; dampers to 8 mm.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from rulka.recordings.model import NUM_WHEELS, Samples, VehicleState
from rulka.recordings.samples import CAR_CLASS
from tests.recordings.gbx_writer import u32

VERSION, SIZE = 9, 61
_STRAIGHT_WHEELS = 128
_SAMPLE = np.dtype(
    {
        "names": [
            "position", "angle", "heading", "pitch", "velocity", "spin", "speeds", "controls", "wheel_angle", "wheels",
            "bits",
        ],
        "formats": [
            ("<f4", 3), "<u2", "<i2", "<i2", ("u1", 4), ("u1", 4), ("<u2", 3), ("u1", 3), "u1", ("u1", (NUM_WHEELS, 2)),
            "<u2",
        ],
        "offsets": [0, 12, 14, 16, 18, 22, 26, 40, 48, 49, 58],
        "itemsize": SIZE,
    }
)  # fmt: skip
"""Where everything lies in a sample; what is left out is zero."""


def samples_payload(samples: Samples) -> bytes:
    """Returns the payload of the chunk that holds samples of a car at a steady period."""
    assert samples.vehicle is not None
    states = encode_samples(samples, samples.vehicle).tobytes()
    data = u32(CAR_CLASS, 1, 0, samples.period_ms, VERSION, len(states)) + states
    data += u32(len(samples))
    data += u32(0) if len(samples) else b""
    data += u32(SIZE) if len(samples) > 1 else b""
    packed = zlib.compress(data)
    return u32(len(data), len(packed)) + packed


def encode_samples(samples: Samples, vehicle: VehicleState) -> NDArray:
    """Returns [S] samples of 61 bytes."""
    rows = np.zeros(len(samples), dtype=_SAMPLE)
    rows["position"] = samples.position
    _encode_rotation(rows, samples.quaternion.astype(np.float64))
    rows["velocity"], rows["spin"] = pack_vectors(samples.velocity), pack_vectors(samples.angular_velocity)
    speeds = (vehicle.forward_speed_mps + 1000) / 11000, np.full(len(rows), 0.5), vehicle.rpm / 30000
    rows["speeds"] = np.stack([_steps(speed, 65535) for speed in speeds], axis=1)
    controls = (vehicle.steer + 1) / 2, vehicle.gas, vehicle.brake
    rows["controls"] = np.stack([_steps(control, 255) for control in controls], axis=1)
    rows["wheel_angle"] = _STRAIGHT_WHEELS
    rows["wheels"][:, :, 0] = _steps((vehicle.damper_m + 2) / 4, 255)
    rows["wheels"][:, :, 1] = vehicle.material
    places = 6 + 2 * np.arange(NUM_WHEELS)
    rows["bits"] = (vehicle.is_sliding << places | vehicle.has_contact.astype(np.int64) << (places + 1)).sum(axis=1)
    return rows


def pack_vectors(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns [S, 4] bytes for [S, 3] vectors: the logarithm of the magnitude, heading and pitch."""
    magnitude = np.linalg.norm(vectors.astype(np.float64), axis=1)
    is_zero = magnitude < np.exp(-32.767)
    unit = vectors / np.where(is_zero, 1.0, magnitude)[:, None]
    exponent = np.clip(np.rint(1000 * np.log(np.where(is_zero, 1.0, magnitude))), -32767, 32767)
    packed = np.zeros(len(vectors), dtype=[("exponent", "<i2"), ("heading", "i1"), ("pitch", "i1")])
    packed["exponent"] = np.where(is_zero, -32768, exponent)
    packed["heading"] = np.rint(np.arctan2(unit[:, 1], unit[:, 0]) / np.pi * 127)
    packed["pitch"] = np.rint(np.arcsin(np.clip(unit[:, 2], -1, 1)) / (np.pi / 2) * 127)
    return packed.view(np.uint8).reshape(-1, 4)


def _encode_rotation(rows: NDArray, quaternion: NDArray[np.float64]) -> None:
    unit = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    axis = unit[:, 1:] / np.maximum(np.linalg.norm(unit[:, 1:], axis=1, keepdims=True), 1e-12)
    sine = np.linalg.norm(unit[:, 1:], axis=1)
    rows["angle"] = np.rint(np.arctan2(sine, unit[:, 0]) / np.pi * 65535)
    rows["heading"] = np.rint(np.arctan2(axis[:, 1], axis[:, 0]) / np.pi * 32767)
    rows["pitch"] = np.rint(np.arcsin(np.clip(axis[:, 2], -1, 1)) / (np.pi / 2) * 32767)


def _steps(share: NDArray, most: int) -> NDArray[np.float64]:
    """Returns shares of a range as whole steps of it; beyond the range as its end."""
    return np.clip(np.rint(np.asarray(share, dtype=np.float64) * most), 0, most)
