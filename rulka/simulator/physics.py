"""Car physics on a ribbon of road: one kernel call moves a batch of cars through one decision.

A rigid car rides on springs over the surface spanned by the centreline, its width and its bank. An engine with five
gears pushes it; air, rolling wheels, the brake and, off the gas, the engine slow it. Steering turns it at a rate that
depends on speed. Its tyres share one grip between braking and cornering; beyond it they slide, and hold less until they
have caught the car again. Where the road falls away the springs unload: first the grip goes, then the contact, and in
the air there is no steering, engine or brake. Beyond the edge of the road lies grass.

The model follows the game's StadiumCar in kind; its constants are parameters, see `rulka.simulator.constants`.
This file imports nothing of ours, and constants come in as an array: numba's cache looks only at the file of the
outermost kernel, so an imported constant or kernel would go stale unseen.

Right-handed axes: left x up = forward. Angles and rates are positive about the axis: yaw to the left, pitch nose
down, roll to the right. Dimensions: N cars, Z zones, G gates, S state columns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Arrays are only borrowed, so reference counting, which would take a third of the time, is switched off (_nrt).
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
inlined = njit(forceinline=True, **OPTIONS)
kernel = njit(cache=True, **OPTIONS)

# Columns of a car's state, which is all that its future depends on. World axes, metres, m/s, rad/s. The position is
# that of the ground under a car at rest; the game's, in the `CAR` row, is higher up in the body.
X, Y, Z, VX, VY, VZ, FX, FY, FZ, UX, UY, UZ = range(12)  # position, velocity, forward axis, up axis
YAW, PITCH, ROLL, STEER = range(12, 16)  # rates of turning about the car's axes; wheels in [-1, 1], positive right
GEAR, SHIFT_S, COAST_S, TURBO = range(16, 20)  # seconds left of a gear change, since the gas was let go; share of turbo
CONTACT, LOAD, PUSH, PULL = range(20, 24)  # flag; accelerations by the road along its normal, forward and left
FRONT_USE, REAR_USE, IS_SLIDING = range(24, 27)  # share of the grip used, above 1 is sliding; the rear's memory of it
ZONE, ALONG, LATERAL, HEIGHT = range(27, 31)  # zone last passed; along, left of and above the road at rest
TIME_MS, SHIFTING, GATE, FINISHED, OFF_TRACK = range(31, 36)  # decisions spent shifting; gates passed; flags
GATE_MS = 36  # first of the gate times, which end a row
NUM_STATE = GATE_MS

# Columns of a zone of the road.
CENTRE, TANGENT, LEFT, NORMAL, HALF_WIDTH, MATERIAL, NUM_ROAD = 0, 3, 6, 9, 12, 13, 14

# Places in the array of constants. A step is a rate times a tick, a follow the share of a gap closed in a tick.
TICK_S, TICKS_PER_S, TICK_MS, SPACING_M, GRAVITY, PER_GRAVITY, REFERENCE_M = range(7)
GRIP, GRIP_PER_SPEED, SLIDE_GRIP, OVERTURN, MAX_SLIP, SLIP_PER_S, SCRUB = range(7, 14)
ENGINE_BRAKE, COAST_DELAY_S, ROLLING, DRAG, BRAKE, BRAKE_WITH_GAS, SHIFT_TIME_S, IDLE_RPM, MAX_RPM = range(14, 23)
STEER_STEP, YAW_FOLLOW, ALIGN_FOLLOW, TURBO_STEP, AIR_SPIN_KEPT = range(23, 28)
SPRING, DAMPING, REST_M, MAX_M, OFF_ROAD_M, FALL_M, CRASH_COSINE = range(28, 35)
GEAR_PUSH, GEAR_UP, GEAR_DOWN, GEAR_RPM, NUM_CONSTANTS = 35, 40, 45, 50, 55
NUM_GEARS = 5

# Rows of the tables: two curves by speed in whole m/s, then properties of surfaces by material id.
TURN_RADIUS, TURBO_PUSH = 0, 1
SURFACE_GRIP, SURFACE_PUSH, SURFACE_TURBO, NUM_TABLES = 2, 3, 4, 5

# What is under a car, found afresh after every move.
G_NORMAL, G_LEFT, G_HALF_WIDTH, G_MATERIAL = 0, 3, 6, 7
# What a car does on the ground: its axes along the road, and its speeds along them.
FORWARD, SIDE, AHEAD, ASIDE, AWAY, NUM_SCRATCH = 0, 3, 6, 7, 8, 9

WHEEL_SIDE_M = 0.8
MIN_DAMPER_M, MAX_DAMPER_M = 0.005, 0.15
SEARCH_ZONES = 64
GRASS = 2
WEIGHT_SHIFT = 0.12
"""Share of an acceleration that shows as more load on one axle or side and less on the other."""
LIGHT_WHEEL_USE = 1.05
MAX_SIDE_SHARE = 0.95
"""Braking leaves at least the square root of 1 - 0.95 squared of the grip for cornering."""


@kernel
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
    """Moves every car by one decision; a car that finished or left the track stays where it is.

    Args:
        state: [N, S + G] changed in place.
        controls: [N, 3] steer in [-1, 1] (positive right), gas and brake in [0, 1], held throughout.
        num_ticks: ticks in the decision.
        road: [Z, NUM_ROAD] zones.
        gate_m: [G] distance of each gate along the line, finish last.
        c: [NUM_CONSTANTS].
        tables: [NUM_TABLES, 256] curves by speed, surfaces by material.
        scratch: [2, NUM_SCRATCH] working memory of one thread.
    """
    ground, motion = scratch[0], scratch[1]
    for n in range(state.shape[0]):
        car = state[n]
        if car[FINISHED] > 0.0 or car[OFF_TRACK] > 0.0:
            continue
        find_ground(car, road, c, ground)
        for _ in range(num_ticks):
            tick(car, controls[n], road, gate_m, c, tables, ground, motion)
            if car[FINISHED] > 0.0 or car[OFF_TRACK] > 0.0:
                break
        car[SHIFTING] = car[SHIFTING] + 1.0 if car[SHIFT_S] > 0.0 else 0.0


@kernel
def remember_keys(state: Array, keys: NDArray[np.float32], previous_keys: NDArray[np.float32]) -> None:
    """Appends the keys [N, 4] of a decision to the last five [N, 5, 4] of every car that still drives."""
    for n in range(state.shape[0]):
        if state[n, FINISHED] > 0.0 or state[n, OFF_TRACK] > 0.0:
            continue
        last = previous_keys.shape[1] - 1
        for k in range(keys.shape[1]):
            for i in range(last):
                previous_keys[n, i, k] = previous_keys[n, i + 1, k]
            previous_keys[n, last, k] = keys[n, k]


@inlined
def tick(
    car: Array,
    control: NDArray[np.float32],
    road: Array,
    gate_m: Array,
    c: Array,
    tables: Array,
    ground: Array,
    motion: Array,
) -> None:
    """Moves one car by one tick; arguments as for `drive`."""
    car[STEER] += min(max(control[0] - car[STEER], -c[STEER_STEP]), c[STEER_STEP])
    car[COAST_S] = 0.0 if control[1] > 0.0 else car[COAST_S] + c[TICK_S]
    if car[HEIGHT] < c[REST_M]:
        roll_on_road(car, control[1], control[2], c, tables, ground, motion)
    else:
        fly(car, c)
    for k in range(3):
        car[X + k] += car[VX + k] * c[TICK_S]
    before_m = car[ALONG]
    find_ground(car, road, c, ground)
    meet_stops(car, c, ground)
    car[TIME_MS] += c[TICK_MS]
    beyond_m = abs(car[LATERAL]) - ground[G_HALF_WIDTH]
    upright = car[UX] * ground[0] + car[UY] * ground[1] + car[UZ] * ground[2]
    is_crashed = car[HEIGHT] < c[REST_M] and upright < c[CRASH_COSINE]
    if beyond_m > c[OFF_ROAD_M] or abs(car[HEIGHT]) > c[FALL_M] or is_crashed:
        car[OFF_TRACK] = 1.0
    else:
        pass_gates(car, before_m, gate_m, c)


@inlined
def find_ground(car: Array, road: Array, c: Array, ground: Array) -> None:
    """Updates where the car is on the road, and the road under it; see `rulka.tracks.progress.locate`."""
    index, last = int(car[ZONE]), road.shape[0] - 2
    here, ahead = past_plane(car, road[index]), past_plane(car, road[index + 1])
    for _ in range(SEARCH_ZONES):
        if ahead >= 0.0 and index < last:
            index += 1
            here, ahead = ahead, past_plane(car, road[index + 1])
        elif here < 0.0 and index > 0:
            index -= 1
            here, ahead = past_plane(car, road[index]), here
        else:
            break
    between = here - ahead
    share = here / between if between > 1e-9 else 0.0
    zone, after = road[index], road[index + 1]
    size = 0.0
    for k in range(3):
        ground[G_LEFT + k] = zone[LEFT + k] + share * (after[LEFT + k] - zone[LEFT + k])
        ground[G_NORMAL + k] = zone[NORMAL + k] + share * (after[NORMAL + k] - zone[NORMAL + k])
        size += ground[G_NORMAL + k] * ground[G_NORMAL + k]
    size = 1.0 / math.sqrt(size)
    lateral, height = 0.0, 0.0
    for k in range(3):
        ground[G_NORMAL + k] *= size
        away = car[X + k] - zone[CENTRE + k] - share * (after[CENTRE + k] - zone[CENTRE + k])
        lateral += away * ground[G_LEFT + k]
        height += away * ground[G_NORMAL + k]
    car[ZONE], car[ALONG], car[LATERAL], car[HEIGHT] = index, (index + share) * c[SPACING_M], lateral, height
    ground[G_HALF_WIDTH], ground[G_MATERIAL] = zone[HALF_WIDTH], zone[MATERIAL]


@inlined
def past_plane(car: Array, zone: Array) -> float:
    """Returns how far the car is past the plane of a zone, metres."""
    return (
        (car[X] - zone[CENTRE]) * zone[TANGENT]
        + (car[Y] - zone[CENTRE + 1]) * zone[TANGENT + 1]
        + (car[Z] - zone[CENTRE + 2]) * zone[TANGENT + 2]
    )


@inlined
def wheel_material(car: Array, side_m: float, ground: Array) -> int:
    """Returns the material under a wheel `side_m` left of the car's middle."""
    return GRASS if abs(car[LATERAL] + side_m) > ground[G_HALF_WIDTH] else int(ground[G_MATERIAL])


