"""Finds a reference lap by random local search: first a racing line, then single decisions.

A plan sets the line and the speed. A pure-pursuit driver follows it in closed loop, so a change in one bend hardly
affects the bends after it. The search for a line needs this, and changes of single decisions do not have it. Those come
last: change a few, replay the rest, and keep the lap if it finishes earlier. The later decisions survive only a small
change, so changes come in small and large, and the search passes over the lap many times. Every trial starts from the
saved state before its change, so only the rest of the lap is simulated.

Dimensions: N trials, K knots along the track, Z zones, T decisions of a lap, S numbers of a saved state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.contracts.observation import ZONE_SPACING_M
from rulka.machine.progress import Progress
from rulka.machine.terminal import say
from rulka.reference.lap import Reference, geometry_hash, physics_hash
from rulka.simulator.car import OFF_TRACK
from rulka.simulator.driver import REACTION_S, SPEEDS, full_lock_radius, seen_from, speed_plan, speeds_of, zone_ahead
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import zone_frames
from rulka.tracks.track import Track

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
OnSpent = Callable[[int, int], None]
"""Called with the decisions simulated since the last call and the current lap time in ms."""

DECISIONS_PER_M = 25_000
"""Default budget in decisions per metre of track."""
LINE_SHARE = 0.75
"""Share of the budget for the racing line."""
SLOWEST_MPS = 5.0
"""Laps with a lower average speed are aborted."""

KNOT_M = 6.0
"""Distance between knots."""
ZONES_PER_KNOT = int(KNOT_M / ZONE_SPACING_M)
LATERAL, PACE, LOOK = range(3)
"""Values of a plan at a knot: metres left of the line, log of the factors on the planned speed and the look-ahead."""
SPREAD = np.array([1.5, 0.15, 0.15])
"""Standard deviation of the change of each value."""
LEAD_IN_M, CHANGE_M, BEYOND_M = 35.0, 60.0, 250.0
"""A trial starts `LEAD_IN_M` before the chosen place, changes its plan within `CHANGE_M` after it, and is judged
`BEYOND_M` later, or at the finish."""
NUM_PLANS = 256
"""Plans tried at once, at one place of the lap."""
LOOK_AHEAD_M, LOOK_AHEAD_S = 4.0, 0.3
COAST_MPS, BRAKE_MPS = 1.0, 3.0
"""Excess over the planned speed at which the driver releases the gas, and at which it brakes."""
FIRST_PACES = (0.35, 1.1)
"""Lowest and highest share of the possible speed in the trials for a first lap."""
FIRST_SPREAD = np.array([1.0, 0.0, 0.2])
"""Standard deviation of the plan's values in half of those trials."""

NUM_TRIALS = 512
"""Changes of single decisions tried at once, at one place of the lap."""
MAX_WINDOW = 24
"""Longest change in decisions: 1.2 s."""
CHECK_EVERY = 8
"""Decisions between checks that abort trials which have fallen behind."""
MAX_BEHIND_S = 0.15
"""A trial this far behind the lap is aborted."""


@dataclass(frozen=True)
class Lap:
    """A lap that reaches the finish.

    Attributes:
        plan: [3, K] the driver's plan; [3, 0] once single decisions were changed.
        actions: [T] decisions.
        states: [T, S] saved state before each decision.
        steer_remainders: [T] steering remainder before each decision, see `Pilot`.
        along_m: [T + 1] metres along the track at each decision and after the last, non-decreasing.
        finish_ms: time at the finish.
        arrival: speed at the finish, m/s, the tie-breaker between equal times.
    """

    plan: Floats
    actions: Actions
    states: Floats
    steer_remainders: Floats
    along_m: Floats
    finish_ms: int
    arrival: float


class Pilot:
    """Pure-pursuit driver of plans. Keys are binary, so the rounding error of the steering is carried over."""

    def __init__(self, track: Track, simulator: SimulatorParams) -> None:
        self._zones, self._left = track.exact_zones, zone_frames(track)[:, 3:6]
        self._radii = full_lock_radius(simulator.physics)
        self._speeds = speed_plan(track, simulator.physics, 1.0)
        self.num_knots = len(self._zones) // ZONES_PER_KNOT + 2

    def actions(self, cars: Simulator, plans: Floats, remainders: Floats) -> tuple[Actions, Floats]:
        """Returns [N] actions for cars with plans [N, 3, K], and the new steering remainders [N]."""
        speed = speeds_of(cars)
        soon = zone_ahead(self._zones, cars.zone_index, REACTION_S * speed)
        excess = speed - self._speeds[soon] * np.exp(_at(plans, PACE, soon))
        look = np.exp(_at(plans, LOOK, cars.zone_index))
        target = zone_ahead(self._zones, cars.zone_index, LOOK_AHEAD_M + LOOK_AHEAD_S * speed * look)
        point = self._zones[target] + _at(plans, LATERAL, target)[:, None] * self._left[target]
        aside, distance = seen_from(cars, point)
        wanted = np.clip(-2.0 * aside / distance**2 * np.interp(speed, SPEEDS, self._radii), -1.0, 1.0) + remainders
        steer = np.where(np.abs(wanted) > 0.5, np.sign(wanted), 0.0)
        index = cars.table.index_of(excess < COAST_MPS, excess > BRAKE_MPS, steer, 0.5)
        return index, np.clip(wanted - steer, -0.5, 0.5)


