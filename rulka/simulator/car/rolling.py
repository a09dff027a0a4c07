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
    COAST_DELAY_S,
    COAST_S,
    CONTACT,
    DAMPING,
    DRAG,
    ENGINE_BRAKE,
    FORWARD,
    FRICTION,
    FRONT_USE,
    G_NORMAL,
    GEAR,
    GEAR_DOWN,
    GEAR_PUSH,
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
    ROLLING,
    SCRUB,
    SHIFT_S,
    SHIFT_TIME_S,
    SIDE,
    SLIDE_GRIP,
    SLIP_PER_S,
    SPRING,
    STEER,
    SURFACE_GRIP,
    SURFACE_PUSH,
    SURFACE_TURBO,
    TICK_S,
    TICKS_PER_S,
    TURBO,
    TURBO_PUSH,
    TURBO_STEP,
    TURN_RADIUS,
    VX,
    YAW,
    YAW_FOLLOW,
)
from rulka.simulator.car.ground import WHEEL_SIDE_M, find_motion, wheel_material
from rulka.simulator.compiling import Array, inlined_kernel

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
    surface = 0.5 * (tables[SURFACE_GRIP, left] + tables[SURFACE_GRIP, right]) * car[FRICTION]
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


@inlined_kernel
def push_forward(car: Array, push: float, resist: float, c: Array, motion: Array) -> None:
    """Changes the forward speed; what resists can stop the car but not turn it back."""
    ahead = motion[AHEAD]
    moved = ahead + (push - c[GRAVITY] * motion[FORWARD + 1]) * c[TICK_S]
    slowed = (resist + c[ROLLING] + c[DRAG] * ahead * ahead) * c[TICK_S]
    motion[AHEAD] = max(moved - slowed, 0.0) if moved > 0.0 else min(moved + slowed, 0.0)
    car[PUSH] = (motion[AHEAD] - ahead) * c[TICKS_PER_S] + c[GRAVITY] * motion[FORWARD + 1]


@inlined_kernel
def at_speed(curve: Array, speed: float) -> float:
    """Returns the value of a curve at a speed, m/s; the sign of the speed does not matter."""
    speed = min(abs(speed), curve.shape[0] - 1.001)
    index = int(speed)
    return curve[index] + (speed - index) * (curve[index + 1] - curve[index])


@inlined_kernel
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


@inlined_kernel
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
