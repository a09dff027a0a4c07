"""Simulates a car for one tick of 10 ms: ground, wheels, body, gates, and the car's `CAR` row.

Right-handed axes: left x up = forward. Angles and rates are positive about the axis: yaw to the left, pitch nose
down, roll to the right. Dimensions: N cars, Z zones, G gates, S state columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import Array, inlined_kernel
from rulka.simulator.race_end import is_beyond_track
from rulka.tracks.track import DROP, NO_GROUND, WALL

# Columns of a car's full state. World axes, metres, m/s, rad/s. Position and velocity are those of the centre of mass;
# the game's position, in the `CAR` row, is lower and further back in the body.
X, Y, Z, VX, VY, VZ, FX, FY, FZ, UX, UY, UZ = range(12)  # position, velocity, forward axis, up axis
YAW, PITCH, ROLL, STEER = range(12, 16)  # angular rates about the car's axes; wheels in [-1, 1], positive right
GEAR, SHIFT_S, TURBO = range(16, 19)  # seconds left of a gear change and of turbo
CONTACT, LOAD, PUSH, PULL = range(19, 23)  # flag; accelerations from the road along its normal, forward and left
SLIDES = 23  # first of four flags: front left, front right, rear right, rear left
ZONE, ALONG, LATERAL, HEIGHT = range(27, 31)  # last zone; along, left of and above the road (0 at rest)
TIME_MS, SHIFTING, GATE, FINISHED, OFF_TRACK = range(31, 36)  # decisions in a gear change so far; gates passed; flags
VARIANT = 36  # index of the car's physics in the world
GATE_MS = 37  # first of the gate times, which fill the rest of the row
NUM_STATE = GATE_MS

# Columns of a zone of the road.
CENTRE, TANGENT, LEFT, NORMAL, HALF_WIDTH, MATERIAL, EDGE, NUM_ROAD = 0, 3, 6, 9, 12, 13, 14, 15

# Indices into the array of constants.
TICK_S, TICK_MS, SPACING_M, GRAVITY, PER_GRAVITY, AIR_GRAVITY, AIR_DRAG, CENTRE_UP, CENTRE_AHEAD, RIDE_M = range(10)
STIFFNESS, EXCESS_GRIP, LOCKED_GRIP, LEAST_LOAD, AXLE_M, YAW_PER_S, STEER_STEP = range(10, 17)
STEER_RADIUS, STEER_RADIUS_PER_SPEED, SCRUB, SLOPE_LOSS, ENGINE_BRAKE, ENGINE_BRAKE_PER_SPEED = range(17, 23)
BRAKE, LOCK_SPEED, LOCKED_BRAKE, REVERSE_PUSH, REVERSE_TOP, SLIDING_PUSH, ROLLING = range(23, 30)
SHIFT_TIME_S, SHIFT_S_PER_RPM, IDLE_RPM, MAX_RPM = range(30, 34)
TURBO_FACTOR, TURBO_LASTS_S, ALIGN_PER_S, SPRING, DAMPING, REST_M, MAX_M = range(34, 41)
AIR_SPIN_LOSS, AIR_ROLL_LOSS, AIR_COUNTER_LOSS = range(41, 44)
OFF_ROAD_M, FALL_M, CRASH_COSINE, WALL_BOUNCE, WALL_RUB = range(44, 49)
GEAR_UP, GEAR_DOWN, GEAR_RPM, PUSHES, PUSH_EDGES, STEP_M, NUM_CONSTANTS = 49, 53, 57, 62, 66, 69, 70
NUM_GEARS = 5

# Rows of the tables: curves by speed in whole m/s, then surface properties by material id.
SIDE_GRIP, SLIDE_GRIP, TURN_RATE = range(3)
SURFACE_GRIP, SURFACE_SLIDE, SURFACE_PUSH, SURFACE_TURBO, NUM_TABLES = 3, 4, 5, 6, 7

# Ground under a car, recomputed after every move.
G_NORMAL, G_LEFT, G_HALF_WIDTH, G_MATERIAL, G_EDGE = 0, 3, 6, 7, 8
# Motion on the ground: the car's axes along the road, and its speeds along them.
FORWARD, SIDE, AHEAD, ASIDE, AWAY, NUM_SCRATCH = 0, 3, 6, 7, 8, 9  # enough for either kind

# Columns of a `CAR` row; a test compares them with `rulka.contracts.observation.CAR`.
R_POSITION, R_ROTATION, R_VELOCITY, R_SPIN, R_SLIDING, R_CONTACT, R_DAMPER, R_MATERIAL = 0, 3, 12, 15, 18, 22, 26, 30
R_GEARBOX, R_GEAR, R_RPM, R_COUNTER, R_FREE_WHEELING = 34, 35, 36, 37, 38

# Ground under a car, and contact with walls and bump stops.
SEARCH_ZONES = 64
"""Zones searched at most per call of `find_ground`."""
GRASS = 2
"""Material beyond the edges of the road."""
WHEEL_SIDE_M = 0.8
"""Distance of the wheels from the middle of the car."""
CAR_SIDE_M = 1.0
"""Half the width of the car's body."""
WALL_HEIGHT_M = 1.0
"""A car higher than this above the road flies over its walls."""
UNDER_ROAD_M = 1.0
"""A car further below the road has fallen off and has no contact with it."""
NOSE_ASIDE = 0.2
"""Share of the nose's component into a wall that one step of contact removes."""