def _at(plans: Floats, what: int, zone: NDArray[np.int64]) -> Floats:
    """Returns [N] one value of each plan at the car's zone [N], linear between knots."""
    knot, beyond = np.divmod(zone, ZONES_PER_KNOT)
    share, rows = beyond / ZONES_PER_KNOT, np.arange(len(plans))
    return (1.0 - share) * plans[rows, what, knot] + share * plans[rows, what, knot + 1]


class Search:
    """Finds and improves laps on one track.

    Attributes:
        spent: decisions simulated so far.
    """

    def __init__(
        self,
        track: Track,
        simulator: SimulatorParams,
        table: ActionTable,
        generator: np.random.Generator,
        on_spent: OnSpent,
    ) -> None:
        """Creates the simulators.

        Args:
            track: the track.
            simulator: physics.
            table: actions to choose from.
            generator: random generator for all changes.
            on_spent: called after each round.
        """
        self._generator, self._on_spent = generator, on_spent
        self._pilot = Pilot(track, simulator)
        self._one, self._field, self._trials = (
            Simulator(track, count, simulator, table) for count in (1, NUM_PLANS, NUM_TRIALS)
        )
        self._start = self._one.save()
        self._room_m = np.interp(
            np.arange(self._pilot.num_knots) * ZONES_PER_KNOT, np.arange(track.num_zones), track.width_m / 2.0
        )
        self._max_decisions = int(track.length_m / SLOWEST_MPS * 1000.0 / table.duration_ms) + 1
        self.spent = 0

    def first_lap(self) -> Lap | None:
        """Returns the fastest lap of a batch of constant plans, from slow to daring; None if no car finishes."""
        constants = self._generator.standard_normal((NUM_PLANS, 3)) * FIRST_SPREAD
        constants[: NUM_PLANS // 2] = 0.0
        constants[:, PACE] = np.log(np.resize(np.linspace(*FIRST_PACES, NUM_PLANS // 2), NUM_PLANS))
        plans = np.tile(constants[:, :, None], (1, 1, self._pilot.num_knots))
        np.clip(plans[:, LATERAL], -self._room_m, self._room_m, out=plans[:, LATERAL])
        cars, remainders = self._field, np.zeros(NUM_PLANS)
        cars.restore(np.tile(self._start, (NUM_PLANS, 1)))
        for _ in range(self._max_decisions):
            self.spent += int((~(cars.is_off_track | cars.is_finished)).sum())
            actions, remainders = self._pilot.actions(cars, plans, remainders)
            cars.step(actions)
            if cars.is_finished.any():
                lap = self._follow(plans[_finish_ms(cars).argmin()])
                if lap is not None:
                    self._on_spent(self.spent, lap.finish_ms)
                return lap
            if cars.is_off_track.all():
                break
        return None

    def improve_line(self, lap: Lap, until: int) -> Lap:
        """Improves the plan of a lap until `until` decisions are simulated; returns a lap at least as fast."""
        while self.spent < until:
            before = self.spent
            place_m = float(self._generator.uniform(0.0, lap.along_m[-2]))
            plans = self._changed_plans(lap.plan, place_m)
            first = max(int(np.searchsorted(lap.along_m, place_m - LEAD_IN_M)) - 1, 0)
            best = self._race_plans(lap, plans, first, place_m + CHANGE_M + BEYOND_M)
            found = None if best is None else self._follow(plans[best])
            if found is not None and found.finish_ms <= lap.finish_ms:
                lap = found
            self._on_spent(self.spent - before, lap.finish_ms)
        return lap

    def improve_decisions(self, lap: Lap, until: int) -> Lap:
        """Improves single decisions of a lap until `until` decisions are simulated; returns a lap at least as fast."""
        while self.spent < until:
            before = self.spent
            place = int(self._generator.integers(len(lap.actions)))
            trials = self._changed_decisions(lap.actions, place)
            best = self._race_decisions(lap, trials, place)
            found = None if best is None else self._repeat(trials[best])
            if found is not None and (found.finish_ms, -found.arrival) < (lap.finish_ms, -lap.arrival):
                lap = found
            self._on_spent(self.spent - before, lap.finish_ms)
        return lap

    def _changed_plans(self, plan: Floats, place_m: float) -> Floats:
        """Returns [N, 3, K] copies of a plan, each with a random smooth bump at or after `place_m`."""
        generator = self._generator
        plans = np.tile(plan, (NUM_PLANS, 1, 1))
        width_m = np.exp(generator.uniform(np.log(5.0), np.log(40.0), NUM_PLANS))
        centre_m = place_m + generator.uniform(0.0, CHANGE_M, NUM_PLANS)
        knots_m = np.arange(plan.shape[1]) * KNOT_M
        bump = np.exp(-0.5 * ((knots_m - centre_m[:, None]) / width_m[:, None]) ** 2)
        bump[:, knots_m < place_m] = 0.0
        size = SPREAD * generator.standard_normal((NUM_PLANS, 3)) * generator.choice((0.25, 1.0, 2.0), (NUM_PLANS, 1))
        size *= generator.uniform(size=size.shape) < 0.6
        plans += size[:, :, None] * bump[:, None, :]
        np.clip(plans[:, LATERAL], -self._room_m, self._room_m, out=plans[:, LATERAL])
        return plans

    def _changed_decisions(self, actions: Actions, place: int) -> Actions:
        """Returns [N, T] copies of a lap, each changed at or after `place` over at most `MAX_WINDOW` decisions.

        A change fills a stretch with one action, shifts it, rotates it, or replaces random decisions in it; a quarter
        of the trials get a second change.
        """
        generator, trials = self._generator, np.tile(actions, (NUM_TRIALS, 1))
        for is_changed in (np.ones(NUM_TRIALS, np.bool_), generator.uniform(size=NUM_TRIALS) < 0.25):
            first = np.minimum(place + generator.integers(MAX_WINDOW, size=NUM_TRIALS), len(actions) - 1)
            length = np.minimum(generator.geometric(0.25, NUM_TRIALS), MAX_WINDOW) * is_changed
            self._change(trials, first, length)
        return trials

    def _change(self, trials: Actions, first: Actions, length: Actions) -> None:
        """Changes `length` [N] decisions of each trial from `first` [N] on, in place; each trial draws its own kind."""
        generator, num_actions = self._generator, self._one.table.num_actions
        columns = np.arange(first.min(), min(int((first + length).max()), trials.shape[1]))
        offset = columns - first[:, None]
        inside = (offset >= 0) & (offset < length[:, None])
        kind = generator.integers(0, 4, (len(trials), 1))
        shift = generator.choice((-2, -1, 1, 2), (len(trials), 1))
        turned = first[:, None] + (offset - shift) % np.maximum(length, 1)[:, None]
        source = np.where(kind == 1, columns - shift, turned).clip(0, trials.shape[1] - 1)
        moved = np.take_along_axis(trials, source, axis=1)
        fresh = generator.integers(num_actions, size=inside.shape)
        one = np.broadcast_to(generator.integers(num_actions, size=(len(trials), 1)), inside.shape)
        changed = np.select([kind == 0, kind == 3], [one, fresh], moved)
        strewn = (kind != 3) | (generator.uniform(size=inside.shape) < 0.5)
        trials[:, columns] = np.where(inside & strewn, changed, trials[:, columns])

    def _race_plans(self, lap: Lap, plans: Floats, first: int, until_m: float) -> int | None:
        """Races plans against the lap from a decision on, until the first car reaches `until_m` or the finish.

        Returns:
            The index of the fastest plan; None if the lap itself is first.
        """
        cars, remainders = self._field, np.full(NUM_PLANS, lap.steer_remainders[first])
        cars.restore(np.tile(lap.states[first], (NUM_PLANS, 1)))
        for decision in range(first, len(lap.actions)):
            self.spent += int((~cars.is_off_track).sum())
            actions, remainders = self._pilot.actions(cars, plans, remainders)
            cars.step(actions)
            if cars.is_finished.any():
                return int(_finish_ms(cars).argmin())
            along_m = np.where(cars.is_off_track, 0.0, cars.along_m)
            if along_m.max() >= until_m:
                is_ahead = decision + 1 == len(lap.actions) or along_m.max() > lap.along_m[decision + 1]
                return int(along_m.argmax()) if is_ahead else None
            if decision + 1 < len(lap.actions) and lap.along_m[decision + 1] >= until_m:
                return None
        return None

    def _race_decisions(self, lap: Lap, trials: Actions, place: int) -> int | None:
        """Returns the index of the trial that finishes first; None if none finishes within the lap's decisions."""
        cars = self._trials
        cars.restore(np.tile(lap.states[place], (NUM_TRIALS, 1)))
        for decision in range(place, len(lap.actions)):
            self.spent += int((~cars.is_off_track).sum())
            cars.step(trials[:, decision])
            if cars.is_finished.any():
                return int(np.lexsort((-speeds_of(cars), _finish_ms(cars)))[0])  # ties go to the faster car
            if decision % CHECK_EVERY == 0:
                behind_s = (lap.along_m[decision + 1] - cars.along_m) / np.maximum(speeds_of(cars), 5.0)
                given_up = cars.save()
                given_up[:, OFF_TRACK] = 1.0
                cars.restore(given_up, behind_s >= MAX_BEHIND_S)
            if cars.is_off_track.all():
                return None
        return None

    def _follow(self, plan: Floats) -> Lap | None:
        """Drives a plan from the start; None if it does not reach the finish."""
        return self._drive(plan, lambda _, remainder: self._pilot.actions(self._one, plan[None], remainder))

    def _repeat(self, actions: Actions) -> Lap | None:
        """Drives decisions [T] from the start, cut at the finish; None if they do not reach it."""
        return self._drive(np.zeros((3, 0)), lambda decision, remainder: (actions[decision : decision + 1], remainder))

    def _drive(self, plan: Floats, choose: Callable[[int, Floats], tuple[Actions, Floats]]) -> Lap | None:
        """Drives from the start with `choose(decision, remainder)`, until it returns no action or the race ends."""
        cars, remainder = self._one, np.zeros(1)
        cars.restore(self._start)
        actions, states, remainders, along = [], [], [], [0.0]
        while len(actions) < self._max_decisions:
            states.append(cars.save()[0])
            remainders.append(remainder[0])
            action, remainder = choose(len(actions), remainder)
            if not len(action):
                break
            actions.append(int(action[0]))
            cars.step(action)
            self.spent += 1
            along.append(float(cars.along_m[0]))
            if cars.is_finished[0]:
                path, finish_ms = np.maximum.accumulate(along), int(cars.gate_time_ms[0, -1])
                rows = np.array(actions), np.array(states), np.array(remainders)
                return Lap(plan, *rows, path, finish_ms, float(speeds_of(cars)[0]))
            if cars.is_off_track[0]:
                break
        return None


def _finish_ms(cars: Simulator) -> Actions:
    """Returns [N] the finish times; the largest int64 for cars that have not finished."""
    return np.where(cars.is_finished, cars.gate_time_ms[:, -1], np.iinfo(np.int64).max)


def default_budget(track: Track) -> int:
    """Returns the default budget in decisions, enough for a very good lap."""
    return int(DECISIONS_PER_M * track.length_m)


def find_reference(
    track: Track,
    simulator: SimulatorParams,
    table: ActionTable,
    seed: int,
    budget: int,
    on_spent: OnSpent = lambda _decisions, _time_ms: None,
) -> Reference | None:
    """Searches for a near time-optimal lap; deterministic.

    Args:
        track: the track.
        simulator: physics.
        table: actions.
        seed: seed of all trials.
        budget: approximate number of decisions to simulate; the first lap is completed at any cost.
        on_spent: called after each round.

    Returns:
        The lap; None if no lap reaches the finish.
    """
    search = Search(track, simulator, table, np.random.default_rng(seed), on_spent)
    lap = search.first_lap()
    if lap is None:
        return None
    lap = search.improve_line(lap, int(budget * LINE_SHARE))
    lap = search.improve_decisions(lap, budget)
    return Reference(
        track_uid=track.uid,
        geometry=geometry_hash(track),
        physics=physics_hash(simulator),
        ticks_per_action=table.ticks_per_action,
        time_ms=lap.finish_ms,
        seed=seed,
        budget=budget,
        actions=lap.actions,
        searched_ms=(lap.finish_ms,),
    )


def search_with_progress(
    track: Track, simulator: SimulatorParams, table: ActionTable, seed: int, budget: int
) -> Reference | None:
    """Searches for a reference lap with a progress bar; returns None if no lap reaches the finish.

    The first lap is completed at any cost and rounds are not interrupted, so the search may exceed the budget; the
    displayed total then grows.
    """
    with Progress(f"reference: {track.name}", budget, "decisions") as progress:

        def on_spent(spent: int, time_ms: int) -> None:
            if progress.done == 0 and spent > budget:
                say(f"reference: the first lap alone takes {spent:,} decisions, and is left as it is")
            progress.total = max(budget, progress.done + spent)
            progress.advance(spent, best_s=time_ms / 1000.0)

        return find_reference(track, simulator, table, seed, budget, on_spent)
