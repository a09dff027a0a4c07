"""Finds a racing line: where to drive and how fast, held by a pursuing driver, improved by trial.

A plan is driven in closed loop, so that a change in one bend leaves the bends after it nearly as they were. That is
what finding a line needs, and what changing single decisions cannot do.

Dimensions: N trials, K knots along the track, Z zones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.actions import ActionTable
from rulka.observation import CAR, ZONE_SPACING_M
from rulka.params import SimulatorParams
from rulka.reference.expand import Actions, Floats, OnSpent
from rulka.simulator.driver import speed_plan
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import all_zones, zone_frames
from rulka.tracks.track import Track

KNOT_M = 6.0
"""Distance between knots."""
ZONES_PER_KNOT = int(KNOT_M / ZONE_SPACING_M)
LATERAL, PACE, LOOK = range(3)
"""What a plan says at a knot: metres left of the line, log of the share of the planned speed, log of the look-ahead."""
SPREAD = np.array([1.5, 0.15, 0.15])
"""Standard deviation of the changes of each."""
LEAD_IN_M, CHANGE_M, BEYOND_M = 35.0, 60.0, 250.0
"""A trial begins this far before its change, may change its plan at any place within so many metres, and is judged as
far behind these, or at the finish."""
NUM_TRIALS = 256
REACTION_S = 0.12
LOOK_AHEAD_M, LOOK_AHEAD_S = 4.0, 0.3
COAST_MPS, BRAKE_MPS = 1.0, 3.0
"""The gas is let go and the brake pressed this far above the planned speed."""
FIRST_PACES = (0.35, 1.1)
"""Shares of the possible speed at which a first lap is tried, least and most."""
FIRST_SPREAD = np.array([1.0, 0.0, 0.2])
"""Standard deviation of where and how far ahead half of that field drives."""


@dataclass(frozen=True)
class PlannedLap:
    """A lap driven by plan.

    Attributes:
        plan: [3, K] what the driver keeps to.
        actions: [T] decisions.
        states: [T, S] saved state before each.
        rests: [T] steering owed before each, see `Pilot`.
        along_m: [T] metres along the line before each.
        finish_ms: time at the finish.
    """

    plan: Floats
    actions: Actions
    states: Floats
    rests: Floats
    along_m: Floats
    finish_ms: int


class Pilot:
    """Pursues a point of the planned line ahead; a key is all or nothing, so what it steers too much it owes."""

    def __init__(self, track: Track, simulator: SimulatorParams) -> None:
        self._zones, self._left = all_zones(track), zone_frames(track)[:, 3:6]
        self._radii = np.array(simulator.physics.turn_radius_m).T
        self._speeds = speed_plan(track, simulator.physics, 1.0)
        self.num_knots = len(self._zones) // ZONES_PER_KNOT + 2

    def actions(self, cars: Simulator, plans: Floats, rests: Floats) -> tuple[Actions, Floats]:
        """Returns [N] actions for cars with plans [N, 3, K], and what [N] steering is owed afterwards."""
        speed = np.linalg.norm(cars.cars[:, CAR["velocity"]].astype(np.float64), axis=1)
        soon = self._ahead(cars.zone_index, REACTION_S * speed)
        excess = speed - self._speeds[soon] * np.exp(_at(plans, PACE, soon))
        look = np.exp(_at(plans, LOOK, cars.zone_index))
        target = self._ahead(cars.zone_index, LOOK_AHEAD_M + LOOK_AHEAD_S * speed * look)
        point = self._zones[target] + _at(plans, LATERAL, target)[:, None] * self._left[target]
        rotation = cars.cars[:, CAR["rotation"]].reshape(-1, 3, 3).astype(np.float64)
        local = np.einsum("nij,ni->nj", rotation, point - cars.cars[:, CAR["position"]])
        distance = np.maximum(np.hypot(local[:, 0], local[:, 2]), 1.0)
        wanted = -2.0 * local[:, 0] / distance**2 * np.interp(speed, *self._radii)
        wanted = np.clip(wanted, -1.0, 1.0) + rests
        steer = np.where(np.abs(wanted) > 0.5, np.sign(wanted), 0.0)
        index = cars.table.index_of(excess < COAST_MPS, excess > BRAKE_MPS, steer, 0.5)
        return index, np.clip(wanted - steer, -0.5, 0.5)

    def _ahead(self, zone: NDArray[np.int64], distance_m: Floats) -> NDArray[np.int64]:
        return np.minimum(zone + (distance_m / ZONE_SPACING_M).astype(np.int64), len(self._zones) - 1)


def _at(plans: Floats, what: int, zone: NDArray[np.int64]) -> Floats:
    """Returns [N] the value of each plan at a zone of its own, straight between knots."""
    knot, beyond = np.divmod(zone, ZONES_PER_KNOT)
    share, rows = beyond / ZONES_PER_KNOT, np.arange(len(plans))
    return (1.0 - share) * plans[rows, what, knot] + share * plans[rows, what, knot + 1]


class LineSearch:
    """Improves plans on one track.

    Attributes:
        spent: decisions simulated so far.
    """

    def __init__(self, track: Track, simulator: SimulatorParams, table: ActionTable, max_decisions: int) -> None:
        self._pilot = Pilot(track, simulator)
        self._one, self._many = (Simulator(track, count, simulator, table) for count in (1, NUM_TRIALS))
        self._start = self._one.save()
        self._room_m = np.interp(
            np.arange(self._pilot.num_knots) * ZONES_PER_KNOT, np.arange(track.num_zones), track.width_m / 2.0
        )
        self._max_decisions = max_decisions
        self.spent = 0

    def first_lap(self, generator: np.random.Generator) -> PlannedLap | None:
        """Returns the fastest lap of a field of constant plans, from slow to daring, None where none finishes."""
        constants = generator.standard_normal((NUM_TRIALS, 3)) * FIRST_SPREAD
        constants[: NUM_TRIALS // 2] = 0.0
        constants[:, PACE] = np.log(np.resize(np.linspace(*FIRST_PACES, NUM_TRIALS // 2), NUM_TRIALS))
        plans = np.tile(constants[:, :, None], (1, 1, self._pilot.num_knots))
        np.clip(plans[:, LATERAL], -self._room_m, self._room_m, out=plans[:, LATERAL])
        cars, rests = self._many, np.zeros(NUM_TRIALS)
        cars.restore(np.tile(self._start, (NUM_TRIALS, 1)))
        for _ in range(self._max_decisions):
            self.spent += int((~(cars.is_off_track | cars.is_finished)).sum())
            actions, rests = self._pilot.actions(cars, plans, rests)
            cars.step(actions)
            if cars.is_finished.any():
                times = np.where(cars.is_finished, cars.gate_time_ms[:, -1], np.iinfo(np.int64).max)
                return self._drive(plans[times.argmin()])
            if cars.is_off_track.all():
                break
        return None

    def improve(self, lap: PlannedLap, budget: int, generator: np.random.Generator, on_spent: OnSpent) -> PlannedLap:
        """Improves a lap until `budget` more decisions are simulated; at least as fast as before."""
        end = self.spent + budget
        while self.spent < end:
            before = self.spent
            place_m = float(generator.uniform(0.0, lap.along_m[-1]))
            plans = self._changed(lap.plan, place_m, generator)
            first = max(int(np.searchsorted(lap.along_m, place_m - LEAD_IN_M)) - 1, 0)
            best = self._race(lap, plans, first, place_m + CHANGE_M + BEYOND_M)
            found = None if best is None else self._drive(plans[best])
            if found is not None and found.finish_ms <= lap.finish_ms:
                lap = found
            on_spent(self.spent - before, lap.finish_ms)
        return lap

    def _changed(self, plan: Floats, place_m: float, generator: np.random.Generator) -> Floats:
        """Returns [N, 3, K] copies with a smooth bump somewhere from the place on."""
        plans = np.tile(plan, (NUM_TRIALS, 1, 1))
        width_m = np.exp(generator.uniform(np.log(5.0), np.log(40.0), NUM_TRIALS))
        centre_m = place_m + generator.uniform(0.0, CHANGE_M, NUM_TRIALS)
        knots_m = np.arange(plan.shape[1]) * KNOT_M
        bump = np.exp(-0.5 * ((knots_m - centre_m[:, None]) / width_m[:, None]) ** 2)
        bump[:, knots_m < place_m] = 0.0
        size = SPREAD * generator.standard_normal((NUM_TRIALS, 3)) * generator.choice((0.25, 1.0, 2.0), (NUM_TRIALS, 1))
        size *= generator.uniform(size=size.shape) < 0.6
        plans += size[:, :, None] * bump[:, None, :]
        np.clip(plans[:, LATERAL], -self._room_m, self._room_m, out=plans[:, LATERAL])
        return plans

    def _race(self, lap: PlannedLap, plans: Floats, first: int, until_m: float) -> int | None:
        """Drives from a decision of the lap on until the first car gets to a place or the finish.

        Returns:
            Which plan that is; None where the lap itself is there before.
        """
        cars, rests = self._many, np.full(NUM_TRIALS, lap.rests[first])
        cars.restore(np.tile(lap.states[first], (NUM_TRIALS, 1)))
        for decision in range(first, len(lap.actions)):
            self.spent += int((~cars.is_off_track).sum())
            actions, rests = self._pilot.actions(cars, plans, rests)
            cars.step(actions)
            if cars.is_finished.any():
                times = np.where(cars.is_finished, cars.gate_time_ms[:, -1], np.iinfo(np.int64).max)
                return int(times.argmin())
            along_m = np.where(cars.is_off_track, 0.0, cars.along_m)
            if along_m.max() >= until_m:
                is_ahead = decision + 1 == len(lap.actions) or along_m.max() > lap.along_m[decision + 1]
                return int(along_m.argmax()) if is_ahead else None
            if decision + 1 < len(lap.actions) and lap.along_m[decision + 1] >= until_m:
                return None
        return None

    def _drive(self, plan: Floats) -> PlannedLap | None:
        cars, rest = self._one, np.zeros(1)
        cars.restore(self._start)
        actions, states, rests, along = [], [], [], []
        for _ in range(self._max_decisions):
            states.append(cars.save()[0])
            rests.append(rest[0])
            along.append(float(cars.along_m[0]))
            action, rest = self._pilot.actions(cars, plan[None], rest)
            actions.append(int(action[0]))
            cars.step(action)
            self.spent += 1
            if cars.is_finished[0]:
                path, finish_ms = np.maximum.accumulate(along), int(cars.gate_time_ms[0, -1])
                return PlannedLap(plan, np.array(actions), np.array(states), np.array(rests), path, finish_ms)
            if cars.is_off_track[0]:
                break
        return None