@inlined
def find_motion(car: Array, ground: Array, motion: Array) -> None:
    """Fills the car's axes along the road, forward and left of it, and its speeds along those and the normal."""
    lean = car[FX] * ground[0] + car[FY] * ground[1] + car[FZ] * ground[2]
    fx, fy, fz = car[FX] - lean * ground[0], car[FY] - lean * ground[1], car[FZ] - lean * ground[2]
    size = 1.0 / math.sqrt(fx * fx + fy * fy + fz * fz)
    motion[FORWARD], motion[FORWARD + 1], motion[FORWARD + 2] = fx * size, fy * size, fz * size
    motion[SIDE] = ground[1] * motion[FORWARD + 2] - ground[2] * motion[FORWARD + 1]
    motion[SIDE + 1] = ground[2] * motion[FORWARD] - ground[0] * motion[FORWARD + 2]
    motion[SIDE + 2] = ground[0] * motion[FORWARD + 1] - ground[1] * motion[FORWARD]
    motion[AHEAD], motion[ASIDE], motion[AWAY] = 0.0, 0.0, 0.0
    for k in range(3):
        motion[AHEAD] += car[VX + k] * motion[FORWARD + k]
        motion[ASIDE] += car[VX + k] * motion[SIDE + k]
        motion[AWAY] += car[VX + k] * ground[G_NORMAL + k]


