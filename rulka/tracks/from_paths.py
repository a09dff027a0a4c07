"""Builds a track from recorded drives: its centreline is where people drove.

Every path is cut at its finish and upsampled. The paths are aligned by progress along one of them, and the line is
their median, smoothed and evenly spaced. The road's roll is the cars' roll on the ground, also upside down in a loop;
its surface is the ground under their wheels, and a gate lies at the cars' position at the checkpoint time.

Dimensions: S samples of a path, D dense points of it, Z zones, G gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicHermiteSpline
from scipy.ndimage import gaussian_filter1d, maximum_filter1d

from rulka.contracts.observation import CAR, CENTRE_OF_MASS_M, TURBO_IDS, ZONE_SPACING_M, centres_of_mass
from rulka.machine.errors import counted
from rulka.tracks.blocks import MapBlock, add_blocks, gaps_of
from rulka.tracks.difficulty import ASPHALT
from rulka.tracks.geometry import line_frames
from rulka.tracks.progress import progress_along
from rulka.tracks.track import DRIVEN_SOURCE, MAX_COORDINATE_M, MAX_LENGTH_M, NO_GROUND, VERGE, Track, TrackError

Floats = NDArray[np.float64]

DENSE_MS = 5
"""Time between points of a dense path: well under a metre at any speed."""
MAX_AFTER_LAST_SAMPLE_MS = 200
"""Longest extrapolation from the last sample to the finish."""
MAX_GAP_FACTOR, MAX_GAP_M = 2.0, 10.0
"""A step between samples longer than the factor times speed times time, plus `MAX_GAP_M`, is a respawn."""
MAX_SPEED_MPS = 2_000.0
"""Drives beyond this, or beyond the limits of a track, are corrupt."""
MIN_LENGTH_M = 20.0
MIN_STEP_M = 1e-3
"""Dense points closer than this to the one before are dropped: the car stands."""
NOT_ON_GROUND = -1
TURBO_MS = 250
"""Duration of a turbo after its pad."""

MAX_AWAY_M = 30.0
"""A path that is ever further than this from the line took another route."""
SMOOTHING_M = 3.0
"""Standard deviation of the smoothing of line, roll and width along the line, metres."""
EXTENSION_M = 20.0
"""Straight line added at both ends before smoothing, so that the ends stay where they are."""
EDGE_MARGIN_M = 4.0
"""Minimum distance from a recorded path to the edge of the road."""
DEFAULT_WIDTH_M = 16.0
"""Full width of the road, unless the drives need more."""
CAR_HEIGHT_M = 0.36 + CENTRE_OF_MASS_M[1]
"""Height of the centre of mass above the ground: the StadiumCar at rest is at 9.36 m on ground at 9 m."""
STANDS_MS = 300
"""The game drops the car onto the track at the start; after this time it stands."""
MIN_GATE_GAP_M = 1.0
"""Checkpoints closer together than this are one gate."""
LANDING_M = 24.0
"""Landing ground is extended backwards by at most this, and not past the middle of the flight."""
SURELY_LANDED_M, SLOPE_M = 12.0, 4.0
"""This far past a landing, samples every 100 ms are reliable; the ground's slope is measured over `SLOPE_M` there."""
NUM_ALIGNMENTS = 2
MIN_WEIGHT = 0.05
"""The roll is known where at least this share of the paths was on the ground."""
NUM_MATERIALS = 32


@dataclass(frozen=True)
class DrivenPath:
    """One drive from the start to the finish.

    Attributes:
        time_ms: [S] int64 increasing race times.
        position: [S, 3] centre of mass, world metres.
        velocity: [S, 3] its velocity, world m/s.
        up: [S, 3] the car's up axis in the world.
        checkpoint_times_ms: time at each checkpoint, the finish last; empty if the drive did not finish.
        material: [S] id of the ground under most of the wheels, `NOT_ON_GROUND` in the air; None if unknown.
        pads_ms: times at which the car entered and left each turbo pad; None if unknown.
    """

    time_ms: NDArray[np.int64]
    position: NDArray
    velocity: NDArray
    up: NDArray
    checkpoint_times_ms: tuple[int, ...]
    material: NDArray[np.int64] | None = None
    pads_ms: tuple[tuple[float, float], ...] | None = None


