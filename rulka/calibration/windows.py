"""Short stretches of recorded drives, from which simulated cars set out with the recorded state and inputs.

A window begins at a recorded sample. The car gets the recorded position, velocity, rotation, rates of turning, gear and
sliding, and what its wheels and engine did before is made from the inputs before; then it drives on with the recorded
inputs of every tick, while nothing else corrects it. The ground is the track that the recordings of the map make.
Dimensions: W windows, T ticks, S state columns, H horizons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.datasets.races import Race
from rulka.observation import CAR, DIRT_IDS, GRASS_IDS, TURBO_IDS
from rulka.simulator import car as columns
from rulka.simulator import physics as kernels
from rulka.simulator.constants import constant_array, place_on_road, road_array, table_array
from rulka.simulator.params import PhysicsParams
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

HORIZONS_MS = (500, 1000, 2000)
"""How far ahead simulated and recorded cars are compared."""
START_STEP = 2
"""A window begins at every second sample: 200 ms."""
MIN_SPEED_MPS = 3.0
SURFACES = ("asphalt", "dirt", "grass", "turbo", "air")
FREE_M = 1e6
"""The ground is only known where somebody drove, so no car is stopped for leaving it."""
MAX_START_MISMATCH_M = 1.0
"""A car recorded further than this above or below the road is in the air, or somewhere the track does not know of."""


@dataclass(frozen=True)
class Windows:
    """Windows of one map.

    Attributes:
        track: the ground.
        race: [W] index of the recording among those given.
        surface: [W] index into `SURFACES`: what most of the window's samples had under most wheels.
        controls: [W, T, 3] float32 steer, gas and brake of every tick.
        rows: [W, NUM_CAR_FIELDS] float32 `CAR` row at the start.
        steer: [W, T0] float32 steering of the ticks before the start, oldest first.
        since_turbo_s: [W] seconds since a wheel was on a turbo pad, as far as the samples tell.
        moved_m: [W, H, 3] how far the recorded car came, NaN past its last sample.
        velocity: [W, H, 3] and how fast it was then.
    """

    track: Track
    race: NDArray[np.int64]
    surface: NDArray[np.int64]
    controls: NDArray[np.float32]
    rows: NDArray[np.float32]
    steer: NDArray[np.float32]
    since_turbo_s: NDArray[np.float64]
    moved_m: NDArray[np.float64]
    velocity: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.race)


STEER_MEMORY_TICKS = 20
ROAD_WIDTH_M = 200.0


def cut_windows(track: Track, races: Sequence[Race]) -> Windows:
    """Cuts the recordings of one map into windows.

    Args:
        track: made from them.
        races: finished, with inputs and samples every 100 ms.
    """
    # How wide the road is no recording tells: wherever somebody drove, the surface is that of the recording.
    track = replace(track, width_m=np.full(track.num_zones, ROAD_WIDTH_M))
    parts = [_of_race(track, race, k) for k, race in enumerate(races)]
    fields = [name for name in Windows.__dataclass_fields__ if name != "track"]
    return Windows(track, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in fields})


def _of_race(track: Track, race: Race, index: int) -> Windows:
    last = int(np.searchsorted(race.state_time_ms, race.race_time_ms or 0)) - HORIZONS_MS[0] // 100
    starts = np.arange(0, max(last, 0), START_STEP)
    speed = np.linalg.norm(race.state[starts][:, CAR["velocity"]], axis=1)
    starts = starts[speed > MIN_SPEED_MPS]
    ticks = race.state_time_ms[starts] // TICK_MS
    ahead = np.clip(ticks[:, None] + np.arange(HORIZONS_MS[-1] // TICK_MS), 0, race.num_ticks - 1)
    before = np.clip(ticks[:, None] - np.arange(STEER_MEMORY_TICKS, 0, -1), 0, race.num_ticks - 1)
    later = _at_horizons(race, starts)
    return Windows(
        track,
        race=np.full(len(starts), index),
        surface=_surface(race, starts),
        controls=race.controls[ahead],
        rows=race.state[starts],
        steer=race.controls[before][:, :, 0],
        since_turbo_s=_since_turbo_s(race)[starts],
        moved_m=later[:, :, CAR["position"]] - race.state[starts][:, None, CAR["position"]],
        velocity=later[:, :, CAR["velocity"]],
    )


def _at_horizons(race: Race, starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns [W, H, NUM_CAR_FIELDS] the samples at the horizons, NaN where there is none before the finish."""
    wanted = race.state_time_ms[starts][:, None] + np.array(HORIZONS_MS)
    found = np.minimum(np.searchsorted(race.state_time_ms, wanted), len(race.state) - 1)
    is_there = (race.state_time_ms[found] == wanted) & (wanted <= (race.race_time_ms or 0))
    return np.where(is_there[:, :, None], race.state[found].astype(np.float64), np.nan)


