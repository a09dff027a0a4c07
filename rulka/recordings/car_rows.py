"""Converts the samples of a ghost to `CAR` rows, and interpolates rows between samples.

Copied: position, rotation, angular velocity, wheel contact and sliding, damper, material, rpm.
Reconstructed, or modelled because no recording stores them:

* velocity: the stored vector has a precise length but a coarse direction. The sideways component is stored precisely;
  the upward one is differentiated from positions, within the vector's quantisation; the rest is forward speed.
* gear: the one of the StadiumCar's five whose rpm at the car's speed is nearest to the stored rpm. If the wheels spin
  freely or the car is airborne, the previous gear is kept.
* gearbox_state: 2 before the car first moves, 1 in a sample whose gear differs from the one before, else 0.
* gearbox_counter: consecutive 50 ms decisions with a gearbox state other than 0, counted from the samples.
* is_free_wheeling: 1 while a wheel touches the free-wheeling material.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from rulka.contracts.observation import CAR, CENTRE_OF_MASS_M, NUM_CAR_FIELDS
from rulka.recordings.errors import NoSamplesError
from rulka.recordings.model import Ghost, Samples, VehicleState

DECISION_MS = 50
RPM_PER_MPS = (360.0, 219.0, 160.0, 110.0, 85.0)
"""StadiumCar rpm per m/s in gears 1 to 5, measured on recorded samples."""
MAX_RATIO_ERROR = 0.12
"""The stored rpm identifies a gear if it is within this fraction of that gear's rpm."""
MIN_GEAR_SPEED_MPS = 2.0
VECTOR_STEP_RAD = np.pi / 127
"""Quantisation step of a stored velocity's heading; the pitch step is half of it."""
SPEED_STEP_MPS = 0.2
"""Quantisation step of the speed along the car, plus a margin."""
FREE_WHEELING_MATERIAL = 29
MIN_DAMPER_M, MAX_DAMPER_M = 0.005, 0.15
"""Damper range of the observation; stored lengths (about 0 to 0.2 m) are clipped to it."""
MAX_EXTRAPOLATION_MS = 200
"""Maximum extrapolation of rows past the last sample."""
MAX_GAP_FACTOR, MAX_GAP_M = 2.0, 10.0
"""Samples further apart than factor x speed x time + `MAX_GAP_M` are a jump (a respawn), not a path."""

_MOVING = ("position", "rotation", "velocity", "angular_velocity", "damper", "rpm")
"""Interpolated fields; the others are taken from the nearer sample."""
_MOVING_MPS = 0.5


