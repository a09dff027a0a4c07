"""A car on its wheels: springs, engine, brake, tyres and steering."""

from __future__ import annotations

import math

from rulka.simulator.car.body import turn_body
from rulka.simulator.car.columns import (
    AHEAD,
    ASIDE,
    AWAY,
    BRAKE,
    BRAKE_WITH_GAS,
    CONTACT,
    DAMPING,
    ENGINE_BRAKE,
    ENGINE_PUSH,
    FORWARD,
    FRICTION,
    FRONT_USE,
    G_NORMAL,
    GEAR,
    GEAR_DOWN,
    GEAR_UP,
    GRAVITY,
    GRIP,
    GRIP_PER_SPEED,
    HEIGHT,
    IS_SLIDING,
    LOAD,
    MAX_SLIP,
    NUM_GEARS,
    OVERTURN,
    PER_GRAVITY,
    PULL,
    PUSH,
    REAR_USE,
    REST_M,
    REVERSE_PUSH,
    REVERSE_TOP,
    ROLLING,
    SCRUB,
    SHIFT_S,
    SHIFT_TIME_S,
    SIDE,
    SLIP_GRIP,
    SLIP_PER_S,
    SPRING,
    STEER,
    SURFACE_GRIP,
    SURFACE_PUSH,
    SURFACE_TURBO,
    TICK_S,
    TICKS_PER_S,
    TURBO,
    TURBO_FACTOR,
    TURBO_LASTS_S,
    TURN_RADIUS,
    VX,
    YAW,
    YAW_FOLLOW,
)
from rulka.simulator.car.ground import WHEEL_SIDE_M, find_motion, wheel_material
from rulka.simulator.compiling import Array, inlined_kernel

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