@inlined
def roll_on_road(car: Array, gas: float, brake: float, c: Array, tables: Array, ground: Array, motion: Array) -> None:
    """Applies springs, engine, brake, tyres and steering for one tick to a car that touches the road."""
    find_motion(car, ground, motion)
    car[CONTACT] = 1.0
    car[LOAD] = max(c[SPRING] * (c[REST_M] - car[HEIGHT]) - c[DAMPING] * motion[AWAY], 0.0)
    motion[AWAY] += (car[LOAD] - c[GRAVITY] * ground[1]) * c[TICK_S]

    left, right = wheel_material(car, WHEEL_SIDE_M, ground), wheel_material(car, -WHEEL_SIDE_M, ground)
    surface = 0.5 * (tables[SURFACE_GRIP, left] + tables[SURFACE_GRIP, right])
    grip = (c[GRIP] + c[GRIP_PER_SPEED] * abs(motion[AHEAD])) * surface * min(car[LOAD] * c[PER_GRAVITY], 1.0) + 1e-6
    push, resist = engine(car, motion[AHEAD], gas, brake, c)
    push *= 0.5 * (tables[SURFACE_PUSH, left] + tables[SURFACE_PUSH, right])
    car[TURBO] = max(car[TURBO] - c[TURBO_STEP], tables[SURFACE_TURBO, left], tables[SURFACE_TURBO, right])

    is_locked = max(push, resist) > grip
    push, resist = min(push, grip), min(resist, grip)
    spare = min(max(push, resist) / grip, MAX_SIDE_SHARE)
    side_grip = grip * math.sqrt(1.0 - spare * spare)
    motion[ASIDE] = tyres_hold(car, motion[ASIDE] - c[GRAVITY] * motion[SIDE + 1] * c[TICK_S], side_grip, is_locked, c)
    push += car[TURBO] * at_speed(tables[TURBO_PUSH], motion[AHEAD])
    push_forward(car, push, resist + c[SCRUB] * abs(car[PULL]), c, motion)
    for k in range(3):
        along = motion[AHEAD] * motion[FORWARD + k] + motion[ASIDE] * motion[SIDE + k]
        car[VX + k] = along + motion[AWAY] * ground[G_NORMAL + k]
    turn(car, side_grip, c, tables, motion)
    turn_body(car, c, ground, motion)