def car_rows(ghost: Ghost) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns the `CAR` row of every sample of a ghost.

    Returns:
        [S] int64 race time in ms and [S, NUM_CAR_FIELDS] float32 rows; see the module for what is modelled.

    Raises:
        NoSamplesError: if the ghost holds no samples, or they lack the vehicle state.
    """
    samples = ghost.samples
    if samples is None or len(samples) == 0 or samples.vehicle is None:
        reason = "; ".join(ghost.notes) or "none are stored"
        message = f"the ghost has no samples of the car's path: {reason}"
        raise NoSamplesError(message, hint="Use a recording of TrackMania Forever, United or a later game.")
    return samples.time_ms, _rows(samples, samples.vehicle)


def _rows(samples: Samples, vehicle: VehicleState) -> NDArray[np.float32]:
    rows = np.zeros((len(samples), NUM_CAR_FIELDS), dtype=np.float32)
    rotation = Rotation.from_quat(samples.quaternion, scalar_first=True).as_matrix()
    gear = _gears(vehicle)
    state = _gearbox_state(gear, vehicle.forward_speed_mps)
    is_free_wheeling = (vehicle.has_contact & (vehicle.material == FREE_WHEELING_MATERIAL)).any(axis=1)
    fields: dict[str, NDArray] = {
        "position": samples.position,
        "rotation": rotation.reshape(-1, 9),
        "velocity": _velocity(samples, vehicle, rotation),
        "angular_velocity": samples.angular_velocity,
        "is_sliding": vehicle.is_sliding,
        "has_contact": vehicle.has_contact,
        "damper": np.clip(vehicle.damper_m, MIN_DAMPER_M, MAX_DAMPER_M),
        "material": vehicle.material,
        "gearbox_state": state[:, None],
        "gear": gear[:, None],
        "rpm": vehicle.rpm[:, None],
        "gearbox_counter": _counter(state, samples.time_ms)[:, None],
        "is_free_wheeling": is_free_wheeling[:, None],
    }
    for name, values in fields.items():
        rows[:, CAR[name]] = values
    return rows


def _velocity(samples: Samples, vehicle: VehicleState, rotation: NDArray) -> NDArray[np.float64]:
    """Returns [S, 3] world velocities of the centre of mass, m/s."""
    stored = samples.velocity.astype(np.float64)
    coarse = np.einsum("nij,ni->nj", rotation, stored)  # left, up, forward
    speed = np.linalg.norm(stored, axis=1)
    open_mps = VECTOR_STEP_RAD * speed
    fine = coarse.copy()
    fine[:, 0] = vehicle.side_speed_mps
    if len(samples) > 2:
        centre = samples.position + rotation @ np.array(CENTRE_OF_MASS_M)
        moved = np.gradient(centre, samples.time_ms / 1000.0, axis=0)
        up = (moved * rotation[:, :, 1]).sum(axis=1)
        fine[:, 1] = np.clip(up, coarse[:, 1] - open_mps / 2, coarse[:, 1] + open_mps / 2)
    ahead = np.sqrt(np.maximum(speed**2 - fine[:, 0] ** 2 - fine[:, 1] ** 2, 0.0))
    fine[:, 2] = np.copysign(ahead, vehicle.forward_speed_mps)
    # If the two contradict each other, or the sideways speed is not stored (NaN), the stored vector is used.
    agrees = (np.abs(fine - coarse) <= open_mps[:, None] + SPEED_STEP_MPS).all(axis=1)
    return np.where(agrees[:, None], np.einsum("nij,nj->ni", rotation, fine), stored)


def _gears(vehicle: VehicleState) -> NDArray[np.int64]:
    speed = np.maximum(np.abs(vehicle.forward_speed_mps), MIN_GEAR_SPEED_MPS)
    ratio = np.maximum(vehicle.rpm / speed, 1.0)
    error = np.abs(np.log(ratio[:, None] / np.array(RPM_PER_MPS)))
    is_told = (error.min(axis=1) < MAX_RATIO_ERROR) & (np.abs(vehicle.forward_speed_mps) > MIN_GEAR_SPEED_MPS)
    told_at = np.maximum.accumulate(np.where(is_told, np.arange(len(ratio)), -1))
    nearest = error.argmin(axis=1) + 1
    return np.where(told_at >= 0, nearest[np.maximum(told_at, 0)], 1)


def _gearbox_state(gear: NDArray[np.int64], speed_mps: NDArray[np.float32]) -> NDArray[np.int64]:
    state = np.zeros(len(gear), dtype=np.int64)
    state[1:] = np.diff(gear) != 0
    has_moved = np.logical_or.accumulate(np.abs(speed_mps) > _MOVING_MPS)
    state[~has_moved] = 2
    return state


def _counter(state: NDArray[np.int64], time_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    index = np.arange(len(state))
    last_zero = np.maximum.accumulate(np.where(state == 0, index, -1))
    period_ms = int(np.median(np.diff(time_ms))) if len(time_ms) > 1 else DECISION_MS
    return (index - last_zero) * max(1, period_ms // DECISION_MS) * (state != 0)


def gearbox_counter(gearbox_state: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns [N] the number of consecutive decisions, up to this one, with a gearbox state [N] other than 0.

    It is 0 at the first decision: nothing has been decided yet.
    """
    counter = np.zeros(len(gearbox_state), np.float32)
    for decision in range(1, len(counter)):
        counter[decision] = counter[decision - 1] + 1 if gearbox_state[decision] != 0 else 0
    return counter