@inlined_kernel
def find_ground(car: Array, road: Array, c: Array, ground: Array) -> None:
    """Updates the car's position on the road and the ground under it; see `rulka.tracks.progress.locate`."""
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
    car[ZONE], car[ALONG], car[LATERAL], car[HEIGHT] = (
        index,
        (index + share) * c[SPACING_M],
        lateral,
        height - c[RIDE_M],
    )
    ground[G_HALF_WIDTH], ground[G_MATERIAL], ground[G_EDGE] = zone[HALF_WIDTH], zone[MATERIAL], zone[EDGE]


@inlined_kernel
def past_plane(car: Array, zone: Array) -> float:
    """Returns the signed distance of the car past the plane of a zone, metres."""
    return (
        (car[X] - zone[CENTRE]) * zone[TANGENT]
        + (car[Y] - zone[CENTRE + 1]) * zone[TANGENT + 1]
        + (car[Z] - zone[CENTRE + 2]) * zone[TANGENT + 2]
    )


@inlined_kernel
def has_ground(car: Array, ground: Array) -> bool:
    """True if there is ground under the car: not beyond an edge that drops, in a gap or under the road."""
    if car[HEIGHT] <= -UNDER_ROAD_M or ground[G_MATERIAL] == NO_GROUND:
        return False
    return not (ground[G_EDGE] == DROP and abs(car[LATERAL]) > ground[G_HALF_WIDTH])


@inlined_kernel
def bounce(car: Array, leftward: float, c: Array, ground: Array) -> None:
    """Reflects the speed into a wall, damped by `WALL_BOUNCE`, and applies the wall's friction to the rest."""
    rest = 0.0
    for k in range(3):
        car[VX + k] -= leftward * ground[G_LEFT + k]
        rest += car[VX + k] * car[VX + k]
    rubbed = c[WALL_RUB] * (1.0 + c[WALL_BOUNCE]) * abs(leftward)
    keep = max(1.0 - rubbed / max(math.sqrt(rest), 1e-9), 0.0)
    for k in range(3):
        car[VX + k] = car[VX + k] * keep - c[WALL_BOUNCE] * leftward * ground[G_LEFT + k]