@inlined
def push_forward(car: Array, push: float, resist: float, c: Array, motion: Array) -> None:
    """Changes the forward speed; what resists can stop the car but not turn it back."""
    ahead = motion[AHEAD]
    moved = ahead + (push - c[GRAVITY] * motion[FORWARD + 1]) * c[TICK_S]
    slowed = (resist + c[ROLLING] + c[DRAG] * ahead * ahead) * c[TICK_S]
    motion[AHEAD] = max(moved - slowed, 0.0) if moved > 0.0 else min(moved + slowed, 0.0)
    car[PUSH] = (motion[AHEAD] - ahead) * c[TICKS_PER_S] + c[GRAVITY] * motion[FORWARD + 1]


@inlined
def at_speed(curve: Array, speed: float) -> float:
    """Returns the value of a curve at a speed, m/s; the sign of the speed does not matter."""
    speed = min(abs(speed), curve.shape[0] - 1.001)
    index = int(speed)
    return curve[index] + (speed - index) * (curve[index + 1] - curve[index])


@inlined
def engine(car: Array, ahead: float, gas: float, brake: float, c: Array) -> tuple[float, float]:
    """Changes gear and returns what the wheels push and how they brake, m/s2, on the best surface."""
    gear = int(car[GEAR])
    if car[SHIFT_S] > 0.0:
        car[SHIFT_S] = max(car[SHIFT_S] - c[TICK_S], 0.0)
    elif gear < NUM_GEARS and ahead > c[GEAR_UP + gear - 1]:
        car[GEAR], car[SHIFT_S] = gear + 1, c[SHIFT_TIME_S]
    elif gear > 1 and ahead < c[GEAR_DOWN + gear - 2]:
        car[GEAR], car[SHIFT_S] = gear - 1, c[SHIFT_TIME_S]
    push = gas * c[GEAR_PUSH + gear - 1] if car[SHIFT_S] <= 0.0 else 0.0
    resist = brake * c[BRAKE] * (1.0 + gas * (c[BRAKE_WITH_GAS] - 1.0))
    if car[COAST_S] > c[COAST_DELAY_S]:
        resist += c[ENGINE_BRAKE] * abs(ahead)
    return push, resist


