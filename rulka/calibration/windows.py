"""Cuts recorded drives into short windows, in which simulated cars start from the recorded state and inputs.

A window begins at a recorded sample. The car gets the recorded position, velocity, rotation, angular rates, gear, turbo
and sliding; its steering and gear-change state are reconstructed from the data before. It then drives open loop with
the recorded inputs of every tick. The ground is the track made from the map's recordings. All positions and velocities
are those of the centre of mass.
Dimensions: W windows, T ticks, S state columns, H horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import PRESSED, TICK_MS
from rulka.contracts.observation import CAR, DIRT_IDS, GRASS_IDS, ZONE_SPACING_M, centres_of_mass
from rulka.datasets.formats.races import Race
from rulka.recordings.car_rows import interpolate_rows
from rulka.simulator import car as columns
from rulka.simulator import physics as kernels
from rulka.simulator.constants import constant_array, road_array, table_array
from rulka.simulator.params import PhysicsParams
from rulka.tracks.from_paths import TURBO_MS, DrivenPath
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

HORIZONS_MS = (200, 500, 1000, 2000)
"""Times after the start at which simulated and recorded cars are compared."""
SAMPLE_MS = 100
SPAN = 10
"""Samples after the start (one second) that determine a window's regime."""
START_STEP = 2
"""A window begins at every second sample: 200 ms."""
MIN_SPEED_MPS = 3.0
REGIMES = ("walls", "air", "loop", "landing", "turbo", "grass", "dirt", "brake", "slide", "gas off", "grip")
"""Kinds of driving; if several apply to a window, the first one counts."""
FLAT = ("brake", "slide", "gas off", "grip")
WALL_MPS = 8.0
"""A greater loss of speed within 100 ms counts as a collision."""
GROUNDS = {"grass": GRASS_IDS, "dirt": DIRT_IDS}
LOOP_UP = 0.85
"""A car whose up axis has a smaller vertical component is in a loop or on a steep slope."""
FREE_M = 1e6
"""Off-track limits in fits: the ground is only known where people drove, so cars may leave it."""
MAX_START_MISMATCH_M = 1.0
"""A car recorded further than this above or below the road is in the air, or off the known track."""
SHIFT_LEFT_S = 0.07
"""Time left of a gear change at the first sample whose engine speed shows the new gear."""
STEER_MEMORY_TICKS = 20
ROAD_WIDTH_M = 200.0


@dataclass(frozen=True)
class Windows:
    """Windows of one map.

    Attributes:
        track: the ground.
        road: [Z, NUM_ROAD] the ground in the simulator's form.
        regime: [W] index into `REGIMES`.
        controls: [W, T, 3] float32 steer, gas and brake of every tick.
        rows: [W, NUM_CAR_FIELDS] float32 `CAR` row at the start.
        along_m: [W] metres along the track at the start.
        steer: [W, T0] float32 steering of the ticks before the start, oldest first.
        turbo_s: [W] seconds of turbo left.
        shift_s: [W] seconds of a gear change left, estimated from the samples.
        moved_m: [W, H, 3] displacement of the recorded car at each horizon, NaN past its last sample.
        velocity: [W, H, 3] its velocity at each horizon.
        yaw: [W, H] its yaw rate about the up axis at each horizon, rad/s.
    """

    track: Track
    road: NDArray[np.float64]
    regime: NDArray[np.int64]
    controls: NDArray[np.float32]
    rows: NDArray[np.float32]
    along_m: NDArray[np.float64]
    steer: NDArray[np.float32]
    turbo_s: NDArray[np.float64]
    shift_s: NDArray[np.float64]
    moved_m: NDArray[np.float64]
    velocity: NDArray[np.float64]
    yaw: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.regime)

    @property
    def speed_mps(self) -> NDArray[np.float64]:
        """[W] speed at the start."""
        return np.linalg.norm(self.rows[:, CAR["velocity"]].astype(np.float64), axis=1)


OF_EACH_WINDOW = tuple(name for name in Windows.__dataclass_fields__ if name not in ("track", "road"))
"""Fields with one row per window."""


def cut_windows(track: Track, races: Sequence[Race], paths: Sequence[DrivenPath]) -> Windows:
    """Cuts the recordings of one map into windows.

    Args:
        track: track made from the recordings.
        races: finished races with inputs; samples at other times than every 100 ms are interpolated.
        paths: path of each race, with the times of its turbo pads.
    """
    # Recordings do not give the road's width, so the recorded surface extends to wherever people drove.
    track = replace(track, width_m=np.full(track.num_zones, ROAD_WIDTH_M))
    road = road_array(track)
    parts = [_of_race(track, road, race, path) for race, path in zip(races, paths, strict=True)]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in OF_EACH_WINDOW}
    return Windows(track, road, **joined)


