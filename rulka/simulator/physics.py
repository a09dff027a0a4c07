"""Car physics on a ribbon of road: one kernel call moves a batch of cars through one decision.

A rigid car rides on springs over the surface spanned by the centreline, its width and its bank. An engine with five
gears pushes it; air, rolling wheels, the brake and, off the gas, the engine slow it. Steering turns it at a rate that
depends on speed. Its tyres share one grip between braking and cornering; beyond it they slide, and hold less until they
have caught the car again. Where the road falls away the springs unload: first the grip goes, then the contact, and in
the air there is no steering, engine or brake. Beyond the edge of the road lies grass, or a wall stands there, or there
is nothing and the car falls. A car that stands reverses on the brake.

The model follows the game's StadiumCar in kind; its constants are parameters and reach the kernels as an array, see
`rulka.simulator.constants`.

Here are the kernels that are called from Python; what a tick is made of lies in `rulka.simulator.car`, where `columns`
says which number is what. Arguments that they share:
    state: [N, S + G] cars; those that finished or left the track stay as they are.
    road: [Z, NUM_ROAD] zones.
    gate_m: [G] distance of each gate along the line, finish last.
    c: [NUM_CONSTANTS].
    tables: [NUM_TABLES, 256] curves by speed, surfaces by material.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.car import body, columns, ground, rolling, rows
from rulka.simulator.car.body import fly
from rulka.simulator.car.columns import (
    ALONG,
    CRASH_COSINE,
    FALL_M,
    FINISHED,
    G_HALF_WIDTH,
    GATE,
    GATE_MS,
    HEIGHT,
    LATERAL,
    OFF_ROAD_M,
    OFF_TRACK,
    REST_M,
    SHIFT_S,
    SHIFTING,
    STEER,
    STEER_STEP,
    TICK_MS,
    TICK_S,
    TIME_MS,
    UX,
    UY,
    UZ,
    VX,
    ZONE,
    X,
)
from rulka.simulator.car.ground import find_ground, has_ground, meet_stops, meet_walls
from rulka.simulator.car.rolling import roll_on_road
from rulka.simulator.car.rows import describe_car
from rulka.simulator.compiling import Array, cached_kernel, inlined_kernel, source_stamp


@inlined_kernel
def has_ended(car: Array) -> bool:
    """Whether a car has finished or left the track."""
    return car[FINISHED] > 0.0 or car[OFF_TRACK] > 0.0


@inlined_kernel
def tick(
    car: Array,
    control: NDArray[np.float32],
    road: Array,
    gate_m: Array,
    c: Array,
    tables: Array,
    below: Array,
    motion: Array,
) -> None:
    """Moves one car by one tick; arguments as above, `below` and `motion` are working memory."""
    car[STEER] += min(max(control[0] - car[STEER], -c[STEER_STEP]), c[STEER_STEP])
    if car[HEIGHT] < c[REST_M] and has_ground(car, below):
        roll_on_road(car, control[1], control[2], c, tables, below, motion)
    else:
        fly(car, c)
    for k in range(3):
        car[X + k] += car[VX + k] * c[TICK_S]
    before_m = car[ALONG]
    find_ground(car, road, c, below)
    meet_walls(car, c, below)
    if has_ground(car, below):
        meet_stops(car, c, below)
    car[TIME_MS] += c[TICK_MS]
    beyond_m = abs(car[LATERAL]) - below[G_HALF_WIDTH]
    upright = car[UX] * below[0] + car[UY] * below[1] + car[UZ] * below[2]
    is_crashed = car[HEIGHT] < c[REST_M] and upright < c[CRASH_COSINE]
    if beyond_m > c[OFF_ROAD_M] or abs(car[HEIGHT]) > c[FALL_M] or is_crashed:
        car[OFF_TRACK] = 1.0
    else:
        pass_gates(car, before_m, gate_m, c)


@inlined_kernel
def pass_gates(car: Array, before_m: float, gate_m: Array, c: Array) -> None:
    """Records every gate passed in this tick at its interpolated millisecond; the last gate ends the race."""
    gate = int(car[GATE])
    while gate < gate_m.shape[0] and car[ALONG] >= gate_m[gate]:
        moved = car[ALONG] - before_m
        share = (gate_m[gate] - before_m) / moved if moved > 0.0 else 1.0
        passed_ms = car[TIME_MS] - c[TICK_MS] * (1.0 - min(max(share, 0.0), 1.0))
        car[GATE_MS + gate] = math.floor(passed_ms + 0.5)
        gate += 1
    car[GATE] = gate
    if gate == gate_m.shape[0]:
        car[FINISHED] = 1.0


Kernel = Callable[..., None]
MODULES = (columns, ground, body, rolling, rows)
"""What the kernels are made of beside this file."""


def _compile_drive(stamp: int) -> Kernel:
    """Returns the kernel `drive`; the stamp of its files is part of the key under which numba keeps it."""

    @cached_kernel
    def drive(
        state: Array,
        controls: NDArray[np.float32],
        num_ticks: int,
        road: Array,
        gate_m: Array,
        c: Array,
        tables: Array,
        scratch: Array,
    ) -> None:
        below, motion = scratch[0], scratch[1]
        for n in range(state.shape[0] if stamp else 0):
            car = state[n]
            if has_ended(car):
                continue
            find_ground(car, road, c, below)
            for _ in range(num_ticks):
                tick(car, controls[n], road, gate_m, c, tables, below, motion)
                if has_ended(car):
                    break
            car[SHIFTING] = car[SHIFTING] + 1.0 if car[SHIFT_S] > 0.0 else 0.0

    return drive


def _compile_describe(stamp: int) -> Kernel:
    """Returns the kernel `describe`."""

    @cached_kernel
    def describe(
        state: Array,
        road: Array,
        c: Array,
        car_rows: NDArray[np.float32],
        progress: Array,
        marks: NDArray[np.int64],
    ) -> None:
        for n in range(state.shape[0] if stamp else 0):
            car = state[n]
            describe_car(car, road, c, car_rows[n])
            progress[0, n], progress[1, n] = car[ALONG], car[LATERAL]
            marks[0, n], marks[1, n], marks[2, n] = int(car[ZONE]), int(car[TIME_MS]), int(car[GATE])
            for gate in range(marks.shape[0] - 3):
                marks[3 + gate, n] = int(car[GATE_MS + gate])

    return describe


def _compile_remember(stamp: int) -> Kernel:
    """Returns the kernel `remember_keys`."""

    @cached_kernel
    def remember_keys(state: Array, keys: NDArray[np.float32], previous_keys: NDArray[np.float32]) -> None:
        last = previous_keys.shape[1] - 1
        for n in range(state.shape[0] if stamp else 0):
            if has_ended(state[n]):
                continue
            for k in range(keys.shape[1]):
                for i in range(last):
                    previous_keys[n, i, k] = previous_keys[n, i + 1, k]
                previous_keys[n, last, k] = keys[n, k]

    return remember_keys


drive = _compile_drive(source_stamp(MODULES))
"""Moves every car by one decision.

Args:
    controls: [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1], held throughout.
    num_ticks: ticks in the decision.
    scratch: [2, NUM_SCRATCH] working memory of one thread.
"""

describe = _compile_describe(source_stamp(MODULES))
"""Writes what others read of the cars.

Args:
    car_rows: [N, NUM_CAR_FIELDS] `CAR` rows.
    progress: [2, N] metres along and left of the line.
    marks: [3 + G, N] zone, race time in ms, gates passed and the time of each.
"""

remember_keys = _compile_remember(source_stamp(MODULES))
"""Appends the keys [N, 4] of a decision to the last five [N, 5, 4] of every car."""
