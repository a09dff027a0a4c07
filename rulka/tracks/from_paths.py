"""A track from recorded drives: its centreline is where people drove.

Every path is cut at its finish and made dense. All are then read side by side, by progress along one of them, and the
line goes through their median, smoothed and spaced evenly. The road's roll is the cars' own while they touched the
ground, upside down in a loop included; the ground under their wheels is its surface, and a gate lies where they were
at the time of its checkpoint.

Dimensions: D dense points of a path, Z zones, G gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rulka.observation import ZONE_SPACING_M
from rulka.tracks.axes import line_frames
from rulka.tracks.driven_path import (
    ASPHALT,
    DensePath,
    DrivenPath,
    jump_of,
    make_dense,
    path_from_rows,
    problem_of,
)
from rulka.tracks.progress import all_zones, progress_along
from rulka.tracks.track import DRIVEN_SOURCE, VERGE, Track, TrackError

__all__ = ["DrivenPath", "path_from_rows", "track_from_paths"]

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
MIN_WEIGHT = 0.05
"""The roll counts as known where at least this share of the paths was on the ground."""
NUM_MATERIALS = 32


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
    reasons = [problem_of(path) or jump_of(path) for path in paths]
    dense = [make_dense(path, car_height_m) for path, reason in zip(paths, reasons, strict=True) if reason is None]
    if not dense:
        listed = "; ".join(f"drive {index}: {reason}" for index, reason in enumerate(reasons)) or "none is given"
        message = f"track {name!r} cannot be made from {len(paths)} drives: {listed}"
        raise TrackError(message, hint="A track needs one finished drive without a respawn; add another recording.")
    centre, aligned = _common_line(dense)
    axes = _axes(centre)
    left = _left_axes(axes, aligned)
    zones = len(centre)
    return Track(
        uid=uid,
        name=name,
        centre_m=centre,
        width_m=_width(centre, left, aligned, default_width_m),
        bank_rad=_bank(axes, left),
        material=_material(aligned, zones),
        edge=np.full(zones, VERGE, np.uint8),
        gate_m=_gates(aligned, (zones - 1) * ZONE_SPACING_M),
        source=f"{DRIVEN_SOURCE} of {len(aligned)} of {len(paths)} recordings",
    )


def _common_line(paths: list[DensePath]) -> tuple[NDArray[np.float64], list[DensePath]]:
    """Returns [Z, 3] the line through the median of the paths, and the paths that follow it, aligned to it."""
    reference = min(paths, key=lambda path: path.time_ms[-1])  # the fastest drive is the one least likely to stray
    centre = _evenly_spaced(reference.point)
    for _ in range(NUM_ALIGNMENTS):
        aligned = _followers(centre, paths)
        along_m = np.arange(len(centre)) * ZONE_SPACING_M
        points = np.stack([_at(path, path.point, along_m) for path in aligned])
        centre = _evenly_spaced(np.median(points, axis=0))
    return centre, _followers(centre, paths)


def _followers(centre: NDArray[np.float64], paths: list[DensePath]) -> list[DensePath]:
    """Returns the paths that stay by the line, aligned to it."""
    followers = [path for path in (_align(centre, path) for path in paths) if _follows(path, centre)]
    if not followers:
        message = f"none of {len(paths)} drives stays within {MAX_AWAY_M:.0f} m of their common line"
        raise TrackError(message, hint="Leave out recordings that cut the track or fall off it.")
    return followers


def _evenly_spaced(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooths a line and returns points on it `ZONE_SPACING_M` apart, from its start to its finish."""
    line = _spaced(points)
    num_extra = round(EXTENSION_M / ZONE_SPACING_M)
    steps = np.arange(1, num_extra + 1)[:, None]
    before = line[0] - steps[::-1] * (line[1] - line[0])
    after = line[-1] + steps * (line[-1] - line[-2])
    smooth = _smooth(np.concatenate([before, line, after]))
    start = int(np.linalg.norm(smooth - line[0], axis=1)[: 2 * num_extra].argmin())
    spaced = _spaced(smooth[start:])
    finish = len(spaced) - 2 * num_extra + int(np.linalg.norm(spaced[-2 * num_extra :] - line[-1], axis=1).argmin())
    return spaced[: max(2, finish + 1)]


def _spaced(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns points on a line one spacing apart, from its first to within half a spacing of its last."""
    along_m = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
    wanted_m = np.arange(round(along_m[-1] / ZONE_SPACING_M) + 1) * ZONE_SPACING_M
    return np.stack([np.interp(wanted_m, along_m, points[:, axis]) for axis in range(3)], axis=1)


def _smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smooths [Z, ...] values along the line; the ends are held."""
    reach = round(3 * SMOOTHING_M / ZONE_SPACING_M)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * ZONE_SPACING_M / SMOOTHING_M) ** 2)
    kernel /= kernel.sum()
    columns = values.reshape(len(values), -1)
    padded = [np.pad(column, reach, mode="edge") for column in columns.T]
    smooth = np.stack([np.convolve(column, kernel, mode="valid") for column in padded], axis=1)
    return np.asarray(smooth, np.float64).reshape(values.shape)


def _align(centre: NDArray[np.float64], path: DensePath) -> DensePath:
    """Returns the path with its progress along the line."""
    _, along_m, _ = progress_along(_bare_track(centre), path.point)
    return replace(path, along_m=np.maximum.accumulate(np.asarray(along_m, np.float64)))