def path_from_rows(
    time_ms: NDArray[np.int64],
    rows: NDArray[np.float32],
    checkpoint_times_ms: Sequence[int | None],
    turbo: NDArray[np.float32] | None = None,
) -> DrivenPath:
    """Builds a path from the `CAR` rows of a race.

    Args:
        time_ms: [S] int64 time of each row.
        rows: [S, NUM_CAR_FIELDS] rows.
        checkpoint_times_ms: time at each checkpoint, the finish last; None for one not reached. Without the last
            one the path is unfinished.
        turbo: [S] elapsed share of a turbo, see `VehicleState`; None if unknown.
    """
    rotation = rows[:, CAR["rotation"]].reshape(-1, 3, 3)
    contact = rows[:, CAR["has_contact"]] > 0.5
    ids = rows[:, CAR["material"]].astype(np.int64)
    alike = ((ids[:, :, None] == ids[:, None, :]) & contact[:, None, :]).sum(axis=2) * contact
    most = np.take_along_axis(ids, alike.argmax(axis=1)[:, None], axis=1)[:, 0]
    pads_ms = None
    is_on_pad = bool((np.isin(ids, TURBO_IDS) & contact).any())
    # Replays from other programs, including ours, have no turbo values although wheels are on pads.
    if turbo is not None and not np.isnan(turbo).any() and (turbo.any() or not is_on_pad):
        pads_ms = pad_times(time_ms, turbo)
    is_finished = len(checkpoint_times_ms) > 0 and checkpoint_times_ms[-1] is not None
    return DrivenPath(
        time_ms=time_ms,
        position=centres_of_mass(rows),
        velocity=rows[:, CAR["velocity"]],
        up=rotation[:, :, 1],
        checkpoint_times_ms=tuple(time for time in checkpoint_times_ms if time is not None) if is_finished else (),
        material=np.where(contact.any(axis=1), most, NOT_ON_GROUND),
        pads_ms=pads_ms,
    )


def pad_times(time_ms: NDArray[np.int64], turbo: NDArray[np.float32]) -> tuple[tuple[float, float], ...]:
    """Returns the times at which a car entered and left each turbo pad, to some milliseconds.

    At time t after entering, the share is t / (t + 250 ms) on the pad and t / T past it, where T is the time on the pad
    plus 250 ms. So the first sample of a turbo gives the entry time, and the last one the time on the pad.

    Args:
        time_ms: [S] time of the samples.
        turbo: [S] elapsed share of a turbo, 0 without one.
    """
    is_on = turbo > 0.0
    first = is_on & ~(np.append(False, is_on[:-1]) & (turbo >= np.append(0.0, turbo[:-1])))
    found = []
    for start in np.flatnonzero(first):
        after = np.flatnonzero(first[start + 1 :] | ~is_on[start + 1 :])
        last = start + int(after[0]) if len(after) else len(turbo) - 1
        entered = float(time_ms[start]) - TURBO_MS * turbo[start] / (1.0 - min(turbo[start], 0.99))
        left = entered + (time_ms[last] - entered) / turbo[last] - TURBO_MS
        found.append((entered, min(float(left), float(time_ms[last]))))
    return tuple(found)


def problem_of(path: DrivenPath) -> str | None:
    """Returns why a path is invalid or unfinished, or None; `jump_of` checks for jumps."""
    if len(path.time_ms) < 2 or (np.diff(path.time_ms) <= 0).any():
        return "its samples are too few or not in order of time"
    limits = ((path.position, MAX_COORDINATE_M), (path.velocity, MAX_SPEED_MPS), (path.up, 2.0))
    if not all((np.abs(values) < limit).all() for values, limit in limits):  # also False for NaN
        return "it holds positions or velocities that no drive has"
    if not path.checkpoint_times_ms or max(path.checkpoint_times_ms) <= path.time_ms[0]:
        return "it was not finished"
    if max(path.checkpoint_times_ms) > path.time_ms[-1] + MAX_AFTER_LAST_SAMPLE_MS:
        return "its samples end before the finish"
    race = path.time_ms <= max(path.checkpoint_times_ms)
    length_m = np.linalg.norm(np.diff(path.position[race], axis=0), axis=1).sum()
    if length_m < MIN_LENGTH_M:
        return f"it is too short: {length_m:.0f} m, {MIN_LENGTH_M:.0f} m is the least"
    return None if length_m < MAX_LENGTH_M else f"it is longer than {MAX_LENGTH_M / 1000:.0f} km"


def jump_of(path: DrivenPath) -> str | None:
    """Describes the first jump before the finish that is too far for the speed, as at a respawn; None without one."""
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
    """A path, upsampled and cut at its finish.

    Attributes:
        time_ms: [D] race times.
        point: [D, 3] points on the ground below the car.
        left: [D, 3] the car's left axis.
        has_roll: [D] 1 if the car was on the ground at the samples before and after, else 0.
        material: [D] id of the ground, `NOT_ON_GROUND` in the air.
        gate_times_ms: time at each checkpoint in order, the finish last.
        along_m: [D] progress along the common line, zeros before alignment.
    """

    time_ms: Floats
    point: Floats
    left: Floats
    has_roll: Floats
    material: NDArray[np.int64]
    gate_times_ms: tuple[int, ...]
    along_m: Floats


