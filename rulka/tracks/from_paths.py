"""A track from recorded drives: its centreline is where people drove.

Every path is cut at its finish and made dense. All are then read side by side, by progress along one of them, and the
line goes through their median, smoothed and spaced evenly. The road's roll is the cars' own while they touched the
ground, upside down in a loop included; the ground under their wheels is its surface, and a gate lies where they were
at the time of its checkpoint.

Dimensions: K paths, S samples of a path, D dense points of a path, Z zones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.observation import CAR, ZONE_SPACING_M
from rulka.tracks.progress import all_zones, line_frames, progress_along
from rulka.tracks.track import Track, TrackError

DENSE_MS = 5
"""Time between points of a path made dense: well under a metre at any speed."""
MAX_AFTER_LAST_SAMPLE_MS = 200
"""A finish this long after the last sample is still extrapolated to."""
MAX_GAP_FACTOR, MAX_GAP_M = 2.0, 10.0
"""A step between samples larger than this times the speed, plus this, is a respawn, not a path."""
MIN_LENGTH_M = 20.0
MAX_AWAY_M = 30.0
"""A path further than this from the others somewhere took another way."""
SMOOTHING_M = 3.0
"""Standard deviation of the smoothing of line, roll and width along the line, metres."""
EXTENSION_M = 20.0
"""Straight line added at both ends before smoothing, so that the ends stay where they are."""
EDGE_MARGIN_M = 4.0
"""Least distance from a recorded path to the edge of the road."""
CAR_HEIGHT_M = 0.36
"""Height of a recorded position above the ground: the StadiumCar at rest is at 9.36 m on ground at 9 m."""
MIN_GATE_GAP_M = 1.0
"""Checkpoints nearer to another than this are one gate."""
NUM_ALIGNMENTS = 2
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
        checkpoint_times_ms: time at each checkpoint, the finish last.
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
        checkpoint_times_ms: time at each checkpoint, the finish last; None for one not reached.
    """
    contact = rows[:, CAR["has_contact"]] > 0.5
    ids = rows[:, CAR["material"]].astype(np.int64)
    alike = ((ids[:, :, None] == ids[:, None, :]) & contact[:, None, :]).sum(axis=2) * contact
    most = np.take_along_axis(ids, alike.argmax(axis=1)[:, None], axis=1)[:, 0]
    return DrivenPath(
        time_ms=time_ms,
        position=rows[:, CAR["position"]],
        velocity=rows[:, CAR["velocity"]],
        up=rows[:, CAR["rotation"]].reshape(-1, 3, 3)[:, :, 1],
        checkpoint_times_ms=tuple(time for time in checkpoint_times_ms if time is not None),
        material=np.where(contact.any(axis=1), most, NOT_ON_GROUND),
    )


def track_from_paths(
    uid: str,
    name: str,
    paths: Sequence[DrivenPath],
    default_width_m: float = 16.0,
    car_height_m: float = CAR_HEIGHT_M,
) -> Track:
    """Builds a track from drives on one map; those that cannot be used are left out.

    Args:
        uid: the map's unique name.
        name: for people.
        paths: finished drives of the same map; one is enough, more make the line a mean of them.
        default_width_m: full width of the road where the drives do not need more.
        car_height_m: height of the recorded positions above the ground.

    Raises:
        TrackError: if not one drive can be used, with the reasons.
    """
    reasons = [(index, _problem(path)) for index, path in enumerate(paths)]
    dense = [_make_dense(paths[index], car_height_m) for index, problem in reasons if problem is None]
    dense = [path for path in dense if path.length_m >= MIN_LENGTH_M]
    if not dense:
        listed = "; ".join(f"drive {index}: {problem or 'too short'}" for index, problem in reasons) or "none is given"
        message = f"track {name!r} cannot be made from {len(paths)} drives: {listed}"
        raise TrackError(message, hint="A track needs one finished drive without a respawn; add another recording.")
    centre, aligned = _common_line(uid, name, dense)
    width_m = _width(aligned, default_width_m)
    zones = len(centre)
    return Track(
        uid=uid,
        name=name,
        centre_m=centre,
        width_m=width_m,
        bank_rad=_bank(uid, name, centre, aligned),
        material=_material(aligned, zones),
        gate_m=_gates(aligned, (zones - 1) * ZONE_SPACING_M),
        source=f"driven paths of {len(aligned)} of {len(paths)} recordings",
    )