@inlined_kernel
def collide_walls(car: Array, c: Array, ground: Array) -> None:
    """Keeps a car inside the walls of the road, with bounce and friction.

    If the nose points into the wall, it is pushed aside too.
    """
    if ground[G_EDGE] != WALL or car[HEIGHT] > WALL_HEIGHT_M or car[HEIGHT] < -UNDER_ROAD_M:
        return
    side = 1.0 if car[LATERAL] > 0.0 else -1.0
    deep = side * car[LATERAL] + CAR_SIDE_M - ground[G_HALF_WIDTH]
    if deep <= 0.0:
        return
    car[LATERAL] -= side * deep
    toward, into = 0.0, 0.0
    for k in range(3):
        car[X + k] -= side * deep * ground[G_LEFT + k]
        toward += side * car[VX + k] * ground[G_LEFT + k]
        into += side * car[FX + k] * ground[G_LEFT + k]
    if into > 0.0:
        size = 1.0 / math.sqrt(max(1.0 - NOSE_ASIDE * (2.0 - NOSE_ASIDE) * into * into, 1e-6))
        for k in range(3):
            car[FX + k] = (car[FX + k] - NOSE_ASIDE * side * into * ground[G_LEFT + k]) * size
    if toward > 0.0:
        bounce(car, side * toward, c, ground)


@inlined_kernel
def wheel_material(car: Array, side_m: float, ground: Array) -> int:
    """Returns the material under a wheel `side_m` left of the car's middle."""
    return GRASS if abs(car[LATERAL] + side_m) > ground[G_HALF_WIDTH] else int(ground[G_MATERIAL])


@inlined_kernel
def find_motion(car: Array, ground: Array, motion: Array) -> None:
    """Writes the car's forward and left axes along the road, and its speeds along those and the normal."""
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


@inlined_kernel
def apply_bump_stops(car: Array, step_s: float, c: Array, ground: Array) -> None:
    """Bump stops: at full spring travel, removes the car's speed into the road.

    In a loop this happens in every step, so the road turns the velocity at some loss of speed.
    """
    deep = c[REST_M] - car[HEIGHT] - c[MAX_M]
    if deep <= 0.0:
        return
    car[HEIGHT] += deep
    away = 0.0
    for k in range(3):
        car[X + k] += deep * ground[G_NORMAL + k]
        away += car[VX + k] * ground[G_NORMAL + k]
    if away < 0.0:
        for k in range(3):
            car[VX + k] -= away * ground[G_NORMAL + k]
        car[LOAD] -= away / step_s


# Rotation of the body: with the road, or free in the air.
SPIN_PER_S = 16.0
"""Low-pass rate of the pitch and roll rates: a bump just before take-off does not make a car tumble in the air."""


@inlined_kernel
def turn_body(car: Array, step_s: float, c: Array, ground: Array, motion: Array) -> None:
    """Rotates the car by its yaw rate and lets its up axis follow the road's normal."""
    step, follow = car[YAW] * step_s, min(c[ALIGN_PER_S] * step_s, 1.0)
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
    per_s, share = 1.0 / step_s, SPIN_PER_S * step_s
    tilt_x = (old_y * car[UZ] - old_z * car[UY]) * per_s
    tilt_y = (old_z * car[UX] - old_x * car[UZ]) * per_s
    tilt_z = (old_x * car[UY] - old_y * car[UX]) * per_s
    pitch = tilt_x * motion[SIDE] + tilt_y * motion[SIDE + 1] + tilt_z * motion[SIDE + 2]
    roll = tilt_x * motion[FORWARD] + tilt_y * motion[FORWARD + 1] + tilt_z * motion[FORWARD + 2]
    car[PITCH] += share * (pitch - car[PITCH])
    car[ROLL] += share * (roll - car[ROLL])


