"""Implements `rulka track reference`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rulka.contracts.actions import action_table
from rulka.machine.errors import UserError
from rulka.params import Params
from rulka.reference.lap import SEARCH, Reference, store_reference
from rulka.reference.medals import medals_of
from rulka.reference.search import default_budget, search_with_progress
from rulka.stages.folders import TRACKS
from rulka.stages.outputs import new_file
from rulka.tracks.find import find_track
from rulka.tracks.track import Track

Say = Callable[[str], None]


class Searches(NamedTuple):
    """Settings of a series of searches.

    Attributes:
        seed: seed of the first search; the others use consecutive seeds.
        num_laps: number of searches; the fastest lap is kept.
        budget: decisions that each search simulates; None for the track's default.
    """

    seed: int = 1
    num_laps: int = 1
    budget: int | None = None


def find_lap(name: str, params: Params, searches: Searches, out: Path | None, say: Say) -> dict[str, Any]:
    """Finds the reference lap of a track and writes it to `out`, by default `<uid>.reference.txt`.

    Returns:
        Plain JSON: track, file and driver of the lap, its time and the medals, and the times of all searches, in ms.

    Raises:
        UserError: if a search finds no lap, or if the track does not exist or a setting of the searches is out of
            range.
    """
    track, table = find_track(name, TRACKS), action_table(params.actions.ticks_per_action)
    path = out or Path(f"{track.uid}.reference.txt")
    budget = default_budget(track) if searches.budget is None else searches.budget
    wrong = {
        f"the budget must be at least one decision, got {budget}": budget < 1,
        f"a seed is a whole number from 0, got {searches.seed}": searches.seed < 0,
        f"at least one search is needed, got {searches.num_laps}": searches.num_laps < 1,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise UserError(message)
    seeds = range(searches.seed, searches.seed + searches.num_laps)
    found = [search_with_progress(track, params.simulator, table, seed, budget) for seed in seeds]
    fastest = min(found, key=lambda lap: lap.time_ms)
    reference = replace(fastest, searched_ms=tuple(sorted(lap.time_ms for lap in found)))
    with new_file(path) as beside:
        store_reference(reference, table, beside)
    say(describe(track, reference))
    say(f"written to {path}")
    facts = {"uid": track.uid, "track": track.name, "file": path.as_posix(), "driver": reference.driver}
    medals = medals_of(track, reference.time_ms)
    times = {"lap_ms": reference.time_ms, **(medals._asdict() if medals else {})}
    return facts | times | {"searched_ms": list(reference.searched_ms)}


def describe(track: Track, reference: Reference) -> str:
    """Formats a lap's time, its track's medals, the spread of the searches and the driver as one line."""
    medals = medals_of(track, reference.time_ms)
    named = {"lap_ms": reference.time_ms} | (medals._asdict() if medals else {})
    times = ", ".join(f"{name.removesuffix('_ms')} {ms / 1000:.3f} s" for name, ms in named.items())
    searched = [ms / 1000.0 for ms in reference.searched_ms]
    spread = f", {searched[0]:.3f} to {searched[-1]:.3f} s in {len(searched)} searches" if len(searched) > 1 else ""
    driver = "" if reference.driver == SEARCH else f", driven by {reference.driver}"
    return f"{track.name}: {times}{spread}{driver}"