def _problem(path: DrivenPath) -> str | None:
    """Returns why a path cannot be used, None when it can."""
    if len(path.time_ms) < 2 or (np.diff(path.time_ms) <= 0).any():
        return "its samples are too few or not in order of time"
    if not all(np.isfinite(part).all() for part in (path.position, path.velocity, path.up)):
        return "it holds a value that is not finite"
    if not path.checkpoint_times_ms or max(path.checkpoint_times_ms) <= path.time_ms[0]:
        return "it was not finished"
    if max(path.checkpoint_times_ms) > path.time_ms[-1] + MAX_AFTER_LAST_SAMPLE_MS:
        return "its samples end before the finish"
    race = path.time_ms <= max(path.checkpoint_times_ms)
    step_m = np.linalg.norm(np.diff(path.position[race], axis=0), axis=1)
    speed_mps = np.linalg.norm(path.velocity[race], axis=1)
    reach_m = MAX_GAP_FACTOR * np.maximum(speed_mps[1:], speed_mps[:-1]) * np.diff(path.time_ms[race]) / 1000
    return "it holds a respawn" if (step_m > reach_m + MAX_GAP_M).any() else None


@dataclass(frozen=True)
class _Dense:
    """A path made dense and cut at its finish: [D] times, [D, 3] ground points, [D, 3] left axes, [D] materials.

    `along_m` is [D] the progress along the common line, once there is one; `lateral_m` the distance left of it.
    """

    time_ms: NDArray[np.float64]
    point: NDArray[np.float64]
    left: NDArray[np.float64]
    material: NDArray[np.int64]
    gate_times_ms: tuple[int, ...]
    along_m: NDArray[np.float64]
    lateral_m: NDArray[np.float64]

    @property
    def length_m(self) -> float:
        return float(np.linalg.norm(np.diff(self.point, axis=0), axis=1).sum())


def _make_dense(path: DrivenPath, car_height_m: float) -> _Dense:
    finish_ms = max(path.checkpoint_times_ms)
    first_ms = int(path.time_ms[0])
    times = np.append(np.arange(first_ms, finish_ms, DENSE_MS), finish_ms).astype(np.float64)
    position = _hermite(path, times)
    up = np.stack([np.interp(times, path.time_ms, path.up[:, axis]) for axis in range(3)], axis=1)
    up /= np.maximum(np.linalg.norm(up, axis=1, keepdims=True), 1e-9)
    point = position - car_height_m * up
    is_moving = np.append(True, np.linalg.norm(np.diff(point, axis=0), axis=1) > 1e-3)
    nearest = np.clip(np.searchsorted(path.time_ms, times - DENSE_MS), 0, len(path.time_ms) - 1)
    material = np.full(len(path.time_ms), ASPHALT) if path.material is None else path.material
    forward = np.gradient(position, axis=0)
    times, point, up, forward = times[is_moving], point[is_moving], up[is_moving], forward[is_moving]
    left = np.cross(up, forward)
    left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    unknown = np.zeros(len(times))
    gates = tuple(sorted(path.checkpoint_times_ms))
    return _Dense(times, point, left, material[nearest[is_moving]], gates, unknown, unknown)


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