@inlined_kernel
def fly(car: Array, brake: float, step_s: float, c: Array) -> None:
    """Moves a car in the air: it falls and keeps the rotation with which it left the road.

    Steering with the yaw keeps the yaw rate, steering against it damps it faster; the brake stops pitching.
    """
    car[CONTACT], car[LOAD], car[PUSH], car[PULL] = 0.0, 0.0, 0.0, 0.0
    car[SHIFT_S] = max(car[SHIFT_S] - step_s, 0.0)
    car[TURBO] = max(car[TURBO] - step_s, 0.0)
    kept = 1.0 - c[AIR_DRAG] * step_s
    for k in range(3):
        car[VX + k] *= kept
    car[VY] -= c[AIR_GRAVITY] * step_s
    fx, fy, fz, ux, uy, uz = car[FX], car[FY], car[FZ], car[UX], car[UY], car[UZ]
    lx, ly, lz = uy * fz - uz * fy, uz * fx - ux * fz, ux * fy - uy * fx
    yaw, pitch, roll = car[YAW] * step_s, car[PITCH] * step_s, car[ROLL] * step_s
    set_axes(
        car,
        fx + yaw * lx - pitch * ux,
        fy + yaw * ly - pitch * uy,
        fz + yaw * lz - pitch * uz,
        ux + pitch * fx - roll * lx,
        uy + pitch * fy - roll * ly,
        uz + pitch * fz - roll * lz,
    )
    with_it = -car[STEER] if car[YAW] > 0.0 else car[STEER]
    yaw_loss = c[AIR_SPIN_LOSS] * (1.0 - abs(with_it)) + (c[AIR_COUNTER_LOSS] * -with_it if with_it < 0.0 else 0.0)
    car[YAW] *= 1.0 - yaw_loss * step_s
    car[PITCH] *= 0.0 if brake > 0.0 else 1.0 - c[AIR_SPIN_LOSS] * step_s
    car[ROLL] *= 1.0 - c[AIR_ROLL_LOSS] * step_s


@inlined_kernel
def set_axes(car: Array, fx: float, fy: float, fz: float, ux: float, uy: float, uz: float) -> None:
    """Normalises the up axis, makes the forward axis a unit vector orthogonal to it, and stores both."""
    size = 1.0 / math.sqrt(ux * ux + uy * uy + uz * uz)
    ux, uy, uz = ux * size, uy * size, uz * size
    lean = fx * ux + fy * uy + fz * uz
    fx, fy, fz = fx - lean * ux, fy - lean * uy, fz - lean * uz
    size = 1.0 / math.sqrt(fx * fx + fy * fy + fz * fz)
    car[FX], car[FY], car[FZ] = fx * size, fy * size, fz * size
    car[UX], car[UY], car[UZ] = ux, uy, uz


# A car on its wheels: springs, engine, brake, tyres and steering.
STANDING_MPS = 0.1
LONGEST_STEP_M = 0.3
"""The simulator splits a tick into equal steps in which a car covers less than this."""


@inlined_kernel
def roll_on_road(
    car: Array, gas: float, brake: float, step_s: float, c: Array, tables: Array, ground: Array, motion: Array
) -> None:
    """Applies springs, engine, brake, tyres and steering for one step to a car on the road."""
    find_motion(car, ground, motion)
    car[CONTACT] = 1.0
    car[LOAD] = max(c[SPRING] * (c[REST_M] - car[HEIGHT]) - c[DAMPING] * motion[AWAY], 0.0)
    motion[AWAY] += (car[LOAD] - c[GRAVITY] * ground[1]) * step_s
    left, right = wheel_material(car, WHEEL_SIDE_M, ground), wheel_material(car, -WHEEL_SIDE_M, ground)
    is_locked = brake > 0.0 and abs(motion[AHEAD]) > c[LOCK_SPEED]
    push, resist = engine(car, motion[AHEAD], gas, brake, is_locked, step_s, c)
    on_pad = max(tables[SURFACE_TURBO, left], tables[SURFACE_TURBO, right])
    car[TURBO] = max(car[TURBO] - step_s, on_pad * c[TURBO_LASTS_S])
    steady = 1.0 - c[SLOPE_LOSS] * (1.0 - ground[1])
    push *= 0.5 * (tables[SURFACE_PUSH, left] + tables[SURFACE_PUSH, right]) * steady
    slowed = apply_tyre_forces(car, is_locked, steady, left, right, c, tables, motion)
    push_forward(car, push, resist + slowed, step_s, c, motion)
    motion[ASIDE] += (car[PULL] - c[GRAVITY] * motion[SIDE + 1]) * step_s
    wanted = -car[STEER] * at_speed(tables[TURN_RATE], motion[AHEAD])
    car[YAW] += ((wanted if motion[AHEAD] > 0.0 else -wanted) - car[YAW]) * c[YAW_PER_S] * step_s
    for k in range(3):
        along = motion[AHEAD] * motion[FORWARD + k] + motion[ASIDE] * motion[SIDE + k]
        car[VX + k] = along + motion[AWAY] * ground[G_NORMAL + k]
    turn_body(car, step_s, c, ground, motion)


