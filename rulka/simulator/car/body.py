"""How a car turns in space: with the road under it, or on its own in the air."""

from __future__ import annotations

import math

from rulka.simulator.car.columns import (
    AIR_SPIN_KEPT,
    ALIGN_FOLLOW,
    CONTACT,
    DRAG,
    FORWARD,
    FRONT_USE,
    FX,
    FY,
    FZ,
    GRAVITY,
    IS_SLIDING,
    LOAD,
    PITCH,
    PULL,
    PUSH,
    REAR_USE,
    ROLL,
    SHIFT_S,
    SIDE,
    TICK_S,
    TICKS_PER_S,
    TURBO,
    UX,
    UY,
    UZ,
    VX,
    VY,
    VZ,
    YAW,
)
from rulka.simulator.compiling import Array, inlined_kernel

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
