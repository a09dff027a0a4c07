"""Kernels of the planner: a pilot follows a plan in closed loop; random changes of the plan are driven and compared.

A plan sets the line, the pace and the look-ahead at knots along the track. The pilot steers by pure pursuit (Coulter
1992, CMU-RI-TR-92-01), so a change in one bend hardly affects the bends after it. No kernel calls a transcendental
function, so plans are the same on every processor.

Dimensions: N cars, K knots along the track, W knots within the horizon, Z zones, T ticks of a followed race.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.simulator import car as columns
from rulka.simulator.car import at_speed, find_ground, has_ended, tick
from rulka.simulator.compiling import Array, cached_kernel, inlined_kernel

KNOT_M = 6.0
"""Distance between knots."""
ZONES_PER_KNOT = int(KNOT_M / ZONE_SPACING_M)
LINE, PACE, LOOK, NUM_VALUES = range(4)
"""Values of a plan at a knot: metres left of the course's line, factors on its speed and on the look-ahead."""
LEAST_FACTOR, MOST_FACTOR = 0.2, 2.0
"""Limits of both factors."""

REACTION_S = 0.12
"""The pilot looks up the planned speed for its position after this time."""
LOOK_AHEAD_M, LOOK_AHEAD_S = 4.0, 0.3
"""Distance to the pursued point: a constant, and a part that grows with speed."""
COAST_MPS, BRAKE_MPS = 1.0, 3.0
"""Excess over the planned speed at which the pilot releases the gas, and at which it brakes."""

SPREAD_LINE_M, SPREAD_FACTOR = 1.5, 0.15
"""Standard deviation of a change: of the line, and relative, of the factors."""
SCALES = (0.25, 1.0, 2.0)
"""Factors on these; each change draws one."""
CHANGED_SHARE = 0.6
"""Probability that a change affects each of the three values."""
NARROWEST_M, WIDEST_M = 10.0, 80.0
"""Half the length of the stretch that a change affects."""
CRAWL_MPS = 10.0
"""A slower car changes its plan as far ahead as one at this speed."""

SPEED_S = 0.3
"""Value of speed at the horizon, in metres per m/s."""
LOST = -1e6
"""Score of a plan with which the car leaves the track, before the metres that it reaches."""


class Course(NamedTuple):
    """What the pilot drives: a track, a car, and the line and speed that plans change.

    Attributes:
        road, gate_m: as in `rulka.simulator.physics`.
        c: [NUM_CONSTANTS] of the car.
        tables: [NUM_TABLES, 256] of the car.
        radius_m: [256] turning radius at full lock at 0, 1, ... m/s.
        line_m: [Z] metres left of the centreline.
        speed_mps: [Z] speed at pace 1.
        room_m: [2, K] lowest and highest line of a plan at each knot.
        along_m: [T] metres along the track of the followed race at each tick; of the length 2 if there is none.
    """

    road: Array
    gate_m: Array
    c: Array
    tables: Array
    radius_m: Array
    line_m: Array
    speed_mps: Array
    room_m: Array
    along_m: Array


class Aim(NamedTuple):
    """Score of a plan in metres: progress and speed at the horizon, less costs per second.

    Attributes:
        progress: share of the progress that counts; 0 only follows.
        edge_m: distance from the road's edge within which the car's centre costs.
        edge_cost: cost of each metre within it.
        line_cost: cost of a squared metre beside the course's line.
        time_cost: cost of a squared metre before or behind the followed race.
    """

    progress: float
    edge_m: float
    edge_cost: float
    line_cost: float
    time_cost: float


class Budget(NamedTuple):
    """Size of the search at each decision.

    Attributes:
        num_changes: random changes tried.
        horizon: decisions of a plan that are simulated.
        ticks: of a decision.
        has_keys: True if the pilot steers with keys, False if in proportion.
    """

    num_changes: int
    horizon: int
    ticks: int
    has_keys: bool


class Plans(NamedTuple):
    """State of the planner.

    Attributes:
        values: [N, 3, K] plans.
        most_pace: [N] upper bound of the pace.
        remainder: [N] steering that the keys pressed so far lack.
        key: [N] uint64 state of each car's random numbers.
        tick: [N] tick at which the followed race is where the car is.
        score: [N] of the plan kept last; below `LOST` / 2 if no plan stays on the track.
    """

    values: Array
    most_pace: Array
    remainder: Array
    key: NDArray[np.uint64]
    tick: Array
    score: Array


class Scratch(NamedTuple):
    """Scratch memory: ground and motion, a car, two plans within the horizon, and the pilot's controls."""

    motion: Array
    car: Array
    trial: Array
    best: Array
    wanted: Array
    held: NDArray[np.float32]