@inlined
def tyres_hold(car: Array, aside: float, side_grip: float, is_locked: bool, c: Array) -> float:
    """Slows the sideways speed as far as the tyres can.

    Tyres that slide hold less, and slide on until what is asked of them is below that lesser grip.

    Returns:
        The sideways speed after this tick, m/s.
    """
    holds = side_grip * (c[SLIDE_GRIP] if car[IS_SLIDING] > 0.0 else 1.0)
    wanted = -aside * c[SLIP_PER_S]
    use = abs(wanted) / holds
    car[IS_SLIDING] = 1.0 if use > 1.0 else 0.0
    car[REAR_USE] = max(use, 2.0) if is_locked else use
    car[PULL] = min(max(wanted, -holds), holds)
    return aside + car[PULL] * c[TICK_S]


@inlined
def turn(car: Array, side_grip: float, c: Array, tables: Array, motion: Array) -> None:
    """Moves the yaw rate toward what the wheels ask for, as far as the front tyres can turn the car."""
    ahead, aside = motion[AHEAD], motion[ASIDE]
    wanted = -car[STEER] * ahead / at_speed(tables[TURN_RADIUS], ahead)
    limit = c[OVERTURN] * side_grip / max(abs(ahead), 1.0)
    car[FRONT_USE] = max(abs(wanted) / limit, 2.0 if car[REAR_USE] >= 2.0 else 0.0)
    wanted = min(max(wanted, -limit), limit)
    if wanted * aside * ahead < 0.0:
        # The nose already points further into the bend than the car moves: the front tyres lose their angle.
        speed = math.sqrt(ahead * ahead + aside * aside)
        wanted *= max(1.0 - abs(aside) / (c[MAX_SLIP] * speed), 0.0)
    car[YAW] += (wanted - car[YAW]) * c[YAW_FOLLOW]


@inlined
def turn_body(car: Array, c: Array, ground: Array, motion: Array) -> None:
    """Turns the car by its yaw rate and lets its up axis follow the road's normal."""
    step, follow = car[YAW] * c[TICK_S], c[ALIGN_FOLLOW]
    old_x, old_y, old_z = car[UX], car[UY], car[UZ]
    set_axes(
        car,
        motion[FORWARD] + step * motion[SIDE],
        motion[FORWARD + 1] + step * motion[SIDE + 1],
        motion[FORWARD + 2] + step * motion[SIDE + 2],
        old_x + follow * (ground[0] - old_x),
        old_y + follow * (ground[1] - old_y),
        old_z + follow * (ground[2] - old_z),
    )
    tilt_x = (old_y * car[UZ] - old_z * car[UY]) * c[TICKS_PER_S]
    tilt_y = (old_z * car[UX] - old_x * car[UZ]) * c[TICKS_PER_S]
    tilt_z = (old_x * car[UY] - old_y * car[UX]) * c[TICKS_PER_S]
    car[PITCH] = tilt_x * motion[SIDE] + tilt_y * motion[SIDE + 1] + tilt_z * motion[SIDE + 2]
    car[ROLL] = tilt_x * motion[FORWARD] + tilt_y * motion[FORWARD + 1] + tilt_z * motion[FORWARD + 2]


@inlined
def set_axes(car: Array, fx: float, fy: float, fz: float, ux: float, uy: float, uz: float) -> None:
    """Makes up a unit vector, forward one across it, and stores both."""
    size = 1.0 / math.sqrt(ux * ux + uy * uy + uz * uz)
    ux, uy, uz = ux * size, uy * size, uz * size
    lean = fx * ux + fy * uy + fz * uz
    fx, fy, fz = fx - lean * ux, fy - lean * uy, fz - lean * uz
    size = 1.0 / math.sqrt(fx * fx + fy * fy + fz * fz)
    car[FX], car[FY], car[FZ] = fx * size, fy * size, fz * size
    car[UX], car[UY], car[UZ] = ux, uy, uz


