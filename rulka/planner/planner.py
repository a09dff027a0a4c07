"""Drives and advises cars on one track, from any state, by planning; deterministic by seed.

Model predictive control with random shooting: at each decision the planner simulates changes of each car's plan up to a
horizon and keeps the best. A plan covers the whole track, and lasts from decision to decision and from lap to lap.

Dimensions: N cars, Z zones, T ticks of a race, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import TICK_MS, ActionTable
from rulka.contracts.observation import CAR, ZONE_SPACING_M, centres_of_mass
from rulka.planner import kernels
from rulka.planner.kernels import KNOT_M, LINE, NUM_VALUES, PACE, ZONES_PER_KNOT, Aim
from rulka.planner.params import PlannerParams
from rulka.planner.speed import full_lock_radius, speed_plan
from rulka.simulator import car as columns
from rulka.simulator.constants import constant_array, road_array, table_array
from rulka.simulator.params import PhysicsParams
from rulka.tracks.progress import progress_along
from rulka.tracks.track import Track

Floats = NDArray[np.float64]

FASTEST_MPS = 120.0
"""Up to this speed a plan's changes reach to the horizon."""
SAFE_PACES = np.array([0.9, 0.7, 0.5, 0.3])
"""Constant paces tried at each decision; a plan begins with the first."""
SLOWEST_RECORDED_MPS = 5.0
"""Lower bound of a recorded race's speed, from which plans start."""

BEYOND_TICKS = 1000
"""Ticks for which a recorded race goes on beyond the finish, at its last speed: as long as the longest horizon."""

RACE = Aim(progress=1.0, edge_m=2.0, edge_cost=0.2, line_cost=0.0, time_cost=0.0)
FOLLOW = Aim(progress=0.0, edge_m=0.0, edge_cost=0.0, line_cost=1.0, time_cost=0.3)
"""Stays where a recorded race was, and as far as it was."""
EXACT = PlannerParams(step_m=columns.LONGEST_STEP_M)
"""Plans of reference laps and of the coach: with the steps of the simulator, at twice the cost."""
FOLLOWING = PlannerParams(horizon_s=2.5, step_m=columns.LONGEST_STEP_M)
"""Plans that only follow need not look far."""
RACE_ON_LINE = RACE._replace(line_cost=0.1)
"""Races, but not far from the line of a recorded race."""


class Line(NamedTuple):
    """What plans change.

    Attributes:
        left_m: [Z] metres left of the centreline.
        speed_mps: [Z] speed.
        along_m: [T] metres along the track at each tick of the race that it was taken from; [0, 0] if of none.
    """

    left_m: Floats
    speed_mps: Floats
    along_m: Floats


def centreline(track: Track, physics: PhysicsParams) -> Line:
    """Returns the centreline, with a speed that the bends allow."""
    speed_mps = speed_plan(track, physics)
    return Line(np.zeros(len(speed_mps)), speed_mps, np.zeros(2))


def line_of(track: Track, cars: Floats) -> Line:
    """Returns the line of a recorded race.

    Args:
        track: track of the race's map.
        cars: [T, 39] `CAR` rows of the recorded car, one per tick; the line goes on straight beyond the finish.
    """
    _, along_m, lateral_m = progress_along(track, centres_of_mass(cars))
    along_m = np.maximum.accumulate(along_m)
    speed_mps = np.linalg.norm(cars[:, CAR["velocity"]], axis=1).clip(SLOWEST_RECORDED_MPS)
    zone_m = np.arange(len(track.exact_zones)) * ZONE_SPACING_M
    beyond_s = np.arange(1, BEYOND_TICKS + 1) * TICK_MS / 1000.0
    return Line(
        np.interp(zone_m, along_m, lateral_m),
        np.interp(zone_m, along_m, speed_mps),
        np.concatenate([along_m, along_m[-1] + beyond_s * speed_mps[-1]]),
    )