@inlined_kernel
def push_forward(car: Array, push: float, resist: float, step_s: float, c: Array, motion: Array) -> None:
    """Updates the forward speed; resistance can stop the car but not reverse it."""
    ahead = motion[AHEAD]
    moved = ahead + (push - c[GRAVITY] * motion[FORWARD + 1]) * step_s
    slowed = (resist + c[ROLLING] * max(car[LOAD] - c[GRAVITY], 0.0)) * step_s
    motion[AHEAD] = max(moved - slowed, 0.0) if moved > 0.0 else min(moved + slowed, 0.0)
    car[PUSH] = (motion[AHEAD] - ahead) / step_s + c[GRAVITY] * motion[FORWARD + 1]


@inlined_kernel
def slides_whole(car: Array) -> bool:
    """True if the car slides on all four wheels; the rear wheels never slide alone."""
    return car[SLIDES + 2] > 0.0


@inlined_kernel
def at_speed(curve: Array, speed: float) -> float:
    """Interpolates a curve at the absolute value of a speed, m/s."""
    speed = min(abs(speed), curve.shape[0] - 1.001)
    index = int(speed)
    return curve[index] + (speed - index) * (curve[index + 1] - curve[index])


@inlined_kernel
def engine(
    car: Array, ahead: float, gas: float, brake: float, is_locked: bool, step_s: float, c: Array
) -> tuple[float, float]:
    """Shifts gears and returns the push and the braking of the wheels, m/s2, on the best surface.

    On the brake, a car that stands or rolls back reverses, up to the top speed of the reverse gear.
    """
    gear = int(car[GEAR])
    if car[SHIFT_S] > 0.0:
        car[SHIFT_S] = max(car[SHIFT_S] - step_s, 0.0)
    elif gear < NUM_GEARS and ahead > c[GEAR_UP + gear - 1]:
        car[GEAR] = gear + 1
    elif gear > 1 and ahead < c[GEAR_DOWN + gear - 2]:
        car[GEAR] = gear - 1
    if int(car[GEAR]) != gear:
        change = abs(c[GEAR_RPM + int(car[GEAR]) - 1] - c[GEAR_RPM + gear - 1]) * abs(ahead)
        car[SHIFT_S] = c[SHIFT_TIME_S] + change * c[SHIFT_S_PER_RPM]
    if brake > 0.0 and gas <= 0.0 and ahead < STANDING_MPS:
        excess = -ahead - c[REVERSE_TOP]
        if excess < 0.0:
            return -brake * c[REVERSE_PUSH], 0.0
        # Above the reverse gear's top speed, down a slope or in a spin, the brake removes the excess.
        return 0.0, brake * min(excess / step_s, c[BRAKE])
    part = 0
    while part < 3 and ahead > c[PUSH_EDGES + part]:
        part += 1
    slides = slides_whole(car)
    most = gas * (c[SLIDING_PUSH] if part > 0 and slides else c[PUSHES + part])
    push = most if slides or car[SHIFT_S] <= 0.0 else 0.0
    if car[TURBO] > 0.0:
        push += most * (c[TURBO_FACTOR] - 1.0)
    resist = brake * (c[LOCKED_BRAKE] if is_locked else c[BRAKE])
    if gas <= 0.0:
        resist += c[ENGINE_BRAKE] + c[ENGINE_BRAKE_PER_SPEED] * abs(ahead)
    return push, resist


