"""Replays whole recorded races in the simulator: recorded inputs, with bounded corrections towards the recorded path.

The corrections come from model predictive control with random shooting. Ten times a second, the controller simulates
plans over a horizon of 1.5 s, each the recorded inputs from the car's position on plus corrections, and takes the one
closest to the recorded path. Steering corrections are at most `MOST_STEER`. The amount of correction that a race needs
measures the simulator's error over minutes; open-loop errors measure it over seconds.
Dimensions: P plans, H ticks of a plan.
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
from rulka.simulator.params import PhysicsParams
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

MOST_STEER = 0.5
"""Largest correction of the steering: half of full lock."""
PEDALS = np.array([(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)], np.float32)
"""Gas and brake that may replace the recorded ones."""
NUM_PLANS = 96
FINER = (1.0, 0.3)
"""Scale of the corrections in each round of planning; every round samples around the best plan so far."""
DECISION = 10
"""Ticks between replans."""
LOOKS = (10, 20, 35, 50, 75, 100, 150)
"""Ticks at which the simulated and the recorded car are compared; the last is the planning horizon."""
PART = np.digitize(np.arange(LOOKS[-1]), (20, 60))
"""[H] part of the plan that each tick belongs to; corrections are constant within a part."""
SPREADS = (0.05, 0.15, 0.4)
"""Standard deviations of the steering corrections; each plan draws one."""
EFFORT = 0.05
"""Cost of correcting by full lock throughout, in m2 of squared distance; correcting the pedals costs half of it."""
CATCH_UP = 0.05
"""Largest share by which a late car follows the recorded one at a higher speed."""
LOST = 1000.0
"""Cost of a plan that leaves the track."""
NOTICED = 0.02
"""Corrections smaller than this do not count."""
MOST_TIME = 1.2
"""Time limit of a race, relative to the recorded time."""


@dataclass(frozen=True)
class Followed:
    """Result of a recorded race in the simulator.

    Attributes:
        recorded_ms: time of the recorded race.
        time_ms: time of the simulated race; None if it did not finish.
        along_m: distance reached along the track.
        length_m: length of the track.
        steered: share of ticks with a steering correction.
        steer: mean size of these corrections, full lock is 1.
        pedals: share of ticks with a gas or brake correction.
    """

    recorded_ms: int
    time_ms: int | None
    along_m: float
    length_m: float
    steered: float
    steer: float
    pedals: float


def follow(track: Track, race: Race, physics: PhysicsParams) -> Followed:
    """Drives a recorded race in the simulator.

    Args:
        track: track made from recordings of the race's map.
        race: a finished race with inputs.
        physics: physics of the simulated car.
    """
    num_ticks, last = race.num_ticks, race.num_ticks - 1
    rows = interpolate_rows(race.state_time_ms, race.state, np.arange(num_ticks) * TICK_MS).astype(np.float64)
    position, velocity = centres_of_mass(rows), rows[:, CAR["velocity"]]
    _, along_m, lateral_m = progress_along(track, position)
    along_m = np.maximum.accumulate(along_m)
    after = np.arange(1, 2 * LOOKS[-1] + 1)[:, None]  # past the finish the recorded car goes straight on
    position = np.concatenate([position, position[last] + velocity[last] * after * TICK_MS / 1000.0])
    controls = np.concatenate([race.controls, np.repeat(race.controls[last:], len(after), axis=0)])

    road, c, tables = road_array(track), constant_array(physics, TICK_MS / 1000.0), table_array(physics)
    gate_m = np.ascontiguousarray(track.gate_m, np.float64)
    zero, scratch, rng = np.zeros(1), np.zeros((2, columns.NUM_SCRATCH)), np.random.default_rng(0)
    state = place_on_road(road, c, gate_m, zero, lateral_m[:1], zero, zero)
    steer, pedals = np.zeros(PART[-1] + 1), np.zeros(PART[-1] + 1, np.int64)
    car, corrections = state[0], []
    for tick in range(0, int(MOST_TIME * num_ticks), DECISION):
        here = min(max(int(np.searchsorted(along_m, car[columns.ALONG], side="right")) - 1, 0), last)
        speed = max(float(np.linalg.norm(velocity[here])), 1.0)
        exact = here + min(max((car[columns.ALONG] - along_m[here]) / (speed * TICK_MS / 1000.0), 0.0), 1.0)
        recorded = controls[here : here + len(PART)]
        at = exact + np.array(LOOKS) + np.minimum(max(tick - here, 0), CATCH_UP * np.array(LOOKS))
        share = (at - at.astype(np.int64))[:, None]
        targets = (1.0 - share) * position[at.astype(np.int64)] + share * position[at.astype(np.int64) + 1]
        for finer in FINER:
            steers, pedal_sets = _draw_plans(rng, steer, pedals, finer)
            inputs = _inputs_of(recorded, steers, pedal_sets)
            cars, cost, done = np.repeat(state, NUM_PLANS, axis=0), np.zeros(NUM_PLANS), 0
            for look, target in zip(LOOKS, targets, strict=True):
                kernels.drive_inputs(cars, inputs[done:look], road, gate_m, c, tables, scratch)
                done = look
                away = ((cars[:, columns.X : columns.X + 3] - target) ** 2).sum(axis=1)
                cost += np.where(cars[:, columns.FINISHED] > 0.0, 0.0, away) / len(LOOKS)
            cost += LOST * (cars[:, columns.OFF_TRACK] > 0.0)
            cost += EFFORT * (np.abs(steers).mean(axis=1) + 0.5 * (pedal_sets > 0).mean(axis=1))
            best = int(cost.argmin())
            steer, pedals = steers[best], pedal_sets[best]
        chosen = _inputs_of(recorded, steer[None], pedals[None])[:DECISION]
        corrections.append(np.abs(chosen[:, 0] - recorded[:DECISION]))
        kernels.drive_inputs(state, chosen, road, gate_m, c, tables, scratch)
        if car[columns.FINISHED] or car[columns.OFF_TRACK]:
            break
    corrected = np.concatenate(corrections)
    is_steered = corrected[:, 0] > NOTICED
    return Followed(
        recorded_ms=int(race.race_time_ms or 0),
        time_ms=int(car[-1]) if car[columns.FINISHED] else None,
        along_m=float(car[columns.ALONG]),
        length_m=track.length_m,
        steered=float(is_steered.mean()),
        steer=float(corrected[is_steered, 0].mean()) if is_steered.any() else 0.0,
        pedals=float((corrected[:, 1:] > NOTICED).any(axis=1).mean()),
    )


def _draw_plans(
    rng: np.random.Generator, steer: NDArray[np.float64], pedals: NDArray[np.int64], finer: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Samples plans: [P, parts] steering corrections and [P, parts] pedals, 0 for the recorded ones.

    The first plan has no correction, the second is the best so far. Half of the others, in finer rounds all, are near
    the best.
    """
    size = (NUM_PLANS, len(steer))
    number = np.arange(NUM_PLANS)[:, None]
    is_near = (number % 2 == 1) | ((finer < 1.0) & (number > 0))
    spread = finer * rng.choice(SPREADS, (NUM_PLANS, 1)) * (number > 1)
    steers = np.clip(rng.standard_normal(size) * spread + is_near * steer, -MOST_STEER, MOST_STEER)
    drawn = np.maximum(rng.integers(-2, len(PEDALS) + 1, size), 0)  # 0, the recorded pedals, half of the time
    pedal_sets = np.where(is_near & (rng.random(size) < 0.7), pedals, drawn)
    pedal_sets[0], pedal_sets[1] = 0, pedals
    return steers, pedal_sets


def _inputs_of(
    recorded: NDArray[np.float32], steers: NDArray[np.float64], pedal_sets: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Returns [H, P, 3] the inputs of plans with corrections from `_draw_plans`."""
    inputs = np.repeat(recorded[:, None], len(steers), axis=1)
    inputs[:, :, 0] = np.clip(inputs[:, :, 0] + steers.T[PART], -1.0, 1.0)
    chosen = pedal_sets.T[PART]
    inputs[:, :, 1:] = np.where(chosen[:, :, None] > 0, PEDALS[np.maximum(chosen - 1, 0)], inputs[:, :, 1:])
    return inputs
