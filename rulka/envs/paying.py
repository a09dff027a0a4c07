"""Kernels that pay for the manner of driving: gained speed and the engineered rewards of `rulka.envs.rewards`.

They are compiled into the kernels of `rulka.envs.judging`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rulka.envs.rules import (
    FAR_M,
    KAMIKAZE,
    LINE_DISTANCE,
    MANNER_NEAR_M,
    NEO_MPS,
    NEO_SLIDE,
    NUM_SLIDE_POINTS,
    PER_GAINED_MPS,
    SLIDE_STEP_KMH,
    SLIDE_TABLE,
    SPEED_SLIDE,
)
from rulka.simulator.car.columns import R_CONTACT, R_POSITION, R_ROTATION, R_VELOCITY
from rulka.simulator.compiling import Array, inlined_kernel

NUM_WHEELS = 4


@inlined_kernel
def speed_along(row: NDArray[np.float32], axis: int) -> float:
    """Returns the velocity of a `CAR` row along an axis of the car: 0 is left, 1 up, 2 forward."""
    at = R_ROTATION + axis
    across = np.float64(row[at]) * np.float64(row[R_VELOCITY])
    up = np.float64(row[at + 3]) * np.float64(row[R_VELOCITY + 1])
    return across + up + np.float64(row[at + 6]) * np.float64(row[R_VELOCITY + 2])


@inlined_kernel
def distance_to(row: NDArray[np.float32], zone: NDArray[np.float32]) -> np.float32:
    """Returns how far a car is from the centre of a zone, metres."""
    x, y, z = row[R_POSITION] - zone[0], row[R_POSITION + 1] - zone[1], row[R_POSITION + 2] - zone[2]
    return np.sqrt(x * x + y * y + z * z)


@inlined_kernel
def slide_start(forward_mps: float, rules: Array) -> float:
    """Returns the table's value at a forward speed: straight between its points, constant before and after."""
    place = max(3.6 * forward_mps / rules[SLIDE_STEP_KMH], 0.0)
    below = min(int(place), NUM_SLIDE_POINTS - 2)
    share = min(place - below, 1.0)
    low, high = rules[SLIDE_TABLE + below], rules[SLIDE_TABLE + below + 1]
    return low + share * (high - low)


@inlined_kernel
def manner_reward(
    row: NDArray[np.float32],
    keys: NDArray[np.float32],
    zone: NDArray[np.float32],
    gained_mps: float,
    forward_mps: float,
    rules: Array,
) -> float:
    """Returns what a decision is worth for its manner.

    Args:
        row: the car after it.
        keys: [4] accelerate, brake, left, right of its last tick.
        zone: [3] centre of the car's zone.
        gained_mps: by how much the speed grew, of any direction; 0 where that does not count.
        forward_mps: speed forward.
        rules: of `rulka.envs.rules`.
    """
    sideways = abs(speed_along(row, 0))
    num_wheels = 0
    for w in range(NUM_WHEELS):
        num_wheels += 1 if row[R_CONTACT + w] > 0.5 else 0
    reward = rules[PER_GAINED_MPS] * gained_mps
    if num_wheels == NUM_WHEELS:
        start = slide_start(forward_mps, rules)
        amount = max(20.0 * sideways - start, 0.0) / start
        reward += rules[SPEED_SLIDE] * max(0.0, 1.0 - abs(amount - 1.0))
    reward += rules[NEO_SLIDE] if sideways >= rules[NEO_MPS] else 0.0
    is_full_gas = keys[0] > 0.5 and keys[1] <= 0.5
    reward += rules[KAMIKAZE] if is_full_gas or num_wheels <= 1 else 0.0
    return reward + rules[LINE_DISTANCE] * min(max(distance_to(row, zone), rules[MANNER_NEAR_M]), rules[FAR_M])
