"""What a car does in a tick of 10 ms: the ground under it, its wheels, its body, gates, and what others read of it.

Right-handed axes: left x up = forward. Angles and rates are positive about the axis: yaw to the left, pitch nose
down, roll to the right. Dimensions: N cars, Z zones, G gates, S state columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.compiling import Array, inlined_kernel
from rulka.simulator.race_end import is_beyond_track
from rulka.tracks.track import DROP, WALL

# Columns of a car's state, which is all that its future depends on. World axes, metres, m/s, rad/s. The position is
# that of the ground under a car at rest; the game's, in the `CAR` row, is higher up in the body.
X, Y, Z, VX, VY, VZ, FX, FY, FZ, UX, UY, UZ = range(12)  # position, velocity, forward axis, up axis
YAW, PITCH, ROLL, STEER = range(12, 16)  # rates of turning about the car's axes; wheels in [-1, 1], positive right
GEAR, SHIFT_S, TURBO, FRICTION = range(16, 20)  # seconds left of a gear change and of turbo; share of the tyres' grip
CONTACT, LOAD, PUSH, PULL = range(20, 24)  # flag; accelerations by the road along its normal, forward and left
FRONT_USE, REAR_USE, IS_SLIDING = range(24, 27)  # share of the grip used, above 1 is sliding; the rear's memory of it
ZONE, ALONG, LATERAL, HEIGHT = range(27, 31)  # zone last passed; along, left of and above the road at rest
TIME_MS, SHIFTING, GATE, FINISHED, OFF_TRACK = range(31, 36)  # decisions spent shifting; gates passed; flags
GATE_MS = 36  # first of the gate times, which end a row
NUM_STATE = GATE_MS

# Columns of a zone of the road.
CENTRE, TANGENT, LEFT, NORMAL, HALF_WIDTH, MATERIAL, EDGE, NUM_ROAD = 0, 3, 6, 9, 12, 13, 14, 15

# Places in the array of constants. A step is a rate times a tick, a follow the share of a gap closed in a tick.
TICK_S, TICKS_PER_S, TICK_MS, SPACING_M, GRAVITY, PER_GRAVITY, REFERENCE_M = range(7)
GRIP, GRIP_PER_SPEED, SLIP_GRIP, OVERTURN, MAX_SLIP, SLIP_PER_S, SCRUB = range(7, 14)
ENGINE_BRAKE, REVERSE_PUSH, ROLLING, DRAG, BRAKE, BRAKE_WITH_GAS, SHIFT_TIME_S, IDLE_RPM, MAX_RPM = range(14, 23)
STEER_STEP, YAW_FOLLOW, ALIGN_FOLLOW, TURBO_FACTOR, AIR_SPIN_KEPT = range(23, 28)
SPRING, DAMPING, REST_M, MAX_M, OFF_ROAD_M, FALL_M, CRASH_COSINE = range(28, 35)
REVERSE_TOP, WALL_BOUNCE, WALL_RUB, TURBO_LASTS_S = range(35, 39)
GEAR_UP, GEAR_DOWN, GEAR_RPM, NUM_CONSTANTS = 39, 43, 47, 52
NUM_GEARS = 5

# Rows of the tables: two curves by speed in whole m/s, then properties of surfaces by material id.
TURN_RADIUS, ENGINE_PUSH = 0, 1
SURFACE_GRIP, SURFACE_PUSH, SURFACE_TURBO, NUM_TABLES = 2, 3, 4, 5

# What is under a car, found afresh after every move.
G_NORMAL, G_LEFT, G_HALF_WIDTH, G_MATERIAL, G_EDGE = 0, 3, 6, 7, 8
# What a car does on the ground: its axes along the road, and its speeds along them.
FORWARD, SIDE, AHEAD, ASIDE, AWAY, NUM_SCRATCH = 0, 3, 6, 7, 8, 9  # both kinds fit into as many numbers

# Columns of a `CAR` row; a test holds them to `rulka.observation.CAR`.
R_POSITION, R_ROTATION, R_VELOCITY, R_SPIN, R_SLIDING, R_CONTACT, R_DAMPER, R_MATERIAL = 0, 3, 12, 15, 18, 22, 26, 30
R_GEARBOX, R_GEAR, R_RPM, R_COUNTER, R_FREE_WHEELING = 34, 35, 36, 37, 38

# What is under a car, and how it moves along it.
SEARCH_ZONES = 64
"""Zones walked at most in one tick."""
GRASS = 2
"""Material beyond the edges of the road."""
WHEEL_SIDE_M = 0.8
"""How far the wheels are from the middle of the car."""
CAR_SIDE_M = 1.0
"""Half the width of the car's body."""
WALL_HEIGHT_M = 1.0
"""A car higher than this above the road flies over its walls."""
UNDER_ROAD_M = 1.0
"""A car further below the road has fallen off it and does not come up through it."""
NOSE_ASIDE = 0.2
"""Share of the nose's pointing into a wall that a tick of contact takes away."""