def _of_race(track: Track, road: NDArray[np.float64], race: Race, path: DrivenPath) -> Windows:
    if (np.diff(race.state_time_ms) != SAMPLE_MS).any():  # 50 ms in the 2020 game and of some tools
        time_ms = np.arange(0, race.state_time_ms[-1] + SAMPLE_MS, SAMPLE_MS)
        race = replace(race, state_time_ms=time_ms, state=interpolate_rows(race.state_time_ms, race.state, time_ms))
    last = int(np.searchsorted(race.state_time_ms, race.race_time_ms or 0)) - HORIZONS_MS[1] // SAMPLE_MS
    starts = np.arange(0, max(last, 0), START_STEP)
    speed = np.linalg.norm(race.state[starts][:, CAR["velocity"]], axis=1)
    starts = starts[speed > MIN_SPEED_MPS]
    ticks = race.state_time_ms[starts] // TICK_MS
    ahead = np.clip(ticks[:, None] + np.arange(HORIZONS_MS[-1] // TICK_MS), 0, race.num_ticks - 1)
    before = np.clip(ticks[:, None] - np.arange(STEER_MEMORY_TICKS, 0, -1), 0, race.num_ticks - 1)
    later = _at_horizons(race, starts)
    spin, up = later[:, :, CAR["angular_velocity"]], later[:, :, CAR["rotation"]][:, :, 1::3]
    _, along_m, _ = progress_along(track, centres_of_mass(race.state.astype(np.float64)))
    turbo_s = _turbo_left_s(path, race.state_time_ms)
    return Windows(
        track,
        road,
        regime=_regimes(race, starts, turbo_s),
        controls=race.controls[ahead],
        rows=race.state[starts],
        along_m=along_m[starts],
        steer=race.controls[before][:, :, 0],
        turbo_s=turbo_s[starts],
        shift_s=_shift_left_s(race)[starts],
        moved_m=centres_of_mass(later) - centres_of_mass(race.state[starts].astype(np.float64))[:, None],
        velocity=later[:, :, CAR["velocity"]],
        yaw=(spin * up).sum(axis=2),
    )


def every_second(windows: Windows) -> Windows:
    """Returns every second window, to halve the time of a fit."""
    return replace(windows, **{name: getattr(windows, name)[::2] for name in OF_EACH_WINDOW})


def _at_horizons(race: Race, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns [W, H, NUM_CAR_FIELDS] the samples at the horizons, NaN without one before the finish."""
    wanted = race.state_time_ms[starts][:, None] + np.array(HORIZONS_MS)
    found = np.minimum(np.searchsorted(race.state_time_ms, wanted), len(race.state) - 1)
    is_there = (race.state_time_ms[found] == wanted) & (wanted <= (race.race_time_ms or 0))
    return np.where(is_there[:, :, None], race.state[found].astype(np.float64), np.nan)


def _regimes(race: Race, starts: NDArray[np.int64], turbo_left_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns [W] the regime of each window's first second."""
    span = np.minimum(starts[:, None] + np.arange(SPAN + 1), len(race.state) - 1)
    rows = race.state[span]
    contact, material = rows[:, :, CAR["has_contact"]] > 0.5, rows[:, :, CAR["material"]].astype(np.int64)
    speed = np.linalg.norm(rows[:, :, CAR["velocity"]], axis=2)
    is_on = np.asarray(contact.any(axis=2))
    up_y = rows[:, :, CAR["rotation"]][:, :, 4]
    ticks = race.state_time_ms[starts][:, None] // TICK_MS + np.arange(HORIZONS_MS[2] // TICK_MS)
    gas, brake = race.controls[np.minimum(ticks, race.num_ticks - 1)][:, :, 1:].transpose(2, 0, 1)
    is_braking = (brake > PRESSED).mean(axis=1) >= 0.1
    touched = {name: np.asarray(np.isin(material, ids) & contact).any(axis=2) for name, ids in GROUNDS.items()}
    of = {
        "walls": (np.diff(speed, axis=1) < -WALL_MPS).any(axis=1),
        "air": ~is_on.any(axis=1) | (~is_on[:, 0] & (is_on.mean(axis=1) < 0.2)),
        "landing": (~is_on).sum(axis=1) >= 2,
        "turbo": (turbo_left_s[span] > 0.0).any(axis=1),
        "loop": (up_y < LOOP_UP).any(axis=1),
        "grass": touched["grass"].mean(axis=1) > 0.2,
        "dirt": touched["dirt"].mean(axis=1) > 0.2,
        "brake": is_braking,
        "slide": (rows[:, :, CAR["is_sliding"]] > 0.5).any(axis=2).sum(axis=1) >= 2,
        "gas off": (gas <= PRESSED).mean(axis=1) > 0.5,
        "grip": np.ones(len(starts), bool),
    }
    return np.argmax([of[name] for name in REGIMES], axis=0)


def _turbo_left_s(path: DrivenPath, time_ms: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns [S] seconds of turbo left at every sample."""
    left_s = np.zeros(len(time_ms))
    for entered, left in path.pads_ms or ():
        rest = np.minimum(left + TURBO_MS - time_ms, TURBO_MS) / 1000.0
        left_s = np.where(time_ms >= entered, np.maximum(left_s, rest), left_s)
    return left_s


def _shift_left_s(race: Race) -> NDArray[np.float64]:
    """Returns [S] seconds left of a gear change of typical length."""
    gear = race.state[:, CAR["gear"]][:, 0]
    changed = np.maximum.accumulate(np.where(np.diff(gear, prepend=gear[0]) != 0, np.arange(len(gear)), -100))
    return np.maximum(SHIFT_LEFT_S - 0.1 * (np.arange(len(gear)) - changed), 0.0)


def start_states(windows: Windows, physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns [W, S + G] the simulator's state of every car at the start of its window."""
    rows, road = windows.rows.astype(np.float64), windows.road
    rotation = rows[:, CAR["rotation"]].reshape(-1, 3, 3)
    left, up, forward = rotation[:, :, 0], rotation[:, :, 1], rotation[:, :, 2]
    position, velocity = centres_of_mass(rows), rows[:, CAR["velocity"]]
    zone = (windows.along_m / ZONE_SPACING_M).astype(np.int64)
    share = (windows.along_m / ZONE_SPACING_M - zone)[:, None]
    here = road[zone] + share * (road[zone + 1] - road[zone])
    centre, normal = here[:, columns.CENTRE : columns.CENTRE + 3], here[:, columns.NORMAL : columns.NORMAL + 3]
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    height = ((position - centre) * normal).sum(axis=1) - physics.ride_m
    contact = rows[:, CAR["has_contact"]].mean(axis=1) > 0.25
    stands = contact & (np.abs(height) < MAX_START_MISMATCH_M)
    state = np.zeros((len(rows), columns.NUM_STATE + len(windows.track.gate_m)))
    # A car in contact with the road is placed on it, without velocity along its normal.
    away = np.where(stands, (velocity * normal).sum(axis=1), 0.0)
    state[:, columns.X : columns.X + 3] = position - np.where(stands, height, 0.0)[:, None] * normal
    state[:, columns.VX : columns.VX + 3] = velocity - away[:, None] * normal
    state[:, columns.FX : columns.FX + 3], state[:, columns.UX : columns.UX + 3] = forward, up
    spin = rows[:, CAR["angular_velocity"]]
    for column, axis in ((columns.YAW, up), (columns.PITCH, left), (columns.ROLL, forward)):
        state[:, column] = (spin * axis).sum(axis=1)
    state[:, columns.STEER] = _steer(windows, physics)
    state[:, columns.GEAR] = np.clip(rows[:, CAR["gear"]][:, 0], 1, columns.NUM_GEARS)
    state[:, columns.TURBO], state[:, columns.SHIFT_S] = windows.turbo_s, windows.shift_s
    state[:, columns.SLIDES : columns.SLIDES + 4] = rows[:, CAR["is_sliding"]] > 0.5
    state[:, columns.CONTACT], state[:, columns.LOAD] = contact, contact * physics.gravity_mps2
    state[:, columns.ZONE], state[:, columns.ALONG] = zone, windows.along_m
    return state


def _steer(windows: Windows, physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns [W] the wheel angle after the steering before the start."""
    steer, step = windows.steer[:, 0].astype(np.float64), physics.steer_per_s * TICK_MS / 1000.0
    for wanted in windows.steer.T[1:]:
        steer += np.clip(wanted - steer, -step, step)
    return steer


def simulate(
    windows: Windows, physics: PhysicsParams, horizons_ms: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Drives every window with its recorded inputs.

    Args:
        windows: the windows.
        physics: the physics to simulate.
        horizons_ms: rising times, a subset of `HORIZONS_MS`, at which to read the cars.

    Returns:
        [W, H, 3] displacements, [W, H, 3] velocities and [W, H] yaw rates.
    """
    c = constant_array(physics, TICK_MS / 1000.0)
    c[[columns.OFF_ROAD_M, columns.FALL_M]], c[columns.CRASH_COSINE] = FREE_M, -2.0
    state = start_states(windows, physics)
    start = state[:, columns.X : columns.X + 3].copy()
    tables, scratch = table_array(physics), np.zeros((2, columns.NUM_SCRATCH))
    controls = np.ascontiguousarray(windows.controls.transpose(1, 0, 2))
    no_gates = np.full(len(windows.track.gate_m), np.inf)
    moved, velocity, yaw, done = [], [], [], 0
    for horizon_ms in horizons_ms:
        inputs = controls[done : horizon_ms // TICK_MS]
        kernels.drive_inputs(state, inputs, windows.road, no_gates, c, tables, scratch)
        done = horizon_ms // TICK_MS
        moved.append(state[:, columns.X : columns.X + 3] - start)
        velocity.append(state[:, columns.VX : columns.VX + 3].copy())
        yaw.append(state[:, columns.YAW].copy())
    return np.stack(moved, axis=1), np.stack(velocity, axis=1), np.stack(yaw, axis=1)


def constant_velocity(windows: Windows) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Baseline with the outputs of `simulate` over `HORIZONS_MS`: cars keep their velocity and do not turn."""
    velocity = windows.rows[:, None, CAR["velocity"]].astype(np.float64)
    seconds = np.array(HORIZONS_MS)[None, :, None] / 1000.0
    return velocity * seconds, np.repeat(velocity, len(HORIZONS_MS), axis=1), np.zeros(windows.yaw.shape)