class Planner:
    """Plans for N cars on one track.

    Attributes:
        plans: see `rulka.planner.kernels.Plans`; `most_pace` may be lowered by car.
        spent: decisions simulated so far.
    """

    def __init__(
        self,
        track: Track,
        physics: PhysicsParams,
        table: ActionTable,
        num_cars: int,
        params: PlannerParams,
        *,
        seed: int,
        aim: Aim = RACE,
        line: Line | None = None,
    ) -> None:
        """Begins with a careful plan for each car.

        Args:
            track: the track.
            physics: of the cars.
            table: actions; its duration is that of a decision.
            num_cars: N.
            params: size and caution of the plans.
            seed: of all changes; car n draws from a stream of its own.
            aim: score of plans. Cars steer with keys, but in proportion if it is only to follow.
            line: what plans change; None for the centreline.
        """
        road, self._table = road_array(track), table
        if line is None:
            line = centreline(track, physics)
        num_knots = len(road) // ZONES_PER_KNOT + 2
        knot_zones = np.minimum(np.arange(num_knots) * ZONES_PER_KNOT, len(road) - 1)
        half_m, left_m = road[knot_zones, columns.HALF_WIDTH], line.left_m[knot_zones]
        self._course = kernels.Course(
            road=road,
            gate_m=np.ascontiguousarray(track.gate_m, np.float64),
            c=constant_array(physics, TICK_MS / 1000.0, params.step_m),
            tables=table_array(physics),
            radius_m=full_lock_radius(physics),
            line_m=line.left_m,
            speed_mps=line.speed_mps,
            room_m=np.stack([np.minimum(-half_m - left_m, 0.0), np.maximum(half_m - left_m, 0.0)]),
            along_m=line.along_m,
        )
        self._aim = aim
        self._budget = kernels.Budget(
            num_changes=params.num_plans - 1 - len(SAFE_PACES),
            horizon=max(round(1000.0 * params.horizon_s / table.duration_ms), 1),
            ticks=table.duration_ms // TICK_MS,
            has_keys=aim.progress > 0.0,
        )
        values = np.ones((num_cars, NUM_VALUES, num_knots))
        values[:, LINE], values[:, PACE] = 0.0, SAFE_PACES[0]
        streams = [np.random.SeedSequence([seed, n]).generate_state(1, np.uint64)[0] for n in range(num_cars)]
        self.plans = kernels.Plans(
            values=values,
            most_pace=np.full(num_cars, params.pace),
            remainder=np.zeros(num_cars),
            key=np.array(streams, np.uint64),
            tick=np.zeros(num_cars),
            score=np.zeros(num_cars),
        )
        width = min(int(params.horizon_s * FASTEST_MPS / KNOT_M) + 2, num_knots)
        self._scratch = kernels.Scratch(
            motion=np.zeros((2, columns.NUM_SCRATCH)),
            car=np.zeros(columns.NUM_STATE + len(track.gate_m)),
            trial=np.zeros((NUM_VALUES, width)),
            best=np.zeros((NUM_VALUES, width)),
            wanted=np.zeros(3),
            held=np.zeros(3, np.float32),
        )
        self.spent = 0

    def controls(self, states: Floats) -> tuple[Floats, Floats]:
        """Improves the plans of cars from their states, rows of `Simulator.save`.

        Returns:
            [N, 3] steer from -1 to 1 (right), gas and brake that the plans ask for, and [N] the steering of keys: -1, 0
            or 1, the rounding error of which later decisions make up. All 0 for cars whose race is over.
        """
        cars = np.flatnonzero((states[:, columns.FINISHED] == 0.0) & (states[:, columns.OFF_TRACK] == 0.0))
        wanted, pressed = np.zeros((len(states), 3)), np.zeros(len(states))
        along_m, here_m = self._course.along_m, states[:, columns.ALONG]
        row = np.searchsorted(along_m, here_m, side="right").clip(1, len(along_m) - 1) - 1
        moved_m = np.maximum(along_m[row + 1] - along_m[row], 1e-3)
        self.plans.tick[:] = row + ((here_m - along_m[row]) / moved_m).clip(0.0, 1.0)
        kernels.improve(states, cars, SAFE_PACES, self.plans, self._course, self._aim, self._budget, self._scratch)
        kernels.follow(states, cars, self.plans, self._course, wanted, pressed)
        self.spent += len(cars) * (1 + self._budget.num_changes + len(SAFE_PACES)) * self._budget.horizon
        return wanted, pressed

    def actions(self, states: Floats) -> NDArray[np.int64]:
        """Returns [N] actions for the next decision, from the cars' states."""
        wanted, pressed = self.controls(states)
        return self._table.index_of(wanted[:, 1], wanted[:, 2], pressed, 0.5)

    def advice(self, states: Floats) -> NDArray[np.float32]:
        """Returns [N, A] the share of the next decision for which to hold each action; rows sum to 1."""
        wanted, _ = self.controls(states)
        return action_shares(self._table, wanted)


def action_shares(table: ActionTable, controls: Floats) -> NDArray[np.float32]:
    """Returns [N, A] the share of a decision for which to hold each action, so that the mean steering is that wanted.

    Args:
        table: of the actions.
        controls: [N, 3] steer from -1 to 1 (right), gas and brake.
    """
    steer, gas, brake = controls.T
    shares = np.zeros((len(steer), table.num_actions), np.float32)
    cars, turned = np.arange(len(steer)), np.abs(steer)
    shares[cars, table.index_of(gas, brake, np.sign(steer), 0.5)] += turned
    shares[cars, table.index_of(gas, brake, np.zeros_like(steer), 0.5)] += 1.0 - turned
    return shares
