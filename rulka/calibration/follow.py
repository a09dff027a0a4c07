"""Whole recorded races in the simulator: the recorded inputs, corrected within bounds towards the recorded path.

At every tick the car gets the inputs that were recorded at its place on the track. Where it is beside the recorded
path, points elsewhere or has another speed, steering and pedals are corrected, by no more than `MOST_STEER` and a
pedal. How much correction a race needs says how far the simulator is from the game over minutes, where an error in the
open loop says how far it is over seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.actions import TICK_MS
from rulka.datasets.races import Race
from rulka.observation import CAR, centres_of_mass
from rulka.recordings.car_rows import interpolate_rows
from rulka.simulator import car as columns
from rulka.simulator import physics as kernels
from rulka.simulator.constants import constant_array, place_on_road, road_array, table_array
from rulka.simulator.driver import SPEEDS, full_lock_radius
from rulka.simulator.params import PhysicsParams
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

MOST_STEER = 0.5
"""Steering is corrected by at most half of full lock."""
RETURN_PER_S, TURN_PER_S = 2.0, 1.5
"""How fast a car beside its path is steered back to it, and turned as the recorded one was."""
EASE_MPS, FULL_MPS = 0.5, 3.0
"""Pedals are corrected from the first difference of speed on, and wholly where it is larger by the second."""
NOTICED = 0.02
"""Smaller corrections are not counted."""
MOST_TIME = 1.2
"""A race is given up after so many times the recorded time."""


@dataclass(frozen=True)
class Followed:
    """How a recorded race went in the simulator.

    Attributes:
        recorded_ms: time of the recorded race.
        time_ms: of the simulated one; None where it did not finish.
        along_m: how far it came.
        length_m: of the track.
        steered: share of ticks in which the steering was corrected.
        steer: mean size of these corrections, full lock is 1.
        pedals: share of ticks in which gas or brake were corrected.
    """

    recorded_ms: int
    time_ms: int | None
    along_m: float
    length_m: float
    steered: float
    steer: float
    pedals: float


def follow(track: Track, race: Race, physics: PhysicsParams) -> Followed:
    """Drives a recorded race.

    Args:
        track: made from recordings of its map.
        race: finished, with inputs.
        physics: of the simulated car.
    """
    recorded_ms = int(race.race_time_ms or 0)
    ticks = np.arange(race.num_ticks)
    rows = interpolate_rows(race.state_time_ms, race.state, ticks * TICK_MS).astype(np.float64)
    _, along_m, lateral_m = progress_along(track, centres_of_mass(rows))
    along_m = np.maximum.accumulate(along_m)
    forward = rows[:, CAR["rotation"]].reshape(-1, 3, 3)[:, :, 2]
    velocity = rows[:, CAR["velocity"]]
    radii = full_lock_radius(physics)

    road, c, tables = road_array(track), constant_array(physics, TICK_MS / 1000.0), table_array(physics)
    gate_m = np.ascontiguousarray(track.gate_m, np.float64)
    zero = np.zeros(1)
    state = place_on_road(road, c, gate_m, zero, lateral_m[:1], zero, zero)
    scratch, inputs, car = np.zeros((2, columns.NUM_SCRATCH)), np.zeros((1, 1, 3), np.float32), state[0]
    corrections = []
    for _ in range(int(MOST_TIME * race.num_ticks)):
        here = min(int(np.searchsorted(along_m, car[columns.ALONG], side="right")), race.num_ticks) - 1
        recorded = race.controls[here]
        left = road[int(car[columns.ZONE]), columns.LEFT : columns.LEFT + 3]
        steer, pedals = _corrected(car, recorded, (lateral_m[here], forward[here], velocity[here]), left, radii)
        corrections.append((abs(steer - recorded[0]), np.abs(pedals - recorded[1:]).max()))
        inputs[0, 0] = steer, *pedals
        kernels.drive_inputs(state, inputs, road, gate_m, c, tables, scratch)
        if car[columns.FINISHED] or car[columns.OFF_TRACK]:
            break
    steered, pressed = np.array(corrections).T
    is_steered = steered > NOTICED
    return Followed(
        recorded_ms=recorded_ms,
        time_ms=int(car[-1]) if car[columns.FINISHED] else None,
        along_m=float(car[columns.ALONG]),
        length_m=track.length_m,
        steered=float(is_steered.mean()),
        steer=float(steered[is_steered].mean()) if is_steered.any() else 0.0,
        pedals=float((pressed > NOTICED).mean()),
    )


def _corrected(
    car: NDArray[np.float64],
    recorded: NDArray[np.float32],
    place: tuple[float, NDArray[np.float64], NDArray[np.float64]],
    left: NDArray[np.float64],
    radii: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """Returns steering and pedals [gas, brake] of a car.

    Args:
        car: its state.
        recorded: inputs at its place on the track.
        place: metres left of the line, forward axis and velocity of the recorded car there.
        left: axis of the road there.
        radii: of `full_lock_radius`.
    """
    lateral_m, forward, velocity = place
    own, up = car[columns.VX : columns.VX + 3], car[columns.UX : columns.UX + 3]
    speed = max(float(np.linalg.norm(own)), 5.0)
    beside_m = lateral_m - car[columns.LATERAL]
    drift_mps = float((velocity - own) @ left)
    turned = float(np.cross(car[columns.FX : columns.FX + 3], forward) @ up)  # the recorded car pointed further left
    yaw = (RETURN_PER_S**2 * beside_m + 2.0 * RETURN_PER_S * drift_mps) / speed + TURN_PER_S * turned
    able = speed / np.interp(speed, SPEEDS, radii)
    steer = float(np.clip(recorded[0] - np.clip(yaw / able, -MOST_STEER, MOST_STEER), -1.0, 1.0))
    faster = float(np.linalg.norm(own) - np.linalg.norm(velocity))
    share = min(max(abs(faster) - EASE_MPS, 0.0) / FULL_MPS, 1.0)
    gas, brake = recorded[1:].astype(np.float64)
    gas += share * ((0.0 if faster > 0.0 else 1.0) - gas)
    brake *= 1.0 if faster > 0.0 else 1.0 - share
    return steer, np.array([gas, brake])
