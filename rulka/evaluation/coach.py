"""Shows where a race lost time: a coach takes over at the entry of each bend.

What a bend cost is the difference of two simulated drives to the exit of the next bend: the coach takes over at this
bend, or at the next. So it counts what a faster exit is worth, but no gain further on. A whole race of the coach tells
what all changes together gain; the losses do not add up to it, as a faster car meets the next bend differently.

What a bend lost to a ghost is the difference of the times between its ends. These do add up, to that of the race times.

Dimensions: B bends, N cars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import action_table
from rulka.contracts.observation import CAR, ZONE_SPACING_M, centres_of_mass
from rulka.evaluation.race import EvaluationRaces, Policy, race
from rulka.evaluation.results import MPS_TO_KMH, RaceResult, time_at_distance_s
from rulka.planner.planner import EXACT, Planner, line_of
from rulka.planner.speed import bends
from rulka.simulator import car as columns
from rulka.simulator.race_settings import RaceSettings
from rulka.simulator.race_start import Starts
from rulka.simulator.simulator import Simulator
from rulka.tracks.progress import progress_along, zone_frames
from rulka.tracks.track import Track

Floats = NDArray[np.float64]

STRAIGHT_PER_M = 0.01
"""Curvature from which road is a bend: a radius of 100 m."""
SMALLEST_RAD = math.radians(15.0)
"""A bend that turns less belongs to the straight around it."""
TRIES = 3
"""Drives of the planner from each bend, each with the plan of the fastest so far."""
STANDING_MPS = 1.0
"""Below this speed a car counts as standing."""
NOTABLE_M = 4.0
"""Smaller differences of inputs are not told."""


@dataclass(frozen=True)
class Drive:
    """How a bend was driven.

    Attributes:
        entry_kmh, least_kmh, exit_kmh: speeds at both ends, and the least between.
        coast_m, brake_m: metres off the gas and on the brake.
        steer_m: metres from the entry to the middle of the steering into the bend; None without any.
    """

    entry_kmh: float
    least_kmh: float
    exit_kmh: float
    coast_m: float
    brake_m: float
    steer_m: float | None


@dataclass(frozen=True)
class Bend:
    """A bend, with the road up to the middle of the straights around it.

    Attributes:
        from_m, to_m: metres along the track.
        turn_deg: total turn, positive left.
        lost_s: seconds lost by the exit of the next bend; None if the race or the coach does not get there.
        to_ghost_s: seconds lost to a ghost between the ends; None without one, or if either car does not get there.
        race, coach: how both drove it.
    """

    from_m: float
    to_m: float
    turn_deg: float
    lost_s: float | None
    to_ghost_s: float | None
    race: Drive
    coach: Drive

    @property
    def lost_m(self) -> float | None:
        """`lost_s` in metres, at the race's speed at the exit."""
        return None if self.lost_s is None else self.lost_s * self.race.exit_kmh / MPS_TO_KMH


@dataclass(frozen=True)
class Coached:
    """Where a race lost time.

    Attributes:
        time_s: race time; None if it did not finish.
        coach_s: time of the coach's whole race from the same start; None if it did not finish.
        bends: in order, without those that the race did not reach.
    """

    time_s: float | None
    coach_s: float | None
    bends: tuple[Bend, ...]


Coach = Callable[[Starts, Floats], list[RaceResult]]
"""Drives cars from starts to goals [N], in metres along the track."""


def coach_race(result: RaceResult, coach: Coach, ghost: RaceResult | None = None) -> Coached:
    """Compares a race from the start line with a coach, and with a ghost if there is one, bend by bend.

    The coach takes over a car placed on the road where the race's car was, as fast and in the same direction.
    """
    track, cuts = result.track, bend_cuts(result.track)
    num_bends = max(int(np.searchsorted(cuts, result.progress_m)), 1)
    goals = np.append(cuts, track.length_m)[2:]
    entries = _samples_at(result, np.append(cuts[:num_bends], 0.0))
    *driven, whole = coach(Starts(*_places(result, entries)), np.append(goals[:num_bends], track.length_m))
    entry_s = result.sample_ms[entries] / 1000.0
    # The next drive begins at a sample, shortly beyond the cut, and so ends what the race drove itself.
    exit_s = [*entry_s[1:num_bends], time_at_distance_s(result, cuts[num_bends : num_bends + 1]).item()]
    turned = np.cumsum(bends(track)[0]) * ZONE_SPACING_M
    to_ghost_s = np.diff(_passing_s(result, cuts) - _passing_s(ghost, cuts)) if ghost else np.full(num_bends, np.nan)
    found = []
    for k, drive in enumerate(driven):
        at_goal = partial(time_at_distance_s, distance_m=goals[k : k + 1])
        next_s = at_goal(driven[k + 1]).item() if k + 1 < num_bends else 0.0
        lost_s = exit_s[k] - entry_s[k] + next_s - at_goal(drive).item()
        turn = turned[int(cuts[k + 1] / ZONE_SPACING_M)] - turned[int(cuts[k] / ZONE_SPACING_M)]
        bend = Bend(
            from_m=float(cuts[k]),
            to_m=float(cuts[k + 1]),
            turn_deg=math.degrees(turn),
            lost_s=_known(lost_s),
            to_ghost_s=_known(to_ghost_s[k]),
            race=_drive(result, cuts[k], cuts[k + 1], turn),
            coach=_drive(drive, cuts[k], cuts[k + 1], turn),
        )
        found.append(bend)
    return Coached(result.time_s, whole.time_s, tuple(found))