@inlined_kernel
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
    ground[G_HALF_WIDTH], ground[G_MATERIAL], ground[G_EDGE] = zone[HALF_WIDTH], zone[MATERIAL], zone[EDGE]


@inlined_kernel
def past_plane(car: Array, zone: Array) -> float:
    """Returns how far the car is past the plane of a zone, metres."""
    return (
        (car[X] - zone[CENTRE]) * zone[TANGENT]
        + (car[Y] - zone[CENTRE + 1]) * zone[TANGENT + 1]
        + (car[Z] - zone[CENTRE + 2]) * zone[TANGENT + 2]
    )


@inlined_kernel
def has_ground(car: Array, ground: Array) -> bool:
    """Whether there is anything under the car to stand on: not beyond an edge that drops, nor under the road."""
    is_beyond = abs(car[LATERAL]) > ground[G_HALF_WIDTH]
    return car[HEIGHT] > -UNDER_ROAD_M and not (is_beyond and ground[G_EDGE] == DROP)


@inlined_kernel
def bounce(car: Array, leftward: float, c: Array, ground: Array) -> None:
    """Turns the speed toward a wall around, weakened, and takes away from the rest what the wall rubs off."""
    rest = 0.0
    for k in range(3):
        car[VX + k] -= leftward * ground[G_LEFT + k]
        rest += car[VX + k] * car[VX + k]
    rubbed = c[WALL_RUB] * (1.0 + c[WALL_BOUNCE]) * abs(leftward)
    keep = max(1.0 - rubbed / max(math.sqrt(rest), 1e-9), 0.0)
    for k in range(3):
        car[VX + k] = car[VX + k] * keep - c[WALL_BOUNCE] * leftward * ground[G_LEFT + k]