def interpolate_rows(time_ms: NDArray[np.int64], rows: NDArray[np.float32], at_ms: NDArray) -> NDArray[np.float32]:
    """Interpolates rows at arbitrary times, for example 20 frames a second from 10 samples.

    Position is a cubic Hermite spline with the stored velocities, rotation is slerped, velocities, damper and rpm are
    linear, all other fields come from the nearer sample. Across a jump (a respawn) the whole row comes from the nearer
    sample. Past the last sample the car keeps its velocity.

    Args:
        time_ms: [S] int64 increasing sample times.
        rows: [S, NUM_CAR_FIELDS] rows at those times.
        at_ms: [N] requested times, at most `MAX_EXTRAPOLATION_MS` after the last sample; times before the first sample
            count as the first.

    Returns:
        [N, NUM_CAR_FIELDS] float32 rows.

    Raises:
        NoSamplesError: if there are no samples, or a time is too far past the last.
    """
    if len(time_ms) == 0 or np.max(at_ms, initial=0) > time_ms[-1] + MAX_EXTRAPOLATION_MS:
        last = int(time_ms[-1]) if len(time_ms) else None
        message = f"a pose at {np.max(at_ms, initial=0):.0f} ms was asked for, the last sample is at {last} ms"
        raise NoSamplesError(message)
    at = np.maximum(np.asarray(at_ms, dtype=np.float64), time_ms[0])
    first = np.clip(np.searchsorted(time_ms, at, side="right") - 1, 0, max(0, len(time_ms) - 2))
    second = np.minimum(first + 1, len(time_ms) - 1)
    step_s = np.maximum(time_ms[second] - time_ms[first], 1) / 1000
    since_s = (at - time_ms[first]) / 1000
    share = np.clip(since_s / step_s, 0.0, 1.0)
    start, end = rows[first].astype(np.float64), rows[second].astype(np.float64)
    mixed = np.where((share < 0.5)[:, None], start, end)
    is_path, blended = ~_is_jump(start, end, step_s), _blend(start, end, share, step_s)
    for name in _MOVING:
        mixed[is_path, CAR[name]] = blended[is_path, CAR[name]]
    beyond_s = np.maximum(at - time_ms[-1], 0.0) / 1000
    mixed[:, CAR["position"]] += beyond_s[:, None] * mixed[:, CAR["velocity"]]
    return mixed.astype(np.float32)


def _is_jump(start: NDArray, end: NDArray, step_s: NDArray) -> NDArray[np.bool_]:
    distance = np.linalg.norm(end[:, CAR["position"]] - start[:, CAR["position"]], axis=1)
    speeds = [np.linalg.norm(row[:, CAR["velocity"]], axis=1) for row in (start, end)]
    return distance > MAX_GAP_FACTOR * np.maximum(*speeds) * step_s + MAX_GAP_M


def _blend(start: NDArray, end: NDArray, share: NDArray, step_s: NDArray) -> NDArray[np.float64]:
    result = (1 - share)[:, None] * start + share[:, None] * end
    s, h = share[:, None], step_s[:, None]
    position, velocity = CAR["position"], CAR["velocity"]
    result[:, position] = (
        (1 + 2 * s) * (1 - s) ** 2 * start[:, position]
        + s * (1 - s) ** 2 * h * start[:, velocity]
        + s**2 * (3 - 2 * s) * end[:, position]
        + s**2 * (s - 1) * h * end[:, velocity]
    )
    first, second = (Rotation.from_matrix(row[:, CAR["rotation"]].reshape(-1, 3, 3)) for row in (start, end))
    turn = Rotation.from_rotvec(share[:, None] * (second * first.inv()).as_rotvec())
    result[:, CAR["rotation"]] = (turn * first).as_matrix().reshape(-1, 9)
    return result
