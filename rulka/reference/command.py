"""What `rulka track reference` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rulka.actions import action_table
from rulka.errors import UserError
from rulka.folders import TRACKS
from rulka.outputs import new_file
from rulka.params import Params
from rulka.reference.lap import LAPS_DIR, SEARCH, Reference, ReferenceLapError, load_reference, store_reference
from rulka.reference.medals import medals_of
from rulka.reference.search import default_budget, search_with_progress
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.find import find_track
from rulka.tracks.track import Track

Say = Callable[[str], None]


class NoReferenceError(UserError):
    """A search that did not reach the finish."""


class FoundLap(NamedTuple):
    """A reference lap, and where it lies.

    Attributes:
        track: that it was driven on.
        reference: the lap.
        file: of the lap.
    """

    track: Track
    reference: Reference
    file: Path

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON: medals as times, in milliseconds; all but the single decisions."""
        lap = self.reference
        facts = {"uid": self.track.uid, "track": self.track.name, "file": self.file.as_posix(), "driver": lap.driver}
        return facts | {**medals_of(lap.time_ms)._asdict(), "searched_ms": list(lap.searched_ms)}


class Searches(NamedTuple):
    """How to search.

    Attributes:
        seed: of the first; each further one takes the next.
        num_laps: how many, of which the fastest lap is taken.
        budget: decisions that each simulates; None for the default of a track.
    """

    seed: int = 1
    num_laps: int = 1
    budget: int | None = None


def find_for_track(name: str, params: Params, searches: Searches, out: Path | None, say: Say) -> FoundLap:
    """Finds the reference lap of one track and writes it to `out`, `<uid>.reference.txt` when None.

    Raises:
        NoReferenceError: if no lap reaches the finish.
    """
    track = find_track(name, TRACKS)
    return _find(track, params, searches, out or Path(f"{track.uid}.reference.txt"), say)


def find_for_campaign(params: Params, searches: Searches, say: Say) -> list[FoundLap]:
    """Finds the laps of the campaign's tracks, and writes each as soon as it is found; valid ones stay as they are.

    Raises:
        NoReferenceError: if no lap reaches the finish.
    """
    table, laps = action_table(params.actions.ticks_per_action), []
    for entry in CAMPAIGN:
        path, track = LAPS_DIR / f"{entry.slug}.txt", campaign_track(entry.slug)
        try:
            lap = FoundLap(track, load_reference(path, track, params.simulator, table), path)
            say(describe(track, lap.reference))
        except ReferenceLapError as error:  # missing, stale or damaged
            say(str(error))
            lap = _find(track, params, searches, path, say)
        laps.append(lap)
    return laps


def _find(track: Track, params: Params, searches: Searches, path: Path, say: Say) -> FoundLap:
    table = action_table(params.actions.ticks_per_action)
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
    laps = [search_with_progress(track, params.simulator, table, seed, budget) for seed in seeds]
    found = [lap for lap in laps if lap is not None]
    if not found:
        message = f"none of the cars that the search begins with reached the finish of {track.name!r}"
        hint = "A greater --budget does not help, as it goes into improving a lap; try another --seed."
        raise NoReferenceError(message, hint=hint)
    fastest = min(found, key=lambda lap: lap.time_ms)
    reference = replace(fastest, searched_ms=tuple(sorted(lap.time_ms for lap in found)))
    with new_file(path) as beside:
        store_reference(reference, table, beside)
    say(describe(track, reference))
    say(f"written to {path}")
    return FoundLap(track, reference, path)


def describe(track: Track, reference: Reference) -> str:
    """Returns the medals of a track in a line, who drove the first, and how far searches lie apart."""
    medals = medals_of(reference.time_ms)
    times = ", ".join(
        f"{name.removesuffix('_ms')} {ms / 1000:.3f} s" for name, ms in zip(medals._fields, medals, strict=True)
    )
    searched = [ms / 1000.0 for ms in reference.searched_ms]
    spread = f", {searched[0]:.3f} to {searched[-1]:.3f} s in {len(searched)} searches" if len(searched) > 1 else ""
    driver = "" if reference.driver == SEARCH else f", driven by {reference.driver}"
    return f"{track.name}: {times}{spread}{driver}"