def _surface(race: Race, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns [W] the surface of the window's first half second; in the air where most wheels are most of the time."""
    groups = np.zeros(256, np.int64)
    groups[list(DIRT_IDS)], groups[list(GRASS_IDS)], groups[list(TURBO_IDS)] = 1, 2, 3
    kind = groups[race.state[:, CAR["material"]].astype(np.int64)]
    kind = np.where(race.state[:, CAR["has_contact"]] > 0.5, kind, SURFACES.index("air"))
    span = np.minimum(starts[:, None] + np.arange(HORIZONS_MS[0] // 100 + 1), len(kind) - 1)
    seen = kind[span].reshape(len(starts), -1)
    counts = (seen[:, :, None] == np.arange(len(SURFACES))).sum(axis=1)
    return np.where(counts[:, 3] > 0, 3, counts.argmax(axis=1))  # a turbo pad is short, and it decides


def _since_turbo_s(race: Race) -> NDArray[np.float64]:
    """Returns [S] the time since the last moment on a turbo pad, which lies half way to the next sample off it."""
    material, contact = race.state[:, CAR["material"]], race.state[:, CAR["has_contact"]] > 0.5
    is_on = np.asarray((np.isin(material, TURBO_IDS) & contact).any(axis=1))
    last = np.maximum.accumulate(np.where(is_on, np.arange(len(is_on)), -100))
    return np.maximum((np.arange(len(is_on)) - last) * 0.1 - 0.05, 0.0)


def start_states(windows: Windows, physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns [W, S + G] the simulator's state of every car at the start of its window."""
    track, rows = windows.track, windows.rows.astype(np.float64)
    road, c = road_array(track), constant_array(physics, TICK_MS / 1000.0)
    rotation = rows[:, CAR["rotation"]].reshape(-1, 3, 3)
    left, up, forward = rotation[:, :, 0], rotation[:, :, 1], rotation[:, :, 2]
    position = rows[:, CAR["position"]] - physics.reference_m * up
    zone, along_m, zeros = np.zeros(len(rows), np.int64), np.zeros(len(rows)), np.zeros(len(rows))
    for race in np.unique(windows.race):  # each is followed from its beginning
        chosen = windows.race == race
        zone[chosen], along_m[chosen], _ = progress_along(track, position[chosen])
    state = place_on_road(road, c, track.gate_m, along_m, zeros, zeros, zeros)
    contact = rows[:, CAR["has_contact"]].mean(axis=1) > 0.25
    normal = road[zone, columns.NORMAL : columns.NORMAL + 3]
    centre = road[zone, columns.CENTRE : columns.CENTRE + 3]
    height = ((position - centre) * normal).sum(axis=1)
    sunk = np.where(contact & (np.abs(height) < MAX_START_MISMATCH_M), height, 0.0)
    state[:, columns.X : columns.X + 3] = position - sunk[:, None] * normal  # a car that touches the road stands on it
    state[:, columns.VX : columns.VX + 3] = rows[:, CAR["velocity"]]
    state[:, columns.FX : columns.FX + 3], state[:, columns.UX : columns.UX + 3] = forward, up
    spin = rows[:, CAR["angular_velocity"]]
    for column, axis in ((columns.YAW, up), (columns.PITCH, left), (columns.ROLL, forward)):
        state[:, column] = (spin * axis).sum(axis=1)
    state[:, columns.STEER] = _steer(windows, physics)
    state[:, columns.GEAR] = np.clip(rows[:, CAR["gear"]][:, 0], 1, columns.NUM_GEARS)
    state[:, columns.TURBO] = np.maximum(physics.turbo_s - windows.since_turbo_s, 0.0)
    state[:, columns.IS_SLIDING] = rows[:, CAR["is_sliding"]].mean(axis=1) > 0.25
    state[:, columns.CONTACT] = contact
    return state


def _steer(windows: Windows, physics: PhysicsParams) -> NDArray[np.float64]:
    """Returns [W] where the wheels are after following the steering before the start."""
    steer, step = windows.steer[:, 0].astype(np.float64), physics.steer_per_s * TICK_MS / 1000.0
    for wanted in windows.steer.T[1:]:
        steer += np.clip(wanted - steer, -step, step)
    return steer


def simulate(windows: Windows, physics: PhysicsParams, horizons_ms: Sequence[int]) -> tuple[NDArray, NDArray]:
    """Drives every window with its recorded inputs.

    Args:
        windows: where the cars set out.
        physics: parameters to try.
        horizons_ms: rising times at which the cars are looked at; among `HORIZONS_MS`.

    Returns:
        [W, H, 3] how far the cars came, and [W, H, 3] their velocities.
    """
    c = constant_array(physics, TICK_MS / 1000.0)
    c[[columns.OFF_ROAD_M, columns.FALL_M]], c[columns.CRASH_COSINE] = FREE_M, -2.0
    state = start_states(windows, physics)
    start = state[:, columns.X : columns.X + 3].copy()
    road, tables, scratch = road_array(windows.track), table_array(physics), np.zeros((2, columns.NUM_SCRATCH))
    controls = np.ascontiguousarray(windows.controls.transpose(1, 0, 2))
    no_gates = np.full(len(windows.track.gate_m), np.inf)
    moved, velocity, done = [], [], 0
    for horizon_ms in horizons_ms:
        inputs = controls[done : horizon_ms // TICK_MS]
        kernels.drive_inputs(state, inputs, road, no_gates, c, tables, scratch)
        done = horizon_ms // TICK_MS
        moved.append(state[:, columns.X : columns.X + 3] - start)
        velocity.append(state[:, columns.VX : columns.VX + 3].copy())
    return np.stack(moved, axis=1), np.stack(velocity, axis=1)


def constant_velocity(windows: Windows) -> tuple[NDArray, NDArray]:
    """Returns what `simulate` returns, for cars that keep their velocity."""
    velocity = windows.rows[:, None, CAR["velocity"]].astype(np.float64)
    seconds = np.array(HORIZONS_MS)[None, :, None] / 1000.0
    return velocity * seconds, np.repeat(velocity, len(HORIZONS_MS), axis=1)