@inlined_kernel
def value_at(plan: Array, what: int, first_knot: int, zone: int) -> float:
    """Returns a value of a plan [3, W] from `first_knot` on at a zone: linear between knots, constant beyond them."""
    knot = zone // ZONES_PER_KNOT
    share = zone / ZONES_PER_KNOT - knot
    place = min(max(knot - first_knot, 0), plan.shape[1] - 2)
    return plan[what, place] + share * (plan[what, place + 1] - plan[what, place])


@inlined_kernel
def speed_of(car: Array) -> float:
    """Returns a car's speed, m/s."""
    return math.sqrt(car[columns.VX] ** 2 + car[columns.VY] ** 2 + car[columns.VZ] ** 2)


@inlined_kernel
def pilot(car: Array, plan: Array, first_knot: int, course: Course, wanted: Array) -> None:
    """Writes the controls [3] for the next decision: steering from -1 to 1 (right) for the bend, gas, brake."""
    speed, here, last = speed_of(car), int(car[columns.ZONE]), course.road.shape[0] - 1
    soon = min(here + int(REACTION_S * speed / ZONE_SPACING_M), last)
    excess = speed - course.speed_mps[soon] * value_at(plan, PACE, first_knot, soon)
    ahead_m = LOOK_AHEAD_M + LOOK_AHEAD_S * speed * value_at(plan, LOOK, first_knot, here)
    target = min(here + int(ahead_m / ZONE_SPACING_M), last)
    left_m = course.line_m[target] + value_at(plan, LINE, first_knot, target)
    point, ahead, left = course.road[target], 0.0, 0.0
    fx, fy, fz = car[columns.FX], car[columns.FY], car[columns.FZ]
    ux, uy, uz = car[columns.UX], car[columns.UY], car[columns.UZ]
    axis = (uy * fz - uz * fy, uz * fx - ux * fz, ux * fy - uy * fx)
    for k in range(3):
        away = point[columns.CENTRE + k] + left_m * point[columns.LEFT + k] - car[columns.X + k]
        ahead += away * car[columns.FX + k]
        left += away * axis[k]
    steer = -2.0 * left / max(left * left + ahead * ahead, 1.0) * at_speed(course.radius_m, speed)
    wanted[0] = min(max(steer, -1.0), 1.0)
    wanted[1] = 1.0 if excess < COAST_MPS else 0.0
    wanted[2] = 1.0 if excess > BRAKE_MPS else 0.0


@inlined_kernel
def press_keys(steer: float, remainder: float) -> tuple[float, float]:
    """Returns the steering of the keys, -1, 0 or 1, for a wanted one, and what is left of it for the next decision."""
    asked = steer + remainder
    pressed = 1.0 if asked > 0.5 else (-1.0 if asked < -0.5 else 0.0)
    return pressed, min(max(asked - pressed, -0.5), 0.5)