def _bare_track(centre: NDArray[np.float64]) -> Track:
    zones = len(centre)
    surface, edge = np.full(zones, ASPHALT, np.uint8), np.full(zones, VERGE, np.uint8)
    finish = np.array([(zones - 1) * ZONE_SPACING_M])
    return Track("", "", centre, np.full(zones, 2 * MAX_AWAY_M), np.zeros(zones), surface, edge, finish, DRIVEN_SOURCE)


@dataclass(frozen=True)
class _Axes:
    """[Z, 3] each: direction of the line, and left and normal of a level road on it."""

    tangent: NDArray[np.float64]
    level: NDArray[np.float64]
    upright: NDArray[np.float64]


def _axes(centre: NDArray[np.float64]) -> _Axes:
    tangent, level, upright = line_frames(all_zones(_bare_track(centre)))
    return _Axes(tangent[: len(centre)], level[: len(centre)], upright[: len(centre)])


def _follows(path: DensePath, centre: NDArray[np.float64]) -> bool:
    """Whether a path stays by the line and reaches its end."""
    away_m = np.linalg.norm(path.point - _on_line(centre, path.along_m), axis=1)
    return float(away_m.max()) <= MAX_AWAY_M


def _on_line(centre: NDArray[np.float64], along_m: NDArray[np.float64]) -> NDArray[np.float64]:
    stations = np.arange(len(centre)) * ZONE_SPACING_M
    return np.stack([np.interp(along_m, stations, centre[:, axis]) for axis in range(3)], axis=1)


def _at(path: DensePath, values: NDArray[np.float64], along_m: NDArray) -> NDArray[np.float64]:
    """Returns a path's [D, 3] values at each progress along the line."""
    return np.stack([np.interp(along_m, path.along_m, values[:, axis]) for axis in range(3)], axis=1)


def _left_axes(axes: _Axes, paths: list[DensePath]) -> NDArray[np.float64]:
    """Returns [Z, 3] the road's left axis: the mean of the cars' own while they were on the ground."""
    along_m = np.arange(len(axes.tangent)) * ZONE_SPACING_M
    total = np.zeros_like(axes.tangent)
    for path in paths:
        total += _at(path, path.left * path.has_roll[:, None], along_m)
    weight = np.linalg.norm(total, axis=1)
    known = weight > MIN_WEIGHT * len(paths)
    if not known.any():
        return axes.level
    stations = np.flatnonzero(known)
    filled = np.stack([np.interp(np.arange(len(total)), stations, total[stations, axis]) for axis in range(3)], axis=1)
    left = _smooth(filled)
    left -= (left * axes.tangent).sum(axis=1, keepdims=True) * axes.tangent
    return left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)


def _bank(axes: _Axes, left: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [Z] the roll that turns a level road's left axis into the given one; near pi upside down."""
    return np.arctan2((left * axes.upright).sum(axis=1), (left * axes.level).sum(axis=1))


def _width(
    centre: NDArray[np.float64], left: NDArray[np.float64], paths: list[DensePath], default_width_m: float
) -> NDArray[np.float64]:
    """Returns [Z] a width that holds every path with a margin, and never less than the default."""
    along_m = np.arange(len(centre)) * ZONE_SPACING_M
    aside_m = np.stack([((_at(path, path.point, along_m) - centre) * left).sum(axis=1) for path in paths])
    reach_m = np.abs(aside_m).max(axis=0)
    span = round(3 * SMOOTHING_M / ZONE_SPACING_M)
    padded = np.pad(reach_m, span, mode="edge")
    widest = np.lib.stride_tricks.sliding_window_view(padded, 2 * span + 1).max(axis=1)
    return np.maximum(default_width_m, _smooth(2 * (widest + EDGE_MARGIN_M)))


def _material(paths: list[DensePath], zones: int) -> NDArray[np.uint8]:
    """Returns [Z] the material that most paths had under their wheels; in the air that of the ground before."""
    along_m = np.arange(zones) * ZONE_SPACING_M
    votes = np.zeros((zones, NUM_MATERIALS), dtype=np.int64)
    for path in paths:
        point = np.clip(np.searchsorted(path.along_m, along_m), 0, len(path.along_m) - 1)
        found = path.material[point]
        stations = np.flatnonzero((found >= 0) & (found < NUM_MATERIALS))
        votes[stations, found[stations]] += 1
    known = votes.max(axis=1) > 0
    before = np.maximum.accumulate(np.where(known, np.arange(zones), -1))
    surface = np.where(before >= 0, votes.argmax(axis=1)[np.maximum(before, 0)], ASPHALT)
    return surface.astype(np.uint8)


def _gates(paths: list[DensePath], length_m: float) -> NDArray[np.float64]:
    """Returns [G] the median progress at each checkpoint time, of the paths with the usual number of checkpoints."""
    counts = [len(path.gate_times_ms) for path in paths]
    usual = max(set(counts), key=counts.count)
    times = [path for path in paths if len(path.gate_times_ms) == usual]
    along_m = np.median([np.interp(path.gate_times_ms, path.time_ms, path.along_m) for path in times], axis=0)
    gates = []
    for gate_m in along_m[:-1]:
        if gate_m > (gates[-1] if gates else 0.0) + MIN_GATE_GAP_M and gate_m < length_m - MIN_GATE_GAP_M:
            gates.append(float(gate_m))
    return np.array([*gates, length_m])
