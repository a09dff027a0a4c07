"""The drives that tracks are made of: from sampled poses to a dense path on the ground, cut at the finish.

Dimensions: S samples of a path, D dense points of a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.observation import CAR

DENSE_MS = 5
"""Time between points of a path made dense: well under a metre at any speed."""
MAX_AFTER_LAST_SAMPLE_MS = 200
"""A finish this long after the last sample is still extrapolated to."""
MAX_GAP_FACTOR, MAX_GAP_M = 2.0, 10.0
"""A step between samples larger than this times the speed, plus this, is a respawn, not a path."""
MAX_RACE_MS = 3 * 3_600_000
MAX_LENGTH_M, MAX_COORDINATE_M, MAX_SPEED_MPS = 200_000.0, 100_000.0, 2_000.0
"""Drives beyond these are damaged ones."""
MIN_LENGTH_M = 20.0
MIN_STEP_M = 1e-3
"""Dense points nearer than this to the one before are dropped: the car stands."""
ASPHALT = 16
NOT_ON_GROUND = -1


@dataclass(frozen=True)
class DrivenPath:
    """One drive from the start to the finish.

    Attributes:
        time_ms: [S] int64 increasing race times.
        position: [S, 3] world metres.
        velocity: [S, 3] world m/s.
        up: [S, 3] the car's up axis in the world.
        checkpoint_times_ms: time at each checkpoint, the finish last; empty when it was not finished.
        material: [S] id of the ground under most of the wheels, `NOT_ON_GROUND` in the air; None where not known.
    """

    time_ms: NDArray[np.int64]
    position: NDArray
    velocity: NDArray
    up: NDArray
    checkpoint_times_ms: tuple[int, ...]
    material: NDArray[np.int64] | None = None


def path_from_rows(
    time_ms: NDArray[np.int64], rows: NDArray[np.float32], checkpoint_times_ms: Sequence[int | None]
) -> DrivenPath:
    """Makes a path of the `CAR` rows of a race.

    Args:
        time_ms: [S] int64 time of each row.
        rows: [S, NUM_CAR_FIELDS] rows.
        checkpoint_times_ms: time at each checkpoint, the finish last; None for one not reached. Without the last
            one the path counts as not finished.
    """
    contact = rows[:, CAR["has_contact"]] > 0.5
    ids = rows[:, CAR["material"]].astype(np.int64)
    alike = ((ids[:, :, None] == ids[:, None, :]) & contact[:, None, :]).sum(axis=2) * contact
    most = np.take_along_axis(ids, alike.argmax(axis=1)[:, None], axis=1)[:, 0]
    is_finished = len(checkpoint_times_ms) > 0 and checkpoint_times_ms[-1] is not None
    return DrivenPath(
        time_ms=time_ms,
        position=rows[:, CAR["position"]],
        velocity=rows[:, CAR["velocity"]],
        up=rows[:, CAR["rotation"]].reshape(-1, 3, 3)[:, :, 1],
        checkpoint_times_ms=tuple(time for time in checkpoint_times_ms if time is not None) if is_finished else (),
        material=np.where(contact.any(axis=1), most, NOT_ON_GROUND),
    )


def problem_of(path: DrivenPath) -> str | None:
    """Returns why no car can have driven a path to its finish, None when one can; see `jump_of` for jumps in it."""
    if len(path.time_ms) < 2 or (np.diff(path.time_ms) <= 0).any():
        return "its samples are too few or not in order of time"
    limits = ((path.position, MAX_COORDINATE_M), (path.velocity, MAX_SPEED_MPS), (path.up, 2.0))
    if not all((np.abs(values) < limit).all() for values, limit in limits):  # false for what is not a number, too
        return "it holds positions or velocities that no drive has"
    if not path.checkpoint_times_ms or max(path.checkpoint_times_ms) <= path.time_ms[0]:
        return "it was not finished"
    if max(path.checkpoint_times_ms) > path.time_ms[-1] + MAX_AFTER_LAST_SAMPLE_MS:
        return "its samples end before the finish"
    if max(path.checkpoint_times_ms) > MAX_RACE_MS:
        return f"it lasts longer than {MAX_RACE_MS // 3_600_000} hours"
    race = path.time_ms <= max(path.checkpoint_times_ms)
    length_m = np.linalg.norm(np.diff(path.position[race], axis=0), axis=1).sum()
    if length_m < MIN_LENGTH_M:
        return f"it is too short: {length_m:.0f} m, {MIN_LENGTH_M:.0f} m is the least"
    return None if length_m < MAX_LENGTH_M else f"it is longer than {MAX_LENGTH_M / 1000:.0f} km"


def jump_of(path: DrivenPath) -> str | None:
    """Returns where a path leaps further than its speed allows, as at a respawn, before the finish; None if nowhere."""
    race = path.time_ms <= max(path.checkpoint_times_ms, default=path.time_ms[-1])
    time_ms = path.time_ms[race]
    step_m = np.linalg.norm(np.diff(path.position[race], axis=0), axis=1)
    speed_mps = np.linalg.norm(path.velocity[race], axis=1)
    reach_m = MAX_GAP_FACTOR * np.maximum(speed_mps[1:], speed_mps[:-1]) * np.diff(time_ms) / 1000 + MAX_GAP_M
    is_jump = step_m > reach_m
    if not is_jump.any():
        return None
    at = int(is_jump.argmax())
    return f"it jumps {step_m[at]:.0f} m between {time_ms[at] / 1000:.2f} s and {time_ms[at + 1] / 1000:.2f} s"


@dataclass(frozen=True)
class DensePath:
    """A path made dense and cut at its finish.

    Attributes:
        time_ms: [D] race times.
        point: [D, 3] points on the ground below the car.
        left: [D, 3] the car's left axis.
        has_roll: [D] 1 where the car was on the ground at the samples before and after, else 0.
        material: [D] id of the ground, `NOT_ON_GROUND` in the air.
        gate_times_ms: time at each checkpoint in order, the finish last.
        along_m: [D] progress along the common line, zeros before there is one.
    """

    time_ms: NDArray[np.float64]
    point: NDArray[np.float64]
    left: NDArray[np.float64]
    has_roll: NDArray[np.float64]
    material: NDArray[np.int64]
    gate_times_ms: tuple[int, ...]
    along_m: NDArray[np.float64]

    @property
    def length_m(self) -> float:
        """Length of the path, metres."""
        return float(np.linalg.norm(np.diff(self.point, axis=0), axis=1).sum())


def make_dense(path: DrivenPath, car_height_m: float) -> DensePath:
    """Interpolates a usable path to a point every `DENSE_MS`, the last exactly at the finish time.

    Args:
        path: a path without a problem.
        car_height_m: height of the recorded positions above the ground, along the car's up axis.
    """
    finish_ms = max(path.checkpoint_times_ms)
    times = np.append(np.arange(int(path.time_ms[0]), finish_ms, DENSE_MS), finish_ms).astype(np.float64)
    position = _hermite(path, times)
    up = np.stack([np.interp(times, path.time_ms, path.up[:, axis]) for axis in range(3)], axis=1)
    up /= np.maximum(np.linalg.norm(up, axis=1, keepdims=True), 1e-9)
    left = np.cross(up, np.gradient(position, axis=0))
    left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    point = position - car_height_m * up
    material, has_roll = _ground(path, times)
    is_moving = np.append(True, np.linalg.norm(np.diff(point, axis=0), axis=1) > MIN_STEP_M)
    return DensePath(
        time_ms=times[is_moving],
        point=point[is_moving],
        left=left[is_moving],
        has_roll=has_roll[is_moving],
        material=material[is_moving],
        gate_times_ms=tuple(sorted(path.checkpoint_times_ms)),
        along_m=np.zeros(int(is_moving.sum())),
    )


def _ground(path: DrivenPath, times: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns [D] the material at the nearest sample, and [D] whether the car was on the ground before and after."""
    material = np.full(len(path.time_ms), ASPHALT) if path.material is None else path.material
    nearest = np.searchsorted((path.time_ms[1:] + path.time_ms[:-1]) / 2, times)
    first = np.clip(np.searchsorted(path.time_ms, times, side="right") - 1, 0, len(path.time_ms) - 2)
    is_on = material != NOT_ON_GROUND
    return material[nearest], (is_on[first] & is_on[first + 1]).astype(np.float64)


def _hermite(path: DrivenPath, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [D, 3] positions on the cubics that have the recorded velocities; straight on past the last sample."""
    position, velocity = path.position.astype(np.float64), path.velocity.astype(np.float64)
    first = np.clip(np.searchsorted(path.time_ms, times, side="right") - 1, 0, len(path.time_ms) - 2)
    step_s = (path.time_ms[first + 1] - path.time_ms[first])[:, None] / 1000
    s = np.clip((times - path.time_ms[first])[:, None] / 1000 / step_s, 0.0, 1.0)
    inside = (
        (1 + 2 * s) * (1 - s) ** 2 * position[first]
        + s * (1 - s) ** 2 * step_s * velocity[first]
        + s**2 * (3 - 2 * s) * position[first + 1]
        + s**2 * (s - 1) * step_s * velocity[first + 1]
    )
    beyond_s = np.maximum(times - path.time_ms[-1], 0.0)[:, None] / 1000
    return inside + beyond_s * velocity[-1]
