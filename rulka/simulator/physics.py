"""Car physics on a ribbon of road: one kernel call moves a batch of cars through one decision.

A point car with a heading rides on the surface spanned by the centreline, its width and its bank. It has an engine
whose push falls with speed, quadratic drag, a brake, a steering rate that falls with speed, and tyres whose sideways
force is bounded: beyond the bound the car slides. Where the road falls away faster than the car, it flies: no contact,
no steering, no engine, no brake. The model follows the game's StadiumCar in kind; its constants are parameters.

Every constant comes in through `Constants`, since numba's cache would keep the old value of an imported one.
Legend: N cars, S state columns, Z zones (the extrapolated ones included), G gates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rulka.params import PhysicsParams
from rulka.tracks.progress import locate

X, Y, Z, VX, VY, VZ, YAW, YAW_RATE, UP_X, UP_Y, UP_Z = range(11)
SPIN_X, SPIN_Y, SPIN_Z, STEER, GEAR, SHIFT_MS, CONTACT, SLIDING, ON_GRASS, LOAD, PUSH, PULL, COUNTER = range(11, 24)
NUM_STATE = 24
"""Columns of a car's state: world position and velocity, heading (0 along +z, positive left), up vector, world spin,
steering, gear, milliseconds left of a gear change, flags, accelerations felt (m/s2: along the normal, forward, left),
consecutive decisions with a gear change. With progress and clock it is all that a car is."""


class Constants(NamedTuple):
    """`PhysicsParams` as numba sees them; the same names and units."""

    tick_s: float
    spacing_m: float
    engine_mps2: float
    top_speed_mps: float
    drag_per_m: float
    rolling_mps2: float
    brake_mps2: float
    gravity_mps2: float
    grip_mps2: float
    grip_per_m: float
    grass_grip: float
    grass_drag_mps2: float
    turn_radius_m: float
    turn_radius_s: float
    overturn: float
    steer_per_s: float
    yaw_response_s: float
    slip_response_s: float
    scrub: float
    slide_mps: float
    off_road_m: float
    fall_m: float
    shift_ms: float
    idle_rpm: float
    max_rpm: float
    gear_speed_mps: tuple[float, float, float, float]


def constants(physics: PhysicsParams, tick_s: float, spacing_m: float) -> Constants:
    """Collects everything that the kernels must not bake in."""
    values = physics.model_dump()
    return Constants(
        tick_s=tick_s, spacing_m=spacing_m, **{name: values[name] for name in Constants._fields if name in values}
    )


class Road(NamedTuple):
    """A track as the kernels read it.

    Attributes:
        centre: [Z, 3] zone centres.
        frames: [Z, 9] from `zone_frames`.
        half_width_m: [Z].
        material: [Z] id of the road surface.
        gate_m: [G] distance of each gate along the line, finish last.
    """

    centre: NDArray[np.float64]
    frames: NDArray[np.float64]
    half_width_m: NDArray[np.float64]
    material: NDArray[np.uint8]
    gate_m: NDArray[np.float64]


class Race(NamedTuple):
    """How far each car of a batch has come; arrays of length N, gate times [N, G]."""

    zone_index: NDArray[np.int64]
    along_m: NDArray[np.float64]
    lateral_m: NDArray[np.float64]
    height_m: NDArray[np.float64]
    time_ms: NDArray[np.int64]
    gate_index: NDArray[np.int64]
    gate_time_ms: NDArray[np.int64]
    is_finished: NDArray[np.bool_]
    is_off_track: NDArray[np.bool_]


@njit(cache=True, nogil=True)
def _axes(yaw: float, ux: float, uy: float, uz: float) -> tuple[float, float, float, float, float, float]:
    """Returns the car's forward and left axes in the plane across `up`, forward pointing where `yaw` does."""
    fx, fz = math.sin(yaw), math.cos(yaw)
    along = fx * ux + fz * uz
    fx, fy, fz = fx - along * ux, -along * uy, fz - along * uz
    size = math.sqrt(fx * fx + fy * fy + fz * fz)
    fx, fy, fz = fx / size, fy / size, fz / size
    return fx, fy, fz, uy * fz - uz * fy, uz * fx - ux * fz, ux * fy - uy * fx


@njit(cache=True, nogil=True)
def _change_gear(car: NDArray[np.float64], speed: float, c: Constants) -> None:
    """Shifts up at the speeds of the table and down 2 m/s below them."""
    gear = int(car[GEAR])
    if car[SHIFT_MS] > 0.0:
        car[SHIFT_MS] -= 1000.0 * c.tick_s
    elif gear <= 4 and speed > c.gear_speed_mps[gear - 1]:
        car[GEAR], car[SHIFT_MS] = gear + 1, c.shift_ms
    elif gear > 1 and speed < c.gear_speed_mps[gear - 2] - 2.0:
        car[GEAR], car[SHIFT_MS] = gear - 1, c.shift_ms