def make_dense(path: DrivenPath) -> DensePath:
    """Interpolates a valid path to a point every `DENSE_MS`, the last exactly at the finish time."""
    finish_ms = max(path.checkpoint_times_ms)
    times = np.append(np.arange(int(path.time_ms[0]), finish_ms, DENSE_MS), finish_ms).astype(np.float64)
    position = _hermite(path, times)
    up = _interpolated(times, path.time_ms, path.up)
    up /= np.maximum(np.linalg.norm(up, axis=1, keepdims=True), 1e-9)
    left = np.cross(up, np.gradient(position, axis=0))
    left /= np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)
    point = position - CAR_HEIGHT_M * up
    begin = np.flatnonzero(times >= STANDS_MS)
    if len(begin) and path.time_ms[0] == 0:  # while the car falls, use the ground height from where it stands
        fallen = point[: begin[0]] - point[begin[0]]
        point[: begin[0]] -= (fallen @ up[begin[0]])[:, None] * up[begin[0]]
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


def _ground(path: DrivenPath, times: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Returns [D] the material, `NOT_ON_GROUND` between two samples in the air, and [D] 1 between two on the ground."""
    material = np.full(len(path.time_ms), ASPHALT) if path.material is None else path.material
    nearest = np.searchsorted((path.time_ms[1:] + path.time_ms[:-1]) / 2, times)
    first = np.clip(np.searchsorted(path.time_ms, times, side="right") - 1, 0, len(path.time_ms) - 2)
    is_on = material != NOT_ON_GROUND
    near = np.where(is_on[nearest], nearest, np.where(is_on[first], first, first + 1))
    ground = np.where(is_on[near], material[near], NOT_ON_GROUND)
    if path.pads_ms is not None:
        is_pad = np.isin(material, TURBO_IDS)
        beside = np.flatnonzero(is_on & ~is_pad)
        if len(beside):  # the ground around a pad is that before or after it
            index = np.clip(np.searchsorted(beside, first, side="right") - 1, 0, len(beside) - 1)
            ground = np.where(np.isin(ground, TURBO_IDS), material[beside[index]], ground)
        for entered, left in path.pads_ms:
            ground[(times >= entered) & (times <= left)] = TURBO_IDS[0]
    return ground, (is_on[first] & is_on[first + 1]).astype(np.float64)


def _hermite(path: DrivenPath, times: Floats) -> Floats:
    """Returns [D, 3] positions, by cubic Hermite interpolation; extrapolated linearly past the last sample."""
    last_ms = path.time_ms[-1]
    inside = CubicHermiteSpline(path.time_ms / 1000, path.position, path.velocity)(np.minimum(times, last_ms) / 1000)
    return inside + np.maximum(times - last_ms, 0.0)[:, None] / 1000 * path.velocity[-1].astype(np.float64)


def track_from_paths(uid: str, name: str, paths: Sequence[DrivenPath], blocks: Sequence[MapBlock] = ()) -> Track:
    """Builds a track from drives on one map, ignoring unusable ones.

    Args:
        uid: the map's unique name.
        name: display name.
        paths: finished drives of the same map; one is enough, with more the line is their median.
        blocks: known blocks of the map.

    Raises:
        TrackError: if no drive is usable, with the reasons.
    """
    reasons = [problem_of(path) or jump_of(path) for path in paths]
    dense = [make_dense(path) for path, reason in zip(paths, reasons, strict=True) if reason is None]
    if not dense:
        listed = "; ".join(f"drive {index}: {reason}" for index, reason in enumerate(reasons)) or "none is given"
        message = f"track {name!r} cannot be made from {counted(len(paths), 'drive')}: {listed}"
        raise TrackError(message, hint="A track needs one finished drive without a respawn; add another recording.")
    centre, aligned = _common_line(dense)
    has_pads = all(path.pads_ms is not None for path, reason in zip(paths, reasons, strict=True) if reason is None)
    line, material = add_blocks(centre, _material(aligned, len(centre)), blocks, has_pads=has_pads)
    line, material = _with_landings(line, material)
    if not np.array_equal(line, centre):
        centre, material = _spaced_anew(centre + _smooth(line - centre), material)
        aligned = _followers(centre, aligned)
    zones = len(centre)
    tangent, level, upright = (axis[:zones] for axis in line_frames(_bare_track(centre).exact_zones))
    left = _left_axes(tangent, level, aligned)
    return Track(
        uid=uid,
        name=name,
        centre_m=centre,
        width_m=_width(centre, left, aligned),
        bank_rad=np.arctan2((left * upright).sum(axis=1), (left * level).sum(axis=1)),  # near pi upside down
        material=material,
        edge=np.full(zones, VERGE, np.uint8),
        gate_m=_gates(aligned, (zones - 1) * ZONE_SPACING_M),
        source=f"{DRIVEN_SOURCE} of {len(aligned)} of {len(paths)} recordings",
    )


def _common_line(paths: list[DensePath]) -> tuple[Floats, list[DensePath]]:
    """Returns [Z, 3] the median line of the paths, and the paths that follow it, aligned to it.

    Its height is that of the ground if any path was on it, else that of the flight.
    """
    reference = min(paths, key=lambda path: path.time_ms[-1])  # the fastest drive is the least likely to stray
    centre = _evenly_spaced(reference.point)
    for _ in range(NUM_ALIGNMENTS):
        aligned = _followers(centre, paths)
        along_m = np.arange(len(centre)) * ZONE_SPACING_M
        points = np.stack([_interpolated(along_m, path.along_m, path.point) for path in aligned])
        rolls = np.stack([_material_at(path, along_m) != NOT_ON_GROUND for path in aligned])
        counts = rolls | ~rolls.any(axis=0)
        line = np.median(points, axis=0)
        line[:, 1] = np.nanmedian(np.where(counts, points[:, :, 1], np.nan), axis=0)
        centre = _evenly_spaced(line)
    return centre, _followers(centre, paths)


def _followers(centre: Floats, paths: list[DensePath]) -> list[DensePath]:
    """Returns the paths that stay within `MAX_AWAY_M` of the line, aligned to it."""
    bare, stations_m = _bare_track(centre), np.arange(len(centre)) * ZONE_SPACING_M
    followers = []
    for path in paths:
        along_m = np.maximum.accumulate(progress_along(bare, path.point)[1])
        away_m = np.linalg.norm(path.point - _interpolated(along_m, stations_m, centre), axis=1)
        if away_m.max() <= MAX_AWAY_M:
            followers.append(replace(path, along_m=along_m))
    if not followers:
        message = f"none of {counted(len(paths), 'drive')} stays within {MAX_AWAY_M:.0f} m of their common line"
        raise TrackError(message, hint="Leave out recordings that cut the track or fall off it.")
    return followers


def _evenly_spaced(points: Floats) -> Floats:
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


def _spaced(points: Floats) -> Floats:
    """Resamples a line to one spacing, from its first point to within half a spacing of its last."""
    along_m = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1)))
    wanted_m = np.arange(round(along_m[-1] / ZONE_SPACING_M) + 1) * ZONE_SPACING_M
    return _interpolated(wanted_m, along_m, points)


def _spaced_anew(line: Floats, material: NDArray[np.uint8]) -> tuple[Floats, NDArray[np.uint8]]:
    """Resamples a line to one spacing after its heights have changed, and the material with it."""
    along_m = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1)))
    beyond = line[-1] + 2.0 * (line[-1] - line[-2])
    centre = _spaced(np.concatenate([line, beyond[None]]))[: round(along_m[-1] / ZONE_SPACING_M) + 1]
    zone = np.interp(np.arange(len(centre)) * ZONE_SPACING_M, along_m, np.arange(len(line)))
    return centre, material[np.round(zone).astype(np.int64)]


def _interpolated(at: NDArray, known: NDArray, values: NDArray) -> Floats:
    """Interpolates [K, 3] values at rising positions [K] to positions [P]; returns [P, 3]."""
    return np.stack([np.interp(at, known, values[:, axis]) for axis in range(3)], axis=1)


def _smooth(values: Floats) -> Floats:
    """Smooths [Z, ...] values along the line, padding with the end values."""
    return gaussian_filter1d(values, SMOOTHING_M / ZONE_SPACING_M, axis=0, mode="nearest", truncate=3.0)


def _bare_track(centre: Floats) -> Track:
    zones = len(centre)
    surface, edge = np.full(zones, ASPHALT, np.uint8), np.full(zones, VERGE, np.uint8)
    finish = np.array([(zones - 1) * ZONE_SPACING_M])
    return Track("", "", centre, np.full(zones, 2 * MAX_AWAY_M), np.zeros(zones), surface, edge, finish, DRIVEN_SOURCE)


def _left_axes(tangent: Floats, level: Floats, paths: list[DensePath]) -> Floats:
    """Returns [Z, 3] the road's left axis: the mean left axis of the cars on the ground."""
    along_m = np.arange(len(tangent)) * ZONE_SPACING_M
    total = np.zeros_like(tangent)
    for path in paths:
        total += _interpolated(along_m, path.along_m, path.left * path.has_roll[:, None])
    weight = np.linalg.norm(total, axis=1)
    known = weight > MIN_WEIGHT * len(paths)
    if not known.any():
        return level
    stations = np.flatnonzero(known)
    filled = _interpolated(np.arange(len(total)), stations, total[stations])
    left = _smooth(filled)
    left -= (left * tangent).sum(axis=1, keepdims=True) * tangent
    return left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-9)


