"""What others read of a car: the `CAR` row of the observation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.simulator.car.columns import (
    CONTACT,
    FRONT_USE,
    FX,
    FY,
    FZ,
    GEAR,
    GEAR_RPM,
    HALF_WIDTH,
    IDLE_RPM,
    LATERAL,
    LOAD,
    MATERIAL,
    MAX_RPM,
    PITCH,
    PULL,
    PUSH,
    R_CONTACT,
    R_COUNTER,
    R_DAMPER,
    R_FREE_WHEELING,
    R_GEAR,
    R_GEARBOX,
    R_MATERIAL,
    R_POSITION,
    R_ROTATION,
    R_RPM,
    R_SLIDING,
    R_SPIN,
    R_VELOCITY,
    REAR_USE,
    REFERENCE_M,
    ROLL,
    SHIFT_S,
    SHIFTING,
    SPRING,
    TIME_MS,
    UX,
    UY,
    UZ,
    VX,
    VY,
    VZ,
    YAW,
    ZONE,
    X,
)
from rulka.simulator.car.ground import GRASS, WHEEL_SIDE_M
from rulka.simulator.compiling import Array, inlined_kernel

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