@njit(cache=True, nogil=True)
def _drive_on_ground(car: NDArray[np.float64], gas: float, brake: float, c: Constants) -> None:
    """Applies engine, brake, steering and tyres for one tick to a car with contact."""
    fx, fy, fz, lx, ly, lz = _axes(car[YAW], car[UP_X], car[UP_Y], car[UP_Z])
    forward = car[VX] * fx + car[VY] * fy + car[VZ] * fz
    left = car[VX] * lx + car[VY] * ly + car[VZ] * lz
    on_grass = car[ON_GRASS] > 0.0
    grip = max(c.grip_mps2 * max(car[UP_Y], 0.0) + c.grip_per_m * forward * forward, 1.0)
    grip *= c.grass_grip if on_grass else 1.0
    speed = abs(forward)

    limit = min(speed / (c.turn_radius_m + c.turn_radius_s * speed), c.overturn * grip / max(speed, 1.0))
    wanted = -car[STEER] * limit * (1.0 if forward >= 0.0 else -1.0)
    car[YAW_RATE] += (wanted - car[YAW_RATE]) * min(c.tick_s / c.yaw_response_s, 1.0)

    side = -left / c.slip_response_s
    side = min(max(side, -grip), grip)
    side_step = side * c.tick_s - c.gravity_mps2 * ly * c.tick_s
    push = gas * c.engine_mps2 * max(1.0 - forward / c.top_speed_mps, 0.0) * (c.grass_grip if on_grass else 1.0)
    resist = c.rolling_mps2 + c.drag_per_m * speed * speed + c.scrub * abs(side) + (c.grass_drag_mps2 if on_grass else 0.0)
    resist += brake * min(c.brake_mps2, grip)
    push_step = (push - c.gravity_mps2 * fy) * c.tick_s
    slow_step = resist * c.tick_s
    moved = forward + push_step
    moved = max(moved - slow_step, 0.0) if moved > 0.0 else min(moved + slow_step, 0.0)
    slid = left + side_step

    car[PUSH], car[PULL] = (moved - forward) / c.tick_s, side
    car[SLIDING] = 1.0 if abs(slid) > c.slide_mps else 0.0
    car[VX] = moved * fx + slid * lx
    car[VY] = moved * fy + slid * ly
    car[VZ] = moved * fz + slid * lz
    car[YAW] += car[YAW_RATE] * c.tick_s
    _change_gear(car, speed, c)


@njit(cache=True, nogil=True)
def _surface(car: NDArray[np.float64], zone: int, road: Road, c: Constants) -> tuple[float, float, float, float]:
    """Returns the road's normal under a car, blended between two zones, and the height of the car above it.

    Blending matters: with a normal that jumps from zone to zone a car at speed would hop over every joint.
    """
    dx, dy, dz = car[X] - road.centre[zone, 0], car[Y] - road.centre[zone, 1], car[Z] - road.centre[zone, 2]
    frame = road.frames[zone]
    ahead = dx * frame[0] + dy * frame[1] + dz * frame[2]
    other = zone + (1 if ahead >= 0.0 else -1)
    other = min(max(other, 0), road.centre.shape[0] - 1)
    share = min(abs(ahead) / c.spacing_m, 1.0)
    nx = frame[6] + share * (road.frames[other, 6] - frame[6])
    ny = frame[7] + share * (road.frames[other, 7] - frame[7])
    nz = frame[8] + share * (road.frames[other, 8] - frame[8])
    size = math.sqrt(nx * nx + ny * ny + nz * nz)
    nx, ny, nz = nx / size, ny / size, nz / size
    dx -= share * (road.centre[other, 0] - road.centre[zone, 0])
    dy -= share * (road.centre[other, 1] - road.centre[zone, 1])
    dz -= share * (road.centre[other, 2] - road.centre[zone, 2])
    return nx, ny, nz, dx * nx + dy * ny + dz * nz


