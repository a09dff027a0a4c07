"""What is under a car, and how it moves along it."""

from __future__ import annotations

import math

from rulka.simulator.car.columns import (
    AHEAD,
    ALONG,
    ASIDE,
    AWAY,
    CENTRE,
    EDGE,
    FORWARD,
    FX,
    FY,
    FZ,
    G_EDGE,
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
    WALL_BOUNCE,
    WALL_RUB,
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
CAR_SIDE_M = 1.0
"""Half the width of the car's body."""
WALL, DROP = 1, 2
"""Kinds of edges, as in `rulka.tracks.track`; a test holds them together."""
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