@inlined_kernel
def apply_tyre_forces(
    car: Array, is_locked: bool, steady: float, left: int, right: int, c: Array, tables: Array, motion: Array
) -> float:
    """Computes the lateral forces of the four tyres, limited by grip; updates `PULL` and `SLIDES`.

    A tyre slides once the demand exceeds its grip. It then holds less, until the demand falls below that lower limit; a
    share of the excess still comes through. Each front tyre slides separately; if a rear tyre slides, all four do.

    Args:
        car: state row of one car.
        is_locked: True if the brakes lock the wheels, so that all slide.
        steady: share of the grip left by the slope.
        left: material under the left wheels.
        right: material under the right wheels.
        c: [NUM_CONSTANTS].
        tables: [NUM_TABLES, 256].
        motion: from `find_motion`.

    Returns:
        Deceleration of the car by the tyres, m/s2.
    """
    ahead, aside, turned = motion[AHEAD], motion[ASIDE], car[YAW] * c[AXLE_M]
    sine = -car[STEER] / (c[STEER_RADIUS] + c[STEER_RADIUS_PER_SPEED] * abs(ahead))
    cosine = math.sqrt(1.0 - sine * sine)
    share = 0.25 * min(max(car[LOAD] * c[PER_GRAVITY], c[LEAST_LOAD]), 1.0) * steady
    grip = share * at_speed(tables[SIDE_GRIP], ahead)
    slide = share * at_speed(tables[SLIDE_GRIP], ahead) * (c[LOCKED_GRIP] if is_locked else 1.0)
    pull, back, is_lost = 0.0, 0.0, is_locked
    for wheel in range(4):
        is_front, is_left = wheel < 2, wheel in (0, 3)
        if is_front:
            speed = cosine * (aside + turned) - sine * (ahead - (car[YAW] if is_left else -car[YAW]) * WHEEL_SIDE_M)
        else:
            speed = aside - turned
        material = left if is_left else right
        slides = is_locked or car[SLIDES + wheel] > 0.0
        held = slide * tables[SURFACE_SLIDE, material] if slides else grip * tables[SURFACE_GRIP, material]
        asked = c[STIFFNESS] * abs(speed)
        slides = asked > held
        force = held + c[EXCESS_GRIP] * (asked - held) if slides else asked
        force = -force if speed > 0.0 else force
        if is_front:
            car[SLIDES + wheel] = 1.0 if slides else 0.0
            back += force * sine
            force *= cosine
        else:
            is_lost = is_lost or slides
        pull += force
    for wheel in range(4):
        if wheel >= 2 or is_lost:
            car[SLIDES + wheel] = 1.0 if is_lost else 0.0
    car[PULL] = pull
    back = max(back if ahead > 0.0 else -back, 0.0)  # the tyres do not drive the yaw here, so they must not push
    return back + (0.0 if is_lost else c[SCRUB] * abs(pull))


@inlined_kernel
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
    """Moves one car by one tick; `ground` and `motion` are scratch memory."""
    car[STEER] += min(max(control[0] - car[STEER], -c[STEER_STEP]), c[STEER_STEP])
    before_m = car[ALONG]
    speed = math.sqrt(car[VX] * car[VX] + car[VY] * car[VY] + car[VZ] * car[VZ])
    num_steps = int(speed * c[TICK_S] / c[STEP_M]) + 1
    step_s = c[TICK_S] / num_steps
    for _ in range(num_steps):
        for k in range(3):  # as in recordings: explicit Euler, with the velocity before the step's forces
            car[X + k] += car[VX + k] * step_s
        if car[HEIGHT] < c[REST_M] and has_ground(car, ground):
            roll_on_road(car, control[1], control[2], step_s, c, tables, ground, motion)
        else:
            fly(car, control[2], step_s, c)
        find_ground(car, road, c, ground)
        collide_walls(car, c, ground)
        if has_ground(car, ground):
            apply_bump_stops(car, step_s, c, ground)
    car[TIME_MS] += c[TICK_MS]
    beyond_m = abs(car[LATERAL]) - ground[G_HALF_WIDTH]
    upright = car[UX] * ground[0] + car[UY] * ground[1] + car[UZ] * ground[2]
    if is_beyond_track(beyond_m, car[HEIGHT], upright, c[OFF_ROAD_M], c[FALL_M], c[REST_M], c[CRASH_COSINE]):
        car[OFF_TRACK] = 1.0
    else:
        pass_gates(car, before_m, gate_m, c)