@inlined
def fly(car: Array, c: Array) -> None:
    """Lets a car without contact fall and turn on as it left the road."""
    car[CONTACT], car[LOAD], car[PUSH], car[PULL] = 0.0, 0.0, 0.0, 0.0
    car[FRONT_USE], car[REAR_USE], car[IS_SLIDING] = 0.0, 0.0, 0.0
    car[SHIFT_S] = max(car[SHIFT_S] - c[TICK_S], 0.0)
    car[TURBO] = max(car[TURBO] - c[TURBO_STEP], 0.0)
    speed = math.sqrt(car[VX] * car[VX] + car[VY] * car[VY] + car[VZ] * car[VZ])
    slowed = 1.0 - c[DRAG] * speed * c[TICK_S]
    for k in range(3):
        car[VX + k] *= slowed
    car[VY] -= c[GRAVITY] * c[TICK_S]
    fx, fy, fz, ux, uy, uz = car[FX], car[FY], car[FZ], car[UX], car[UY], car[UZ]
    lx, ly, lz = uy * fz - uz * fy, uz * fx - ux * fz, ux * fy - uy * fx
    yaw, pitch, roll = car[YAW] * c[TICK_S], car[PITCH] * c[TICK_S], car[ROLL] * c[TICK_S]
    set_axes(
        car,
        fx + yaw * lx - pitch * ux,
        fy + yaw * ly - pitch * uy,
        fz + yaw * lz - pitch * uz,
        ux + pitch * fx - roll * lx,
        uy + pitch * fy - roll * ly,
        uz + pitch * fz - roll * lz,
    )
    for rate in range(YAW, ROLL + 1):
        car[rate] *= c[AIR_SPIN_KEPT]


@inlined
def meet_stops(car: Array, c: Array, ground: Array) -> None:
    """Stops a car whose springs are pressed as far as they go.

    Where the road merely curves up under the car, as in a loop, its velocity turns and keeps its size.
    """
    deep = c[REST_M] - car[HEIGHT] - c[MAX_M]
    if deep <= 0.0:
        return
    nx, ny, nz = ground[0], ground[1], ground[2]
    car[X], car[Y], car[Z] = car[X] + deep * nx, car[Y] + deep * ny, car[Z] + deep * nz
    car[HEIGHT] += deep
    away = car[VX] * nx + car[VY] * ny + car[VZ] * nz
    if away >= 0.0:
        return
    before = car[VX] * car[VX] + car[VY] * car[VY] + car[VZ] * car[VZ]
    vx, vy, vz = car[VX] - away * nx, car[VY] - away * ny, car[VZ] - away * nz
    after = vx * vx + vy * vy + vz * vz
    keep = min(math.sqrt(before / max(after, 1e-9)), 1.002)
    car[VX], car[VY], car[VZ] = vx * keep, vy * keep, vz * keep
    car[LOAD] -= away * c[TICKS_PER_S]


@inlined
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


# Columns of a `CAR` row; a test holds them to `rulka.observation.CAR`.
R_POSITION, R_ROTATION, R_VELOCITY, R_SPIN, R_SLIDING, R_CONTACT, R_DAMPER, R_MATERIAL = 0, 3, 12, 15, 18, 22, 26, 30
R_GEARBOX, R_GEAR, R_RPM, R_COUNTER, R_FREE_WHEELING = 34, 35, 36, 37, 38
STARTING = 2.0