@inlined_kernel
def uniform(key: NDArray[np.uint64], n: int) -> float:
    """Returns the next number in [0, 1) of a car's stream, by splitmix64 (Steele et al. 2014)."""
    key[n] += np.uint64(0x9E3779B97F4A7C15)
    x = (key[n] ^ (key[n] >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@inlined_kernel
def normal(key: NDArray[np.uint64], n: int) -> float:
    """Returns the scaled sum of four uniform numbers: nearly normal, within 3.5."""
    return (uniform(key, n) + uniform(key, n) + uniform(key, n) + uniform(key, n) - 2.0) * math.sqrt(3.0)


@inlined_kernel
def change(plan: Array, here_m: float, reach_m: float, key: NDArray[np.uint64], n: int) -> None:
    """Adds a random bump to a plan [3, W] within `reach_m` of the car, which is `here_m` past the first knot."""
    centre_m = here_m + reach_m * uniform(key, n)
    share = uniform(key, n)
    half_m = NARROWEST_M + (WIDEST_M - NARROWEST_M) * share * share
    scale = SCALES[int(len(SCALES) * uniform(key, n))]
    for what in range(NUM_VALUES):
        size = scale * normal(key, n) * (SPREAD_LINE_M if what == LINE else SPREAD_FACTOR)
        if uniform(key, n) < CHANGED_SHARE:
            for knot in range(plan.shape[1]):
                x = (knot * KNOT_M - centre_m) / half_m
                if abs(x) < 1.0:
                    bump = size * (1.0 - x * x) * (1.0 - x * x)
                    plan[what, knot] += bump if what == LINE else bump * plan[what, knot]


@inlined_kernel
def limit(plan: Array, first_knot: int, most_pace: float, room_m: Array) -> None:
    """Keeps a plan [3, W] on the road, and its factors within their limits."""
    for k in range(plan.shape[1]):
        plan[LINE, k] = min(max(plan[LINE, k], room_m[0, first_knot + k]), room_m[1, first_knot + k])
        plan[PACE, k] = min(max(plan[PACE, k], LEAST_FACTOR), most_pace)
        plan[LOOK, k] = min(max(plan[LOOK, k], LEAST_FACTOR), MOST_FACTOR)


@inlined_kernel
def copy(source: Array, target: Array) -> None:
    """Copies a plan [3, W] to another."""
    for what in range(NUM_VALUES):
        for k in range(source.shape[1]):
            target[what, k] = source[what, k]


@inlined_kernel
def score(n: int, first_knot: int, plans: Plans, course: Course, aim: Aim, budget: Budget, s: Scratch) -> float:
    """Drives car n, a copy in the scratch memory, along the trial there up to the horizon; returns its score."""
    remainder, start_tick = plans.remainder[n], plans.tick[n]
    car, ground, c = s.car, s.motion[0], course.c
    decision_s, cost = budget.ticks * c[columns.TICK_S], 0.0
    for decision in range(budget.horizon):
        find_ground(car, course.road, c, ground)
        pilot(car, s.trial, first_knot, course, s.wanted)
        s.held[0], s.held[1], s.held[2] = s.wanted[0], s.wanted[1], s.wanted[2]
        if budget.has_keys:
            s.held[0], remainder = press_keys(s.wanted[0], remainder)
        for _ in range(budget.ticks):
            tick(car, s.held, course.road, course.gate_m, c, course.tables, ground, s.motion[1])
            if has_ended(car):
                break
        if car[columns.OFF_TRACK] > 0.0:
            return LOST + car[columns.ALONG]
        lateral_m = car[columns.LATERAL]
        over_m = abs(lateral_m) - ground[columns.G_HALF_WIDTH] + aim.edge_m
        beside_m = lateral_m - course.line_m[int(car[columns.ZONE])]
        cost += (aim.edge_cost * max(over_m, 0.0) + aim.line_cost * beside_m * beside_m) * decision_s
        if car[columns.FINISHED] > 0.0:
            left_s = (budget.horizon - 1 - decision) * decision_s
            return aim.progress * (car[columns.ALONG] + (left_s + SPEED_S) * speed_of(car)) - cost
        if aim.time_cost > 0.0:
            row = min(int(start_tick) + (decision + 1) * budget.ticks, course.along_m.shape[0] - 2)
            share = start_tick - int(start_tick)
            late_m = course.along_m[row] + share * (course.along_m[row + 1] - course.along_m[row]) - car[columns.ALONG]
            cost += aim.time_cost * late_m * late_m * decision_s
    return aim.progress * (car[columns.ALONG] + SPEED_S * speed_of(car)) - cost


@cached_kernel
def improve(
    states: Array,
    cars: NDArray[np.int64],
    safe_paces: Array,
    plans: Plans,
    course: Course,
    aim: Aim,
    budget: Budget,
    scratch: Scratch,
) -> int:
    """Improves the plans of selected cars within the horizon; returns 0.

    Compares each car's plan with random changes of it, and with plans at constant, safe paces on the course's line.

    Args:
        states: [N, S + G, or wider] of the cars.
        cars: [M] cars that plan.
        safe_paces: [P] paces.
        plans: updated in place.
        course: see there.
        aim: see there.
        budget: see there.
        scratch: see there.
    """
    trial, width = scratch.trial, scratch.trial.shape[1]
    for n in cars:
        zone = int(states[n, columns.ZONE])
        first = min(zone // ZONES_PER_KNOT, plans.values.shape[2] - width)
        here_m = zone * ZONE_SPACING_M - first * KNOT_M
        seconds = budget.horizon * budget.ticks * course.c[columns.TICK_S]
        reach_m = max(speed_of(states[n]), CRAWL_MPS) * seconds
        kept = plans.values[n, :, first : first + width]
        plans.score[n] = -np.inf
        for number in range(1 + budget.num_changes + safe_paces.shape[0]):
            copy(kept, trial)
            if number > budget.num_changes:
                trial[LINE], trial[PACE], trial[LOOK] = 0.0, safe_paces[number - 1 - budget.num_changes], 1.0
            elif number > 0:
                change(trial, here_m, reach_m, plans.key, n)
            limit(trial, first, float(plans.most_pace[n]), course.room_m)
            for column in range(scratch.car.shape[0]):
                scratch.car[column] = states[n, column]
            found = score(n, first, plans, course, aim, budget, scratch)
            if found > plans.score[n]:
                plans.score[n] = found
                copy(trial, scratch.best)
        copy(scratch.best, kept)
    return 0


@cached_kernel
def follow(states: Array, cars: NDArray[np.int64], plans: Plans, course: Course, wanted: Array, pressed: Array) -> int:
    """Writes what the plans of selected cars ask for next; returns 0.

    Args:
        states: as above.
        cars: [M] cars.
        plans: its remainders are updated.
        course: see there.
        wanted: [N, 3] steer, gas and brake.
        pressed: [N] steering of the keys.
    """
    for n in cars:
        pilot(states[n], plans.values[n], 0, course, wanted[n])
        pressed[n], plans.remainder[n] = press_keys(float(wanted[n, 0]), float(plans.remainder[n]))
    return 0