@inlined_kernel
def pass_gates(car: Array, before_m: float, gate_m: Array, c: Array) -> None:
    """Records the interpolated time of every gate passed in this tick; the last gate finishes the race."""
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


@inlined_kernel
def has_ended(car: Array) -> bool:
    """True if a car has finished or left the track."""
    return car[FINISHED] > 0.0 or car[OFF_TRACK] > 0.0


# The `CAR` row of the observation.
WEIGHT_SHIFT = 0.12
"""Share of an acceleration that shifts load from one axle or side to the other."""
MIN_DAMPER_M, MAX_DAMPER_M = 0.005, 0.15
STARTING = 2.0
"""State of the gearbox before the car first moves."""


@inlined_kernel
def describe_car(car: Array, road: Array, c: Array, row: NDArray[np.float32]) -> None:
    """Writes a full `CAR` row."""
    fx, fy, fz, ux, uy, uz = car[FX], car[FY], car[FZ], car[UX], car[UY], car[UZ]
    lx, ly, lz = uy * fz - uz * fy, uz * fx - ux * fz, ux * fy - uy * fx
    for k in range(3):
        row[R_POSITION + k] = car[X + k] - c[CENTRE_UP] * car[UX + k] - c[CENTRE_AHEAD] * car[FX + k]
        row[R_VELOCITY + k] = car[VX + k]
    row[R_ROTATION], row[R_ROTATION + 1], row[R_ROTATION + 2] = lx, ux, fx
    row[R_ROTATION + 3], row[R_ROTATION + 4], row[R_ROTATION + 5] = ly, uy, fy
    row[R_ROTATION + 6], row[R_ROTATION + 7], row[R_ROTATION + 8] = lz, uz, fz
    row[R_SPIN] = car[YAW] * ux + car[PITCH] * lx + car[ROLL] * fx
    row[R_SPIN + 1] = car[YAW] * uy + car[PITCH] * ly + car[ROLL] * fy
    row[R_SPIN + 2] = car[YAW] * uz + car[PITCH] * lz + car[ROLL] * fz
    describe_wheels(car, road, c, row)
    describe_engine(car, c, row)


@inlined_kernel
def describe_wheels(car: Array, road: Array, c: Array, row: NDArray[np.float32]) -> None:
    """Writes the state of each wheel: front left, front right, rear right, rear left.

    Squat and lean distribute the load over the wheels. As in the game, a wheel in the air has material 0 and keeps the
    sliding flag with which it left the road.
    """
    zone = road[int(car[ZONE])]
    for w in range(4):
        front, left = 1.0 if w < 2 else -1.0, 1.0 if w in (0, 3) else -1.0
        lateral = car[LATERAL] + left * WHEEL_SIDE_M
        load = car[LOAD] - WEIGHT_SHIFT * (front * car[PUSH] + left * car[PULL])
        touches = car[CONTACT] > 0.0 and load > 0.0
        row[R_CONTACT + w] = 1.0 if touches else 0.0
        row[R_SLIDING + w] = car[SLIDES + w]
        row[R_DAMPER + w] = min(max(load / c[SPRING], MIN_DAMPER_M), MAX_DAMPER_M) if touches else MIN_DAMPER_M
        material = GRASS if abs(lateral) > zone[HALF_WIDTH] else zone[MATERIAL]
        row[R_MATERIAL + w] = material if touches else 0.0


@inlined_kernel
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
