"""Car physics on a ribbon of road: one kernel call moves a batch of cars through one decision.

A rigid car rides on springs over the surface spanned by the centreline, its width and its bank. A tick is split into
steps in which the car covers less than 0.3 m. A five-gear engine pushes the car with a constant push per range of
speed, but not during a gear change; off the gas it brakes. Steering sets a target yaw rate that depends on speed, with
or without a slide. Each tyre holds the car sideways up to a grip that grows with its load. Beyond that it slides and
holds less (with hysteresis); if a rear tyre slides, all four do. Locked brakes make all four slide. Where the road
falls away, the springs unload: first grip is lost, then contact. In the air there is no engine and a different gravity,
and steering and brake only change the rotation. Beyond the edge of the road there is grass, a wall, or nothing: then
the car falls, as in a gap. A standing car reverses on the brake.

The model follows public descriptions of the game's StadiumCar and recordings. Its constants are parameters, fitted to
recordings (`rulka.calibration`); the kernels take them as an array, see `rulka.simulator.constants`.

This module has the kernels that Python calls; `rulka.simulator.car` has the tick itself and the array layouts. Shared
arguments:
    state: [N, S + G] cars; those that finished or left the track stay unchanged.
    road: [Z, NUM_ROAD] zones.
    gate_m: [G] distance of each gate along the line, finish last.
    c: [V, NUM_CONSTANTS], a row for each variant of the physics.
    tables: [V, NUM_TABLES, 256] curves by speed, surface properties by material.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import PRESSED
from rulka.simulator.car import (
    ALONG,
    FINISHED,
    GATE,
    GATE_MS,
    LATERAL,
    OFF_TRACK,
    SHIFT_S,
    SHIFTING,
    TIME_MS,
    VARIANT,
    ZONE,
    describe_car,
    find_ground,
    has_ended,
    tick,
)
from rulka.simulator.compiling import Array, cached_kernel, inlined_kernel

NUM_CONTROLS, NUM_COMMANDS = 3, 7
"""A command is steer, gas and brake, then the keys accelerate, brake, left and right."""
ALONG_ROW, LATERAL_ROW, ALONG_BEFORE_ROW, TIME_BEFORE_ROW, NUM_PROGRESS = range(5)
"""Rows of `View.progress`."""
ZONE_ROW, TIME_ROW, GATES_ROW, NUM_TIMING = range(4)
"""Rows of `View.timing` before the gate times."""
FINISHED_ROW, OFF_TRACK_ROW, NUM_ENDS = range(3)
"""Rows of `View.ended`."""


class World(NamedTuple):
    """Kernel inputs shared by all cars: `road`, `gate_m`, `c` and `tables` as above.

    Attributes:
        length_m: length of the track.
        scratch: [2, NUM_SCRATCH] scratch memory of one thread.
    """

    road: Array
    gate_m: Array
    c: Array
    tables: Array
    length_m: float
    scratch: Array


class View(NamedTuple):
    """Kernel outputs: the public state of the cars.

    Attributes:
        rows: [N, NUM_CAR_FIELDS] `CAR` rows.
        previous_keys: [N, 5 K, 4] keys of the last actions, oldest first; unchanged once a race has ended.
        progress: [NUM_PROGRESS, N] metres along and left of the line; metres along and race time in ms before the
            last decision.
        margin_m: [N] metres to the finish.
        timing: [NUM_TIMING + G, N] zone, race time in ms, number of gates passed and the time at each gate.
        ended: [NUM_ENDS, N] finished, off the track.
    """

    rows: NDArray[np.float32]
    previous_keys: NDArray[np.float32]
    progress: Array
    margin_m: NDArray[np.float32]
    timing: NDArray[np.int64]
    ended: NDArray[np.bool_]


@inlined_kernel
def drive_car(
    car: Array,
    chosen: NDArray[np.int64],
    commands: NDArray[np.float32],
    num_ticks: NDArray[np.int64],
    world: World,
    previous_keys: NDArray[np.float32],
) -> None:
    """Moves a racing car by one decision and appends its keys to `previous_keys` [5 K, 4]."""
    ground, motion = world.scratch[0], world.scratch[1]
    c, tables = world.c[int(car[VARIANT])], world.tables[int(car[VARIANT])]
    find_ground(car, world.road, c, ground)
    for k in range(chosen.shape[0]):
        command = commands[chosen[k]]
        remember_keys(command, previous_keys)
        for _ in range(num_ticks[k]):
            tick(car, command, world.road, world.gate_m, c, tables, ground, motion)
            if has_ended(car):
                break
        if has_ended(car):
            break
    car[SHIFTING] = car[SHIFTING] + 1.0 if car[SHIFT_S] > 0.0 else 0.0


@inlined_kernel
def remember_keys(command: NDArray[np.float32], previous_keys: NDArray[np.float32]) -> None:
    """Appends a command's keys to a car's `previous_keys` [5 K, 4], dropping the oldest."""
    last = previous_keys.shape[0] - 1
    for k in range(previous_keys.shape[1]):
        for i in range(last):
            previous_keys[i, k] = previous_keys[i + 1, k]
        previous_keys[last, k] = command[NUM_CONTROLS + k]


@inlined_kernel
def write_view(car: Array, n: int, world: World, view: View) -> None:
    """Updates a car's view, except its previous keys and the progress before the decision."""
    describe_car(car, world.road, world.c[int(car[VARIANT])], view.rows[n])
    view.progress[ALONG_ROW, n], view.progress[LATERAL_ROW, n] = car[ALONG], car[LATERAL]
    view.margin_m[n] = world.length_m - car[ALONG]
    timing = view.timing
    timing[ZONE_ROW, n], timing[TIME_ROW, n], timing[GATES_ROW, n] = int(car[ZONE]), int(car[TIME_MS]), int(car[GATE])
    for gate in range(timing.shape[0] - NUM_TIMING):
        timing[NUM_TIMING + gate, n] = int(car[GATE_MS + gate])
    view.ended[FINISHED_ROW, n], view.ended[OFF_TRACK_ROW, n] = car[FINISHED] > 0.0, car[OFF_TRACK] > 0.0


