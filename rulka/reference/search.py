"""Finds a reference lap: a racing line first, then single decisions."""

from __future__ import annotations

import sys

import numpy as np

from rulka.actions import ActionTable
from rulka.params import SimulatorParams
from rulka.progress import Progress
from rulka.reference.expand import Expander, OnSpent
from rulka.reference.lap import Reference, geometry_hash, physics_hash
from rulka.reference.line import LineSearch
from rulka.reference.polish import drive_lap, polish
from rulka.tracks.track import Track

DECISIONS_PER_M = 25_000
"""Budget for each metre of track where none is given."""
LINE_SHARE = 0.75
"""Share of the budget for the racing line."""
SLOWEST_MPS = 5.0
"""A first lap slower than this on average is given up."""


def default_budget(track: Track) -> int:
    """Returns how many decisions to simulate for a very good lap."""
    return int(DECISIONS_PER_M * track.length_m)


def find_reference(
    track: Track,
    simulator: SimulatorParams,
    table: ActionTable,
    seed: int,
    budget: int,
    on_spent: OnSpent = lambda _decisions, _time_ms: None,
) -> Reference | None:
    """Searches a lap near the fastest possible; the same for equal arguments.

    Args:
        track: the track.
        simulator: physics.
        table: actions.
        seed: of all trials.
        budget: decisions to simulate, about; a first lap is driven whatever it costs.
        on_spent: called after each round.

    Returns:
        The lap; None where no lap reaches the finish.
    """
    generator = np.random.default_rng(seed)
    slowest = int(track.length_m / SLOWEST_MPS * 1000.0 / table.duration_ms) + 1
    line = LineSearch(track, simulator, table, slowest)
    planned = line.first_lap(generator)
    if planned is None:
        return None
    on_spent(line.spent, planned.finish_ms)
    planned = line.improve(planned, int(budget * LINE_SHARE) - line.spent, generator, on_spent)
    expander = Expander(track, simulator, table)
    lap = drive_lap(expander, planned.actions)
    if lap is None:
        return None
    lap = polish(expander, lap, table.num_actions, budget - line.spent, generator, on_spent)
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
    """Searches a reference lap and shows how far it is; None where no lap reaches the finish.

    The first lap is driven whatever it costs, and rounds are not broken off, so that more than the budget may be spent:
    the total shown then grows.
    """
    with Progress(f"reference: {track.name}", budget, "decisions") as progress:

        def on_spent(spent: int, time_ms: int) -> None:
            if progress.done == 0 and spent > budget:
                sys.stdout.write(f"reference: the first lap alone takes {spent:,} decisions, and is left as it is\n")
            progress.total = max(budget, progress.done + spent)
            progress.advance(spent, best_s=time_ms / 1000.0)

        return find_reference(track, simulator, table, seed, budget, on_spent)
