"""Finds a reference lap: the planner drives laps, each from the plan of the fastest so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rulka.contracts.actions import ActionTable
from rulka.machine.errors import UserError
from rulka.machine.progress import Progress
from rulka.machine.terminal import say
from rulka.planner.planner import EXACT, Planner
from rulka.reference.lap import Reference, physics_hash
from rulka.simulator.params import SimulatorParams
from rulka.simulator.simulator import Simulator
from rulka.tracks.track import Track, geometry_hash

OnLap = Callable[[int, int], None]
"""Called with the decisions simulated since the last call and the fastest lap time in ms."""

DECISIONS_PER_M = 8_000
"""Default budget in decisions per metre of track."""
SLOWEST_MPS = 5.0
"""Laps with a lower average speed are aborted."""


class NoLapError(UserError):
    """No plan reaches the finish; the message says how far the planner comes."""


def default_budget(track: Track) -> int:
    """Returns the default budget in decisions, enough for a very good lap."""
    return int(DECISIONS_PER_M * track.length_m)


def find_reference(
    track: Track,
    simulator: SimulatorParams,
    table: ActionTable,
    seed: int,
    budget: int,
    on_lap: OnLap = lambda _decisions, _time_ms: None,
) -> Reference:
    """Searches for a near time-optimal lap; deterministic.

    Args:
        track: the track.
        simulator: physics.
        table: actions.
        seed: seed of all plans.
        budget: decisions to simulate, after which no further lap begins; at least one is driven.
        on_lap: called after each lap, once one has finished.

    Raises:
        NoLapError: if no lap reaches the finish.
    """
    planner = Planner(track, simulator.physics, table, 1, EXACT, seed=seed)
    cars = Simulator(track, 1, simulator, table)
    start, furthest_m, counted = cars.save(), 0.0, 0
    time_ms, fastest, plans = None, np.empty(0, np.int64), planner.plans.values.copy()
    while counted == 0 or planner.spent < budget:
        cars.restore(start)
        actions = _drive_lap(planner, cars)
        furthest_m = max(furthest_m, float(cars.along_m[0]))
        lap_ms = int(cars.gate_time_ms[0, -1])
        if cars.is_finished[0] and (time_ms is None or lap_ms < time_ms):
            time_ms, fastest, plans = lap_ms, actions, planner.plans.values.copy()
        elif time_ms is not None:
            planner.plans.values[:] = plans
        if time_ms is not None:
            on_lap(planner.spent - counted, time_ms)
        counted = planner.spent
    if time_ms is None:
        message = f"the planner does not reach the finish of {track.name!r}: it comes to {furthest_m:.0f} m of "
        raise NoLapError(f"{message}{track.length_m:.0f} m", hint="Another seed may; more decisions do not help.")
    return Reference(
        track_uid=track.uid,
        geometry=geometry_hash(track),
        physics=physics_hash(simulator),
        ticks_per_action=table.decision_ticks,
        time_ms=time_ms,
        seed=seed,
        budget=budget,
        actions=fastest,
        searched_ms=(time_ms,),
    )


def _drive_lap(planner: Planner, cars: Simulator) -> NDArray[np.int64]:
    """Drives one car to the finish, off the track or out of time; returns its decisions [T]."""
    actions: list[int] = []
    most_ms = 1000.0 * cars.track.length_m / SLOWEST_MPS
    while not (cars.is_finished[0] or cars.is_off_track[0]) and len(actions) * cars.table.duration_ms < most_ms:
        actions.append(int(planner.actions(cars.save())[0]))
        cars.step(np.array(actions[-1:]))
    return np.array(actions)


def search_with_progress(
    track: Track, simulator: SimulatorParams, table: ActionTable, seed: int, budget: int
) -> Reference:
    """Searches for a reference lap with a progress bar; see `find_reference`.

    Laps are not interrupted, so the search may exceed the budget; the displayed total then grows.
    """
    with Progress(f"reference: {track.name}", budget, "decisions") as progress:

        def on_lap(spent: int, time_ms: int) -> None:
            if progress.done == 0 and spent > budget:
                say(f"reference: the first lap alone takes {spent:,} decisions, and is left as it is")
            progress.total = max(budget, progress.done + spent)
            progress.advance(spent, best_s=time_ms / 1000.0)

        return find_reference(track, simulator, table, seed, budget, on_lap)