def planner_coach(result: RaceResult, settings: RaceSettings) -> Coach:
    """Returns the planner as a coach, which changes the line of a race, or the centreline if that did not finish."""
    table, track = action_table(settings.ticks_per_action), result.track
    line = line_of(track, result.cars.astype(np.float64)) if result.is_finished else None

    def coach(starts: Starts, goals: Floats) -> list[RaceResult]:
        num_cars, physics = len(goals), settings.simulator.physics
        planner = Planner(track, physics, table, num_cars, EXACT, seed=0, line=line)
        races = EvaluationRaces(track, settings, range(num_cars))
        actions = np.zeros(num_cars, np.int64)
        fastest, fastest_s = list[RaceResult](), np.full(num_cars, np.inf)
        plans = planner.plans.values.copy()

        def plan(simulator: Simulator, image: NDArray[np.uint8], floats: NDArray[np.float32]) -> None:
            states = simulator.save()
            states[states[:, columns.ALONG] >= goals, columns.FINISHED] = 1.0  # needs no plan any more
            actions[:] = planner.actions(states)

        for _ in range(TRIES):
            driven = race(lambda *_: actions, races, on_seen=plan, placed=starts)
            times_s = [time_at_distance_s(*pair).item() for pair in zip(driven, goals[:, None], strict=True)]
            is_faster = np.nan_to_num(times_s, nan=np.inf) < fastest_s
            fastest = [driven[k] if is_faster[k] or not fastest else fastest[k] for k in range(num_cars)]
            fastest_s[is_faster] = np.array(times_s)[is_faster]
            plans[is_faster] = planner.plans.values[is_faster]
            planner.plans.values[:] = plans
        return fastest

    return coach


def agent_coach(policy: Policy, races: EvaluationRaces) -> Coach:
    """Returns an agent as a coach."""

    def coach(starts: Starts, goals: Floats) -> list[RaceResult]:
        return race(policy, replace(races, seeds=range(len(goals))), placed=starts)

    return coach


def coached_table(coached: Coached) -> list[tuple[str, ...]]:
    """Returns the head and the rows of a table; speeds are in km/h. Only against a ghost it has a column of that."""
    has_ghost = any(bend.to_ghost_s is not None for bend in coached.bends)
    ghost_head = ("to the ghost",) if has_ghost else ()
    rows = [("bend", "entry, least, exit", *ghost_head, "of the coach", "lost", "what the coach does")]
    for bend in coached.bends:
        # In milliseconds, so that what is shown adds up, too.
        to_ghost = "\N{EN DASH}" if bend.to_ghost_s is None else f"{bend.to_ghost_s:+z.3f} s"
        row = (
            f"{bend.from_m:.0f} to {bend.to_m:.0f} m, {abs(bend.turn_deg):.0f}\N{DEGREE SIGN} "
            f"{'left' if bend.turn_deg > 0 else 'right'}",
            f"{bend.race.entry_kmh:.0f}, {bend.race.least_kmh:.0f}, {bend.race.exit_kmh:.0f}",
            *([to_ghost] if has_ghost else []),
            f"{bend.coach.entry_kmh:.0f}, {bend.coach.least_kmh:.0f}, {bend.coach.exit_kmh:.0f}",
            "\N{EN DASH}" if bend.lost_s is None else f"{bend.lost_s:+z.2f} s, {bend.lost_m:+z.0f} m",
            "; ".join(_differences(bend)),
        )
        rows.append(row)
    return rows