@kernel
def describe(
    state: Array, road: Array, c: Array, rows: NDArray[np.float32], progress: Array, marks: NDArray[np.int64]
) -> None:
    """Writes what others read of the cars.

    Args:
        state: [N, S + G].
        road: [Z, NUM_ROAD].
        c: [NUM_CONSTANTS].
        rows: [N, NUM_CAR_FIELDS] `CAR` rows, overwritten.
        progress: [2, N] metres along and left of the line, overwritten.
        marks: [3 + G, N] zone, race time in ms, gates passed and the time of each, overwritten.
    """
    for n in range(state.shape[0]):
        car, row = state[n], rows[n]
        fx, fy, fz, ux, uy, uz = car[FX], car[FY], car[FZ], car[UX], car[UY], car[UZ]
        lx, ly, lz = uy * fz - uz * fy, uz * fx - ux * fz, ux * fy - uy * fx
        for k in range(3):
            row[R_POSITION + k] = car[X + k] + c[REFERENCE_M] * car[UX + k]
            row[R_VELOCITY + k] = car[VX + k]
        row[R_ROTATION], row[R_ROTATION + 1], row[R_ROTATION + 2] = lx, ux, fx
        row[R_ROTATION + 3], row[R_ROTATION + 4], row[R_ROTATION + 5] = ly, uy, fy
        row[R_ROTATION + 6], row[R_ROTATION + 7], row[R_ROTATION + 8] = lz, uz, fz
        row[R_SPIN] = car[YAW] * ux + car[PITCH] * lx + car[ROLL] * fx
        row[R_SPIN + 1] = car[YAW] * uy + car[PITCH] * ly + car[ROLL] * fy
        row[R_SPIN + 2] = car[YAW] * uz + car[PITCH] * lz + car[ROLL] * fz
        describe_wheels(car, road, c, row)
        describe_engine(car, c, row)
        progress[0, n], progress[1, n] = car[ALONG], car[LATERAL]
        marks[0, n], marks[1, n], marks[2, n] = int(car[ZONE]), int(car[TIME_MS]), int(car[GATE])
        for gate in range(marks.shape[0] - 3):
            marks[3 + gate, n] = int(car[GATE_MS + gate])


@inlined
def describe_wheels(car: Array, road: Array, c: Array, row: NDArray[np.float32]) -> None:
    """Writes what each wheel does: front left, front right, rear right, rear left.

    A wheel carries its share of the load as the car squats and leans; the one that carries less slides a little
    earlier than the other on its axle.
    """
    zone = road[int(car[ZONE])]
    for w in range(4):
        front, left = 1.0 if w < 2 else -1.0, 1.0 if w in (0, 3) else -1.0
        lateral = car[LATERAL] + left * WHEEL_SIDE_M
        load = car[LOAD] - WEIGHT_SHIFT * (front * car[PUSH] + left * car[PULL])
        touches = car[CONTACT] > 0.0 and load > 0.0
        use = (car[FRONT_USE] if w < 2 else car[REAR_USE]) * (1.0 if load >= car[LOAD] else LIGHT_WHEEL_USE)
        row[R_CONTACT + w] = 1.0 if touches else 0.0
        row[R_SLIDING + w] = 1.0 if touches and use > 1.0 else 0.0
        row[R_DAMPER + w] = min(max(load / c[SPRING], MIN_DAMPER_M), MAX_DAMPER_M) if touches else MIN_DAMPER_M
        row[R_MATERIAL + w] = GRASS if abs(lateral) > zone[HALF_WIDTH] else zone[MATERIAL]


@inlined
def describe_engine(car: Array, c: Array, row: NDArray[np.float32]) -> None:
    """Writes gearbox and engine speed."""
    gear = int(car[GEAR])
    ahead = abs(car[VX] * car[FX] + car[VY] * car[FY] + car[VZ] * car[FZ])
    is_waiting = car[TIME_MS] == 0.0 and ahead < 0.01
    row[R_GEARBOX] = STARTING if is_waiting else (1.0 if car[SHIFT_S] > 0.0 else 0.0)
    row[R_GEAR] = gear
    row[R_RPM] = min(max(c[GEAR_RPM + gear - 1] * ahead, c[IDLE_RPM]), c[MAX_RPM])
    row[R_COUNTER] = car[SHIFTING]
    row[R_FREE_WHEELING] = 0.0