@njit(cache=True, nogil=True)
def _meet_surface(car: NDArray[np.float64], zone: int, road: Road, c: Constants) -> float:
    """Decides whether the car touches the road, and if so puts it on it and turns its velocity along it.

    A car that had contact leaves the road where its velocity, gravity included, points away from it.

    Returns:
        Height above the road in metres, along its normal.
    """
    nx, ny, nz, height = _surface(car, zone, road, c)
    into = car[VX] * nx + car[VY] * ny + car[VZ] * nz
    if into > 0.0 if car[CONTACT] > 0.0 else height > 0.0:
        car[CONTACT], car[LOAD], car[SLIDING] = 0.0, 0.0, 0.0
        car[SPIN_X], car[SPIN_Y], car[SPIN_Z] = 0.0, car[YAW_RATE], 0.0
        return height
    car[X] -= height * nx
    car[Y] -= height * ny
    car[Z] -= height * nz
    car[VX] -= into * nx
    car[VY] -= into * ny
    car[VZ] -= into * nz
    # Gravity pulled the car into the road in this tick; what the road gave back is what the springs carry.
    car[LOAD] = -into / c.tick_s
    ux, uy, uz = car[UP_X], car[UP_Y], car[UP_Z]
    car[SPIN_X] = (uy * nz - uz * ny) / c.tick_s + car[YAW_RATE] * nx
    car[SPIN_Y] = (uz * nx - ux * nz) / c.tick_s + car[YAW_RATE] * ny
    car[SPIN_Z] = (ux * ny - uy * nx) / c.tick_s + car[YAW_RATE] * nz
    car[UP_X], car[UP_Y], car[UP_Z] = nx, ny, nz
    car[CONTACT] = 1.0
    return 0.0


@njit(cache=True, nogil=True)
def _pass_gates(n: int, before_m: float, race: Race, road: Road, c: Constants) -> None:
    """Records every gate passed in this tick at its interpolated millisecond; the last gate ends the race."""
    while race.gate_index[n] < len(road.gate_m) and race.along_m[n] >= road.gate_m[race.gate_index[n]]:
        gate = race.gate_index[n]
        moved = race.along_m[n] - before_m
        share = (road.gate_m[gate] - before_m) / moved if moved > 0.0 else 1.0
        tick_ms = 1000.0 * c.tick_s
        late_ms = round((1.0 - min(max(share, 0.0), 1.0)) * tick_ms)
        race.gate_time_ms[n, gate] = race.time_ms[n] - int(late_ms)
        race.gate_index[n] = gate + 1
    if race.gate_index[n] == len(road.gate_m):
        race.is_finished[n] = True


@njit(cache=True, nogil=True)
def _tick(n: int, car: NDArray[np.float64], control: NDArray, race: Race, road: Road, c: Constants) -> None:
    """Moves one car by one tick."""
    step = c.steer_per_s * c.tick_s
    car[STEER] += min(max(control[0] - car[STEER], -step), step)
    if car[CONTACT] > 0.0:
        _drive_on_ground(car, control[1], control[2], c)
    else:
        car[YAW] += car[YAW_RATE] * c.tick_s
        car[PUSH], car[PULL] = 0.0, 0.0
    if car[CONTACT] > 0.0:
        # Along the road gravity is part of the drive; across it, it keeps the car down.
        fall = c.gravity_mps2 * c.tick_s * car[UP_Y]
        car[VX] -= fall * car[UP_X]
        car[VY] -= fall * car[UP_Y]
        car[VZ] -= fall * car[UP_Z]
    else:
        car[VY] -= c.gravity_mps2 * c.tick_s
    car[X] += car[VX] * c.tick_s
    car[Y] += car[VY] * c.tick_s
    car[Z] += car[VZ] * c.tick_s
    before_m = race.along_m[n]
    zone, along, lateral, _height = locate(
        car[X], car[Y], car[Z], road.centre, road.frames, race.zone_index[n], 40, c.spacing_m
    )
    height = _meet_surface(car, zone, road, c)
    race.zone_index[n], race.along_m[n], race.lateral_m[n], race.height_m[n] = zone, along, lateral, height
    race.time_ms[n] += int(round(1000.0 * c.tick_s))
    beyond = abs(lateral) - road.half_width_m[zone]
    car[ON_GRASS] = 1.0 if beyond > 0.0 else 0.0
    race.is_off_track[n] = beyond > c.off_road_m or height < -c.fall_m
    if not race.is_off_track[n]:
        _pass_gates(n, before_m, race, road, c)


@njit(cache=True, nogil=True)
def drive(
    state: NDArray[np.float64], controls: NDArray[np.float32], num_ticks: int, race: Race, road: Road, c: Constants
) -> None:
    """Moves every car by one decision; a car that finished or left the track stays where it is.

    Args:
        state: [N, S] changed in place.
        controls: [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1], held throughout.
        num_ticks: ticks in the decision.
        race: progress, changed in place.
        road: the track.
        c: constants.
    """
    for n in range(state.shape[0]):
        car = state[n]
        for _ in range(num_ticks):
            if race.is_finished[n] or race.is_off_track[n]:
                break
            _tick(n, car, controls[n], race, road, c)
        car[COUNTER] = car[COUNTER] + 1.0 if car[SHIFT_MS] > 0.0 else 0.0