@inlined_kernel
def meet_walls(car: Array, c: Array, ground: Array) -> None:
    """Keeps a car inside the walls of the road; they give back a part of its speed toward them and rub off some along.

    The nose is pushed aside with the rest of the car, as far as it points into the wall.
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


@inlined_kernel
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


# How a car turns in space: with the road under it, or on its own in the air.
SPIN_SHARE = 0.15
"""Share of the way that the rates of pitch and roll follow the body in a tick: a bump in the last moment on the ground
does not make a car tumble through the air."""


@inlined_kernel
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
    pitch = tilt_x * motion[SIDE] + tilt_y * motion[SIDE + 1] + tilt_z * motion[SIDE + 2]
    roll = tilt_x * motion[FORWARD] + tilt_y * motion[FORWARD + 1] + tilt_z * motion[FORWARD + 2]
    car[PITCH] += SPIN_SHARE * (pitch - car[PITCH])
    car[ROLL] += SPIN_SHARE * (roll - car[ROLL])


@inlined_kernel
def fly(car: Array, c: Array) -> None:
    """Lets a car without contact fall and turn on as it left the road."""
    car[CONTACT], car[LOAD], car[PUSH], car[PULL] = 0.0, 0.0, 0.0, 0.0
    car[FRONT_USE], car[REAR_USE], car[IS_SLIDING] = 0.0, 0.0, 0.0
    car[SHIFT_S] = max(car[SHIFT_S] - c[TICK_S], 0.0)
    car[TURBO] = max(car[TURBO] - c[TICK_S], 0.0)
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


@inlined_kernel
def set_axes(car: Array, fx: float, fy: float, fz: float, ux: float, uy: float, uz: float) -> None:
    """Makes up a unit vector, forward one across it, and stores both."""
    size = 1.0 / math.sqrt(ux * ux + uy * uy + uz * uz)
    ux, uy, uz = ux * size, uy * size, uz * size
    lean = fx * ux + fy * uy + fz * uz
    fx, fy, fz = fx - lean * ux, fy - lean * uy, fz - lean * uz
    size = 1.0 / math.sqrt(fx * fx + fy * fy + fz * fz)
    car[FX], car[FY], car[FZ] = fx * size, fy * size, fz * size
    car[UX], car[UY], car[UZ] = ux, uy, uz


# A car on its wheels: springs, engine, brake, tyres and steering.
STANDING_MPS = 0.1
MAX_HOLDING_SLIP = 0.6
"""Angle of slip in radians beyond which the tyres hold no more."""
MAX_SIDE_SHARE = 0.95
"""Braking leaves at least the square root of 1 - 0.95 squared of the grip for cornering."""


@inlined_kernel
def roll_on_road(car: Array, gas: float, brake: float, c: Array, tables: Array, ground: Array, motion: Array) -> None:
    """Applies springs, engine, brake, tyres and steering for one tick to a car that touches the road."""
    find_motion(car, ground, motion)
    car[CONTACT] = 1.0
    car[LOAD] = max(c[SPRING] * (c[REST_M] - car[HEIGHT]) - c[DAMPING] * motion[AWAY], 0.0)
    motion[AWAY] += (car[LOAD] - c[GRAVITY] * ground[1]) * c[TICK_S]

    left, right = wheel_material(car, WHEEL_SIDE_M, ground), wheel_material(car, -WHEEL_SIDE_M, ground)
    surface = 0.5 * (tables[SURFACE_GRIP, left] + tables[SURFACE_GRIP, right])
    grip = (c[GRIP] + c[GRIP_PER_SPEED] * abs(motion[AHEAD])) * surface * car[FRICTION]
    grip = grip * min(car[LOAD] * c[PER_GRAVITY], 1.0) + 1e-6
    push, resist = engine(car, motion[AHEAD], gas, brake, c, tables)
    push *= 0.5 * (tables[SURFACE_PUSH, left] + tables[SURFACE_PUSH, right])
    on_pad = max(tables[SURFACE_TURBO, left], tables[SURFACE_TURBO, right])
    car[TURBO] = max(car[TURBO] - c[TICK_S], on_pad * c[TURBO_LASTS_S])

    is_locked = max(abs(push), resist) > grip
    push, resist = min(max(push, -grip), grip), min(resist, grip)
    spare = min(max(abs(push), resist) / grip, MAX_SIDE_SHARE)
    side_grip = grip * math.sqrt(1.0 - spare * spare)
    aside = motion[ASIDE] - c[GRAVITY] * motion[SIDE + 1] * c[TICK_S]
    motion[ASIDE] = tyres_hold(car, motion[AHEAD], aside, side_grip, is_locked, c)
    if car[TURBO] > 0.0 and push > 0.0:
        push *= c[TURBO_FACTOR]
    # The engine brakes without using up the tyres: recorded cars corner as hard off the gas as on it.
    engine_brake = c[ENGINE_BRAKE] * abs(motion[AHEAD]) if gas <= 0.0 else 0.0
    push_forward(car, push, resist + engine_brake + c[SCRUB] * abs(car[PULL]), c, motion)
    for k in range(3):
        along = motion[AHEAD] * motion[FORWARD + k] + motion[ASIDE] * motion[SIDE + k]
        car[VX + k] = along + motion[AWAY] * ground[G_NORMAL + k]
    turn(car, side_grip, c, tables, motion)
    turn_body(car, c, ground, motion)


@inlined_kernel
def push_forward(car: Array, push: float, resist: float, c: Array, motion: Array) -> None:
    """Changes the forward speed; what resists can stop the car but not turn it back."""
    ahead = motion[AHEAD]
    moved = ahead + (push - c[GRAVITY] * motion[FORWARD + 1]) * c[TICK_S]
    slowed = (resist + c[ROLLING]) * c[TICK_S]
    motion[AHEAD] = max(moved - slowed, 0.0) if moved > 0.0 else min(moved + slowed, 0.0)
    car[PUSH] = (motion[AHEAD] - ahead) * c[TICKS_PER_S] + c[GRAVITY] * motion[FORWARD + 1]


@inlined_kernel
def at_speed(curve: Array, speed: float) -> float:
    """Returns the value of a curve at a speed, m/s; the sign of the speed does not matter."""
    speed = min(abs(speed), curve.shape[0] - 1.001)
    index = int(speed)
    return curve[index] + (speed - index) * (curve[index + 1] - curve[index])


@inlined_kernel
def engine(car: Array, ahead: float, gas: float, brake: float, c: Array, tables: Array) -> tuple[float, float]:
    """Changes gear and returns what the wheels push and how they brake, m/s2, on the best surface.

    A car that stands, or rolls back, reverses on the brake, and not faster than reverse gear goes.
    """
    gear = int(car[GEAR])
    if car[SHIFT_S] > 0.0:
        car[SHIFT_S] = max(car[SHIFT_S] - c[TICK_S], 0.0)
    elif gear < NUM_GEARS and ahead > c[GEAR_UP + gear - 1]:
        car[GEAR], car[SHIFT_S] = gear + 1, c[SHIFT_TIME_S]
    elif gear > 1 and ahead < c[GEAR_DOWN + gear - 2]:
        car[GEAR], car[SHIFT_S] = gear - 1, c[SHIFT_TIME_S]
    if brake > 0.0 and gas <= 0.0 and ahead < STANDING_MPS:
        excess = -ahead - c[REVERSE_TOP]
        if excess < 0.0:
            return -brake * c[REVERSE_PUSH], 0.0
        # Faster than reverse gear goes, down a slope or in a spin: the brake takes the excess away.
        return 0.0, brake * min(excess * c[TICKS_PER_S], c[BRAKE])
    push = gas * at_speed(tables[ENGINE_PUSH], ahead) if car[SHIFT_S] <= 0.0 or car[TURBO] > 0.0 else 0.0
    resist = brake * c[BRAKE] * (1.0 + gas * (c[BRAKE_WITH_GAS] - 1.0))
    return push, resist


@inlined_kernel
def tyres_hold(car: Array, ahead: float, aside: float, side_grip: float, is_locked: bool, c: Array) -> float:
    """Slows the sideways speed as far as the tyres can.

    Beyond their grip they slide, and hold the more the larger the angle of slip is: recorded cars that slide pull
    sideways with up to a third more than the most that one without a slide does.

    Returns:
        The sideways speed after this tick, m/s.
    """
    slip = min(abs(aside) / max(abs(ahead), 1.0), MAX_HOLDING_SLIP)
    holds = side_grip * (1.0 + c[SLIP_GRIP] * slip)
    wanted = -aside * c[SLIP_PER_S]
    use = abs(wanted) / side_grip
    car[IS_SLIDING] = 1.0 if use > 1.0 else 0.0
    car[REAR_USE] = max(use, 2.0) if is_locked else use
    car[PULL] = min(max(wanted, -holds), holds)
    return aside + car[PULL] * c[TICK_S]


@inlined_kernel
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
    """Moves one car by one tick; arguments as above, `ground` and `motion` are working memory."""
    car[STEER] += min(max(control[0] - car[STEER], -c[STEER_STEP]), c[STEER_STEP])
    if car[HEIGHT] < c[REST_M] and has_ground(car, ground):
        roll_on_road(car, control[1], control[2], c, tables, ground, motion)
    else:
        fly(car, c)
    for k in range(3):
        car[X + k] += car[VX + k] * c[TICK_S]
    before_m = car[ALONG]
    find_ground(car, road, c, ground)
    meet_walls(car, c, ground)
    if has_ground(car, ground):
        meet_stops(car, c, ground)
    car[TIME_MS] += c[TICK_MS]
    beyond_m = abs(car[LATERAL]) - ground[G_HALF_WIDTH]
    upright = car[UX] * ground[0] + car[UY] * ground[1] + car[UZ] * ground[2]
    if is_beyond_track(beyond_m, car[HEIGHT], upright, c[OFF_ROAD_M], c[FALL_M], c[REST_M], c[CRASH_COSINE]):
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


@inlined_kernel
def has_ended(car: Array) -> bool:
    """Whether a car has finished or left the track."""
    return car[FINISHED] > 0.0 or car[OFF_TRACK] > 0.0


# What others read of a car: the `CAR` row of the observation.
WEIGHT_SHIFT = 0.12
"""Share of an acceleration that shows as more load on one axle or side and less on the other."""
LIGHT_WHEEL_USE = 1.05
MIN_DAMPER_M, MAX_DAMPER_M = 0.005, 0.15
STARTING = 2.0
"""State of the gearbox before the car first moves."""


@inlined_kernel
def describe_car(car: Array, road: Array, c: Array, row: NDArray[np.float32]) -> None:
    """Writes a whole row."""
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


@inlined_kernel
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