def _common_line(uid: str, name: str, paths: list[_Dense]) -> tuple[NDArray[np.float64], list[_Dense]]:
    """Returns [Z, 3] the line through the median of the paths, and the paths that follow it, aligned to it."""
    reference = sorted(paths, key=lambda path: path.length_m)[(len(paths) - 1) // 2]
    centre = _evenly_spaced(reference.point)
    for _ in range(NUM_ALIGNMENTS):
        aligned = [path for path in (_align(uid, name, centre, path) for path in paths) if _follows(path, centre)]
        along_m = np.arange(len(centre)) * ZONE_SPACING_M
        points = np.stack([_at(path, path.point, along_m) for path in aligned])
        centre = _evenly_spaced(np.median(points, axis=0))
    return centre, [path for path in (_align(uid, name, centre, path) for path in paths) if _follows(path, centre)]


def _evenly_spaced(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooths a line and returns points on it `ZONE_SPACING_M` apart, from its start to its finish."""
    length_m, line = _spaced(points)
    num_extra = round(EXTENSION_M / ZONE_SPACING_M)
    steps = np.arange(1, num_extra + 1)[:, None]
    before = line[0] - steps[::-1] * (line[1] - line[0])
    after = line[-1] + steps * (line[-1] - line[-2])
    smooth = _smooth(np.concatenate([before, line, after]))
    start = int(np.linalg.norm(smooth - line[0], axis=1)[: 2 * num_extra].argmin())
    _, spaced = _spaced(smooth[start:])
    finish = len(spaced) - 2 * num_extra + int(np.linalg.norm(spaced[-2 * num_extra :] - line[-1], axis=1).argmin())
    return spaced[: max(2, finish + 1)]


def _spaced(points: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Returns the length of a line and points on it one spacing apart; its last point is kept within half of one."""
    along_m = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
    wanted_m = np.arange(round(along_m[-1] / ZONE_SPACING_M) + 1) * ZONE_SPACING_M
    spaced = np.stack([np.interp(wanted_m, along_m, points[:, axis]) for axis in range(3)], axis=1)
    return float(along_m[-1]), spaced


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooths [Z, ...] values along the line; the ends are held."""
    reach = round(3 * SMOOTHING_M / ZONE_SPACING_M)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * ZONE_SPACING_M / SMOOTHING_M) ** 2)
    kernel /= kernel.sum()
    columns = values.reshape(len(values), -1)
    padded = np.pad(columns, ((reach, reach), (0, 0)), mode="edge")
    smooth = np.stack([np.convolve(column, kernel, mode="valid") for column in padded.T], axis=1)
    return smooth.reshape(values.shape)


def _align(uid: str, name: str, centre: NDArray[np.float64], path: _Dense) -> _Dense:
    """Returns the path with its progress along the line and its distance left of it."""
    _, along_m, lateral_m = progress_along(_bare_track(uid, name, centre), path.point)
    along_m = np.maximum.accumulate(np.asarray(along_m, np.float64))
    lateral = np.asarray(lateral_m, np.float64)
    return _Dense(path.time_ms, path.point, path.left, path.material, path.gate_times_ms, along_m, lateral)


def _bare_track(uid: str, name: str, centre: NDArray[np.float64]) -> Track:
    zones = len(centre)
    length_m = (zones - 1) * ZONE_SPACING_M
    surface = np.full(zones, ASPHALT, np.uint8)
    return Track(uid, name, centre, np.full(zones, 16.0), np.zeros(zones), surface, np.array([length_m]), "")


def _follows(path: _Dense, centre: NDArray[np.float64]) -> bool:
    """Whether a path stays by the line and reaches its end."""
    away_m = np.linalg.norm(path.point - _on_line(centre, path.along_m), axis=1)
    return float(away_m.max()) <= MAX_AWAY_M


def _on_line(centre: NDArray[np.float64], along_m: NDArray[np.float64]) -> NDArray[np.float64]:
    stations = np.arange(len(centre)) * ZONE_SPACING_M
    return np.stack([np.interp(along_m, stations, centre[:, axis]) for axis in range(3)], axis=1)


def _at(path: _Dense, values: NDArray[np.float64], along_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns a path's [D, 3] values at each progress along the line."""
    return np.stack([np.interp(along_m, path.along_m, values[:, axis]) for axis in range(3)], axis=1)


def _width(paths: list[_Dense], default_width_m: float) -> NDArray[np.float64]:
    raise NotImplementedError