@njit(cache=True, nogil=True)
def place(
    state: NDArray[np.float64],
    which: NDArray[np.bool_],
    along_m: NDArray[np.float64],
    lateral_m: NDArray[np.float64],
    heading_rad: NDArray[np.float64],
    speed_mps: NDArray[np.float64],
    race: Race,
    road: Road,
    c: Constants,
) -> None:
    """Puts chosen cars on the road, at rest on its surface, and starts their clocks at 0.

    Gates behind a car that starts along the track count as passed, at time 0.
    """
    for n in range(state.shape[0]):
        if not which[n]:
            continue
        car = state[n]
        car[:] = 0.0
        zone = min(int(along_m[n] / c.spacing_m), road.centre.shape[0] - 1)
        rest = along_m[n] - zone * c.spacing_m
        frame = road.frames[zone]
        for k in range(3):
            car[X + k] = road.centre[zone, k] + rest * frame[k] + lateral_m[n] * frame[3 + k]
            car[UP_X + k] = frame[6 + k]
        car[YAW] = math.atan2(frame[0], frame[2]) + heading_rad[n]
        fx, fy, fz, _lx, _ly, _lz = _axes(car[YAW], car[UP_X], car[UP_Y], car[UP_Z])
        car[VX], car[VY], car[VZ] = speed_mps[n] * fx, speed_mps[n] * fy, speed_mps[n] * fz
        car[CONTACT], car[LOAD] = 1.0, c.gravity_mps2
        gear = 1
        while gear <= 4 and speed_mps[n] > c.gear_speed_mps[gear - 1]:
            gear += 1
        car[GEAR] = gear
        race.zone_index[n], race.along_m[n], race.lateral_m[n], race.height_m[n] = zone, along_m[n], lateral_m[n], 0.0
        race.time_ms[n], race.is_finished[n], race.is_off_track[n] = 0, False, False
        race.gate_time_ms[n, :] = 0
        gate = 0
        while gate < len(road.gate_m) - 1 and road.gate_m[gate] <= along_m[n]:
            gate += 1
        race.gate_index[n] = gate
        car[ON_GRASS] = 1.0 if abs(lateral_m[n]) > road.half_width_m[zone] else 0.0


@njit(cache=True, nogil=True)
def describe(
    state: NDArray[np.float64], race: Race, road: Road, c: Constants, grass_id: int, out: NDArray[np.float32]
) -> None:
    """Writes the observation's `CAR` rows [N, NUM_CAR_FIELDS]; the column order is that of `rulka.observation.CAR`."""
    for n in range(state.shape[0]):
        car, row = state[n], out[n]
        fx, fy, fz, lx, ly, lz = _axes(car[YAW], car[UP_X], car[UP_Y], car[UP_Z])
        row[0], row[1], row[2] = car[X], car[Y], car[Z]
        row[3], row[4], row[5] = lx, car[UP_X], fx
        row[6], row[7], row[8] = ly, car[UP_Y], fy
        row[9], row[10], row[11] = lz, car[UP_Z], fz
        row[12], row[13], row[14] = car[VX], car[VY], car[VZ]
        row[15], row[16], row[17] = car[SPIN_X], car[SPIN_Y], car[SPIN_Z]
        material = grass_id if car[ON_GRASS] > 0.0 else road.material[race.zone_index[n]]
        for w in range(4):
            row[18 + w] = car[SLIDING]
            row[22 + w] = car[CONTACT]
            front = 1.0 if w < 2 else -1.0
            is_left = 1.0 if w in (0, 3) else -1.0
            load = car[LOAD] - 0.4 * front * car[PUSH] - 0.4 * is_left * car[PULL]
            row[26 + w] = min(max(0.005 + 0.0015 * load, 0.005), 0.15) if car[CONTACT] > 0.0 else 0.005
            row[30 + w] = material
        forward = car[VX] * fx + car[VY] * fy + car[VZ] * fz
        gear = int(car[GEAR])
        low = c.gear_speed_mps[gear - 2] if gear > 1 else 0.0
        high = c.gear_speed_mps[gear - 1] if gear <= 4 else c.top_speed_mps
        share = min(max((forward - low) / (high - low), 0.0), 1.0)
        base = 0.0 if gear == 1 else 0.5
        starting = race.time_ms[n] == 0 and abs(forward) < 0.01
        row[34] = 2.0 if starting else (1.0 if car[SHIFT_MS] > 0.0 else 0.0)
        row[35] = gear
        row[36] = c.idle_rpm + (c.max_rpm - c.idle_rpm) * (base + (1.0 - base) * share)
        row[37] = car[COUNTER]
        row[38] = 0.0
