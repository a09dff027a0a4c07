"""What is under a car, and how it moves along it."""

from __future__ import annotations

import math

from rulka.simulator.car.columns import (
    AHEAD,
    ALONG,
    ASIDE,
    AWAY,
    CENTRE,
    FORWARD,
    FX,
    FY,
    FZ,
    G_HALF_WIDTH,
    G_LEFT,
    G_MATERIAL,
    G_NORMAL,
    HALF_WIDTH,
    HEIGHT,
    LATERAL,
    LEFT,
    LOAD,
    MATERIAL,
    MAX_M,
    NORMAL,
    REST_M,
    SIDE,
    SPACING_M,
    TANGENT,
    TICKS_PER_S,
    VX,
    VY,
    VZ,
    ZONE,
    X,
    Y,
    Z,
)
from rulka.simulator.compiling import Array, inlined_kernel

SEARCH_ZONES = 64
"""Zones walked at most in one tick."""
GRASS = 2
"""Material beyond the edges of the road."""
WHEEL_SIDE_M = 0.8
"""How far the wheels are from the middle of the car."""


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
    ground[G_HALF_WIDTH], ground[G_MATERIAL] = zone[HALF_WIDTH], zone[MATERIAL]


@inlined_kernel
def past_plane(car: Array, zone: Array) -> float:
    """Returns how far the car is past the plane of a zone, metres."""
    return (
        (car[X] - zone[CENTRE]) * zone[TANGENT]
        + (car[Y] - zone[CENTRE + 1]) * zone[TANGENT + 1]
        + (car[Z] - zone[CENTRE + 2]) * zone[TANGENT + 2]
    )


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