def _differences(bend: Bend) -> Iterator[str]:
    """Says in words where the coach's inputs differ."""
    race, coach = bend.race, bend.coach
    if abs(coach.coast_m - race.coast_m) > NOTABLE_M:
        yield f"off the gas for {coach.coast_m:.0f} m, not {race.coast_m:.0f} m"
    if abs(coach.brake_m - race.brake_m) > NOTABLE_M:
        yield f"brakes for {coach.brake_m:.0f} m, not {race.brake_m:.0f} m"
    later_m = 0.0 if race.steer_m is None or coach.steer_m is None else coach.steer_m - race.steer_m
    if abs(later_m) > NOTABLE_M:
        yield f"steers {abs(later_m):.0f} m {'later' if later_m > 0 else 'earlier'}"


def coached_summary(coached: Coached) -> str:
    """Says what all changes together gain."""
    whole = "does not finish" if coached.coach_s is None else f"takes {coached.coach_s:.2f} s"
    own = "The race did not finish" if coached.time_s is None else f"The race took {coached.time_s:.2f} s"
    return f"{own}; the coach {whole} from the same start."


def bend_cuts(track: Track) -> Floats:
    """Returns [B + 1] metres along the track: its start, the middles between bends, and its finish."""
    turn = bends(track)[0][: track.num_zones]
    side = np.sign(turn) * (np.abs(turn) > STRAIGHT_PER_M)
    edges = np.flatnonzero(np.diff(side, prepend=0.0, append=0.0))
    turns = [(low, high) for low, high in pairwise(edges) if abs(turn[low:high].sum()) * ZONE_SPACING_M > SMALLEST_RAD]
    middles = [0.5 * ZONE_SPACING_M * (before[1] + after[0]) for before, after in pairwise(turns)]
    return np.array([0.0, *middles, track.length_m])


def _passing_s(result: RaceResult, cuts: Floats) -> Floats:
    """Returns [B + 1] when a race passed each cut; NaN where it did not."""
    finish_s = np.nan if result.time_s is None else result.time_s
    return np.append(time_at_distance_s(result, cuts[:-1]), finish_s)


def _known(seconds: float) -> float | None:
    return float(seconds) if np.isfinite(seconds) else None


def _samples_at(result: RaceResult, along_m: Floats) -> NDArray[np.int64]:
    """Returns the first sample at or beyond each distance along the track, or the last."""
    return np.searchsorted(np.maximum.accumulate(result.along_m), along_m).clip(max=len(result.along_m) - 1)


def _places(result: RaceResult, samples: NDArray[np.int64]) -> Floats:
    """Returns [4, B] where the car is, as `Starts`; its nose points where it moves."""
    zones, along_m, lateral_m = progress_along(result.track, centres_of_mass(result.cars))
    rows, frames = result.cars[samples].astype(np.float64), zone_frames(result.track)[zones[samples]]
    velocity, nose = rows[:, CAR["velocity"]], rows[:, CAR["rotation"]].reshape(-1, 3, 3)[:, :, 2]
    speed_mps = np.linalg.norm(velocity, axis=1)
    heading = np.where(speed_mps[:, None] > STANDING_MPS, velocity, nose)
    ahead, left = (heading * frames[:, :3]).sum(axis=1), (heading * frames[:, 3:6]).sum(axis=1)
    along_m = along_m.clip(min=0.0)
    return np.stack([along_m[samples], lateral_m[samples], np.arctan2(left, ahead), speed_mps])


def _drive(result: RaceResult, from_m: float, to_m: float, turn: float) -> Drive:
    """Measures how a race drove a stretch that turns left by `turn`; up to where it ended."""
    first, last = _samples_at(result, np.array([from_m, to_m]))
    along_m = np.maximum.accumulate(result.along_m)
    moved_m, kmh = np.diff(along_m[first : last + 1]), MPS_TO_KMH * result.speed_mps[first : last + 1]
    steer, gas, brake = result.controls[first:last].T
    steered_m = moved_m * np.maximum(-np.sign(turn) * steer, 0.0)
    middle_m = np.dot(steered_m, along_m[first:last] - from_m) / steered_m.sum() if steered_m.any() else None
    return Drive(
        entry_kmh=float(kmh[0]),
        least_kmh=float(kmh.min()),
        exit_kmh=float(kmh[-1]),
        coast_m=float(moved_m[gas < 0.5].sum()),
        brake_m=float(moved_m[brake > 0.5].sum()),
        steer_m=middle_m,
    )