def _width(centre: Floats, left: Floats, paths: list[DensePath]) -> Floats:
    """Returns [Z] a width that contains every path with a margin, at least the default."""
    along_m = np.arange(len(centre)) * ZONE_SPACING_M
    aside_m = np.stack(
        [((_interpolated(along_m, path.along_m, path.point) - centre) * left).sum(axis=1) for path in paths]
    )
    reach_m = np.abs(aside_m).max(axis=0)
    widest = maximum_filter1d(reach_m, 2 * round(3 * SMOOTHING_M / ZONE_SPACING_M) + 1, mode="nearest")
    return np.maximum(DEFAULT_WIDTH_M, _smooth(2 * (widest + EDGE_MARGIN_M)))


def _material(paths: list[DensePath], zones: int) -> NDArray[np.uint8]:
    """Returns [Z] the majority material under the paths' wheels; a gap where all of them flew."""
    along_m = np.arange(zones) * ZONE_SPACING_M
    votes = np.zeros((zones, NUM_MATERIALS), dtype=np.int64)
    for path in paths:
        found = _material_at(path, along_m)
        stations = np.flatnonzero((found >= 0) & (found < NUM_MATERIALS))
        votes[stations, found[stations]] += 1
    return np.where(votes.max(axis=1) > 0, votes.argmax(axis=1), NO_GROUND).astype(np.uint8)