@cached_kernel
def advance(  # noqa: PLR0913, PLR0917 numba takes far longer over a tuple of arrays than over its parts
    state: Array,
    cars: NDArray[np.int64],
    chosen: NDArray[np.int64],
    commands: NDArray[np.float32],
    num_ticks: NDArray[np.int64],
    repeats: int,
    road: Array,
    gate_m: Array,
    c: Array,
    tables: Array,
    length_m: float,
    scratch: Array,
    rows: NDArray[np.float32],
    previous_keys: NDArray[np.float32],
    progress: Array,
    margin_m: NDArray[np.float32],
    timing: NDArray[np.int64],
    ended: NDArray[np.bool_],
) -> int:
    """Moves the selected cars by one decision, except those whose race has ended, and updates their view.

    Args:
        state: as above.
        cars: [M] indices of the cars to move; the others are unchanged.
        chosen: [N, K] int64 rows of `commands` that each car executes in order in this decision.
        commands: [A, NUM_COMMANDS].
        num_ticks: [K] ticks of each command.
        repeats: number of times in a row the decision is taken; with 0 nothing moves and only the view is updated.
        road: `World.road`.
        gate_m: `World.gate_m`.
        c: `World.c`.
        tables: `World.tables`.
        length_m: `World.length_m`.
        scratch: `World.scratch`.
        rows: `View.rows`.
        previous_keys: `View.previous_keys`.
        progress: `View.progress`.
        margin_m: `View.margin_m`.
        timing: `View.timing`.
        ended: `View.ended`.

    Returns:
        -1, or the first car whose choice is not a row of `commands`; then no car has moved.
    """
    world = World(road, gate_m, c, tables, length_m, scratch)
    view = View(rows, previous_keys, progress, margin_m, timing, ended)
    for n in range(chosen.shape[0]):
        for k in range(chosen.shape[1]):
            if chosen[n, k] < 0 or chosen[n, k] >= commands.shape[0]:
                return n
    for n in cars:
        car = state[n]
        if repeats > 0:
            view.progress[ALONG_BEFORE_ROW, n], view.progress[TIME_BEFORE_ROW, n] = car[ALONG], car[TIME_MS]
        if repeats > 0 and not has_ended(car):
            for _ in range(repeats):
                drive_car(car, chosen[n], commands, num_ticks, world, view.previous_keys[n])
                if has_ended(car):
                    break
        write_view(car, n, world, view)
    return -1


@cached_kernel
def command_cars(controls: NDArray[np.float32], commands: NDArray[np.float32]) -> int:
    """Converts controls [N, 3] to commands [N, NUM_COMMANDS].

    Returns:
        -1, or the first car with a control out of range or NaN; then nothing is written.
    """
    for n in range(controls.shape[0]):
        steer, gas, brake = controls[n, 0], controls[n, 1], controls[n, 2]
        # The comparisons are False for NaN.
        if not (abs(steer) <= 1.0 and 0.0 <= gas <= 1.0 and 0.0 <= brake <= 1.0):
            return n
    for n in range(controls.shape[0]):
        steer, gas, brake = controls[n, 0], controls[n, 1], controls[n, 2]
        commands[n, 0], commands[n, 1], commands[n, 2] = steer, gas, brake
        commands[n, NUM_CONTROLS] = 1.0 if gas > PRESSED else 0.0
        commands[n, NUM_CONTROLS + 1] = 1.0 if brake > PRESSED else 0.0
        commands[n, NUM_CONTROLS + 2] = 1.0 if steer < 0.0 else 0.0
        commands[n, NUM_CONTROLS + 3] = 1.0 if steer > 0.0 else 0.0
    return -1


@cached_kernel
def drive_inputs(
    state: Array,
    inputs: NDArray[np.float32],
    road: Array,
    gate_m: Array,
    c: Array,
    tables: Array,
    scratch: Array,
) -> int:
    """Moves every car by T ticks with separate inputs and updates no view: for fits to recorded inputs.

    Args:
        state: as above.
        inputs: [T, N, 3] steer, gas and brake of every tick.
        road: as above.
        gate_m: as above.
        c: [NUM_CONSTANTS], the same for all cars.
        tables: [NUM_TABLES, 256], the same for all cars.
        scratch: `World.scratch`.

    Returns:
        -1.
    """
    ground, motion = scratch[0], scratch[1]
    for n in range(state.shape[0]):
        car = state[n]
        for t in range(inputs.shape[0]):
            if has_ended(car):
                break
            find_ground(car, road, c, ground)
            tick(car, inputs[t, n], road, gate_m, c, tables, ground, motion)
    return -1
