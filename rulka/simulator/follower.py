"""Follows a recorded race in the simulator, from any state of a car.

Model predictive control with random shooting: the controller simulates plans over a horizon of 1.5 s, each the recorded
inputs from the car's position on plus corrections, and takes the one closest to the recorded path. Steering
corrections are at most `MOST_STEER`.
Dimensions: T ticks of the race, P plans, H ticks of a plan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS
from rulka.contracts.observation import CAR, centres_of_mass
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


class Correction(NamedTuple):
    """Corrections of the recorded inputs, one per part of a plan.

    Attributes:
        steer: [parts] added to the steering.
        pedals: [parts] one plus a row of `PEDALS`; 0 keeps the recorded pedals.
    """

    steer: NDArray[np.float64]
    pedals: NDArray[np.int64]


NO_CORRECTION = Correction(np.zeros(PART[-1] + 1), np.zeros(PART[-1] + 1, np.int64))


class Follower:
    """Plans inputs that follow one recorded race.

    Args:
        track: track of the race's map.
        physics: physics of the simulated cars.
        cars: [T, 39] `CAR` rows of the recorded car, one per tick.
        controls: [T, 3] recorded steer, gas and brake.

    Attributes:
        start: [1, K] state of a car at rest where the race began.
    """

    def __init__(
        self, track: Track, physics: PhysicsParams, cars: NDArray[np.float64], controls: NDArray[np.float32]
    ) -> None:
        position, self._velocity = centres_of_mass(cars), cars[:, CAR["velocity"]]
        _, along_m, lateral_m = progress_along(track, position)
        self._along_m, self._last = np.maximum.accumulate(along_m), len(cars) - 1
        after = np.arange(1, 2 * LOOKS[-1] + 1)[:, None]  # past the finish the recorded car goes straight on
        straight_on = position[-1] + self._velocity[-1] * after * TICK_MS / 1000.0
        self._position = np.concatenate([position, straight_on])
        self._controls = np.concatenate([controls, np.repeat(controls[-1:], len(after), axis=0)])
        self._road, self._gate_m = road_array(track), np.ascontiguousarray(track.gate_m, np.float64)
        self._c, self._tables = constant_array(physics, TICK_MS / 1000.0), table_array(physics)
        self._scratch, self._rng = np.zeros((2, columns.NUM_SCRATCH)), np.random.default_rng(0)
        zero = np.zeros(1)
        self.start = place_on_road(self._road, self._c, self._gate_m, zero, lateral_m[:1], zero, zero)

    def plan(self, car: NDArray[np.float64], before: Correction, tick: int = 0) -> tuple[NDArray, NDArray, Correction]:
        """Plans the next 1.5 s of one car.

        Args:
            car: [K] state of the car.
            before: correction of the previous plan, around which half of the plans are sampled.
            tick: ticks since the start of the race; a car behind the recording drives faster to catch up. 0: it never
                does.

        Returns:
            planned inputs [H, 3], the recorded inputs [H, 3] that they correct, and the correction.
        """
        along_m = car[columns.ALONG]
        here = min(max(int(np.searchsorted(self._along_m, along_m, side="right")) - 1, 0), self._last)
        speed = max(float(np.linalg.norm(self._velocity[here])), 1.0)
        exact = here + min(max((along_m - self._along_m[here]) / (speed * TICK_MS / 1000.0), 0.0), 1.0)
        recorded = self._controls[here : here + len(PART)]
        at = exact + np.array(LOOKS) + np.minimum(max(tick - here, 0), CATCH_UP * np.array(LOOKS))
        whole = at.astype(np.int64)
        share = (at - whole)[:, None]
        targets = (1.0 - share) * self._position[whole] + share * self._position[whole + 1]
        best = before
        for finer in FINER:
            tried = self._draw(best, finer)
            cost = self._cost(car, _inputs_of(recorded, tried), targets)
            cost += EFFORT * (np.abs(tried.steer).mean(axis=1) + 0.5 * (tried.pedals > 0).mean(axis=1))
            chosen = int(cost.argmin())
            best = Correction(tried.steer[chosen], tried.pedals[chosen])
        return _inputs_of(recorded, Correction(best.steer[None], best.pedals[None]))[:, 0], recorded, best

    def drive(self, car: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        """Drives a car [1, K] in place for as many ticks as there are inputs [H, 3]."""
        self._drive(car, np.ascontiguousarray(inputs[:, None]))

    def _cost(
        self, car: NDArray[np.float64], inputs: NDArray[np.float32], targets: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Returns [P] mean squared distance to the recorded car, plus `LOST` for leaving the track."""
        cars, cost, done = np.repeat(car[None], NUM_PLANS, axis=0), np.zeros(NUM_PLANS), 0
        for look, target in zip(LOOKS, targets, strict=True):
            self._drive(cars, inputs[done:look])
            done = look
            away = ((cars[:, columns.X : columns.X + 3] - target) ** 2).sum(axis=1)
            cost += np.where(cars[:, columns.FINISHED] > 0.0, 0.0, away) / len(LOOKS)
        return cost + LOST * (cars[:, columns.OFF_TRACK] > 0.0)

    def _drive(self, cars: NDArray[np.float64], inputs: NDArray[np.float32]) -> None:
        kernels.drive_inputs(cars, inputs, self._road, self._gate_m, self._c, self._tables, self._scratch)

    def _draw(self, best: Correction, finer: float) -> Correction:
        """Samples corrections [P, parts].

        The first is none, the second is the best so far. Half of the others, in finer rounds all, are near the best.
        """
        rng, size = self._rng, (NUM_PLANS, len(best.steer))
        number = np.arange(NUM_PLANS)[:, None]
        is_near = (number % 2 == 1) | ((finer < 1.0) & (number > 0))
        spread = finer * rng.choice(SPREADS, (NUM_PLANS, 1)) * (number > 1)
        steers = np.clip(rng.standard_normal(size) * spread + is_near * best.steer, -MOST_STEER, MOST_STEER)
        drawn = np.maximum(rng.integers(-2, len(PEDALS) + 1, size), 0)  # 0, the recorded pedals, half of the time
        pedals = np.where(is_near & (rng.random(size) < 0.7), best.pedals, drawn)
        pedals[0], pedals[1] = 0, best.pedals
        return Correction(steers, pedals)


def _inputs_of(recorded: NDArray[np.float32], tried: Correction) -> NDArray[np.float32]:
    """Returns [H, P, 3] the inputs of plans with corrections [P, parts]."""
    inputs = np.repeat(recorded[:, None], len(tried.steer), axis=1)
    inputs[:, :, 0] = np.clip(inputs[:, :, 0] + tried.steer.T[PART], -1.0, 1.0)
    chosen = tried.pedals.T[PART]
    inputs[:, :, 1:] = np.where(chosen[:, :, None] > 0, PEDALS[np.maximum(chosen - 1, 0)], inputs[:, :, 1:])
    return inputs