def _material_at(path: DensePath, along_m: NDArray) -> NDArray[np.int64]:
    """Returns [Z] the material under a path at positions along the line, `NOT_ON_GROUND` in the air."""
    return path.material[np.clip(np.searchsorted(path.along_m, along_m), 0, len(path.along_m) - 1)]


def _with_landings(centre: Floats, material: NDArray[np.uint8]) -> tuple[Floats, NDArray[np.uint8]]:
    """Extends the landing ground backwards, since a car that flies lower lands sooner.

    The extension is straight and never above the flight path. Before it, the line descends from the flight path over
    the same distance again.
    """
    centre, material = centre.copy(), material.copy()
    for first, landed in gaps_of(material):
        beyond, reach = landed + round(SURELY_LANDED_M / ZONE_SPACING_M), round(SLOPE_M / ZONE_SPACING_M)
        if beyond + reach >= len(centre):
            continue
        rise = (centre[beyond + reach, 1] - centre[beyond, 1]) / reach
        flown = np.arange(first + (landed - first) // 2, landed)[::-1]
        is_below = centre[beyond, 1] - (beyond - flown) * rise < centre[flown, 1]
        num = int(np.minimum.accumulate(is_below)[: round(2 * LANDING_M / ZONE_SPACING_M)].sum()) // 2
        if num < 1:
            continue
        zones = np.arange(landed - 2 * num, beyond)
        sinks_m = np.minimum(centre[beyond, 1] - (beyond - zones) * rise - centre[zones, 1], 0.0)
        share = np.minimum((np.arange(len(zones)) + 1) / num, 1.0)
        centre[zones, 1] += share * share * (3.0 - 2.0 * share) * sinks_m
        material[landed - num : landed] = material[landed]
    return centre, material


def _gates(paths: list[DensePath], length_m: float) -> Floats:
    """Returns [G] the median progress at each checkpoint, over paths with the most common number of checkpoints."""
    counts = [len(path.gate_times_ms) for path in paths]
    usual = max(set(counts), key=counts.count)
    times = [path for path in paths if len(path.gate_times_ms) == usual]
    along_m = np.median([np.interp(path.gate_times_ms, path.time_ms, path.along_m) for path in times], axis=0)
    gates = []
    for gate_m in along_m[:-1]:
        if gate_m > (gates[-1] if gates else 0.0) + MIN_GATE_GAP_M and gate_m < length_m - MIN_GATE_GAP_M:
            gates.append(float(gate_m))
    return np.array([*gates, length_m])
