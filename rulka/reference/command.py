"""What `rulka reference` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rulka.actions import action_table
from rulka.errors import UserError
from rulka.folders import TRACKS
from rulka.outputs import new_file
from rulka.params import Params
from rulka.reference.lap import LAPS_DIR, Reference, StaleReferenceError, load_reference, store_reference
from rulka.reference.medals import medals_of
from rulka.reference.search import default_budget, search_with_progress
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.find import find_track
from rulka.tracks.track import Track

Say = Callable[[str], None]


class NoReferenceError(UserError):
    """A search that did not reach the finish."""


def find_for_track(name: str, params: Params, seed: int, budget: int | None, out: Path | None, say: Say) -> None:
    """Finds the reference lap of one track and writes it to `out`, `<uid>.reference.txt` when None.

    Raises:
        NoReferenceError: if no lap reaches the finish.
    """
    track = find_track(name, TRACKS)
    _find(track, params, seed, budget, out or Path(f"{track.uid}.reference.txt"), say)


def find_for_campaign(params: Params, seed: int, budget: int | None, say: Say) -> None:
    """Finds the laps of the campaign's tracks that have none, or a stale one, and writes each as soon as it is found.

    Raises:
        NoReferenceError: if no lap reaches the finish.
    """
    table = action_table(params.actions.ticks_per_action)
    for entry in CAMPAIGN:
        path, track = LAPS_DIR / f"{entry.slug}.txt", campaign_track(entry.slug)
        if path.exists():
            try:
                valid = load_reference(path, track, params.simulator, table)
            except StaleReferenceError as error:
                say(str(error))
            else:
                say(_line(track, valid))
                continue
        _find(track, params, seed, budget, path, say)


def _find(track: Track, params: Params, seed: int, budget: int | None, path: Path, say: Say) -> None:
    table = action_table(params.actions.ticks_per_action)
    spent = default_budget(track) if budget is None else budget
    if spent < 1:
        message = f"the budget must be at least one decision, got {spent}"
        raise UserError(message)
    if seed < 0:
        message = f"a seed is a whole number from 0, got {seed}"
        raise UserError(message)
    reference = search_with_progress(track, params.simulator, table, seed, spent)
    if reference is None:
        message = f"none of the cars that the search begins with reached the finish of {track.name!r}"
        hint = "A greater --budget does not help, as it goes into improving a lap; try another --seed."
        raise NoReferenceError(message, hint=hint)
    with new_file(path) as beside:
        store_reference(reference, table, beside)
    say(_line(track, reference))
    say(f"written to {path}")


def _line(track: Track, reference: Reference) -> str:
    medals = medals_of(reference.time_ms)
    times = ", ".join(
        f"{name.removesuffix('_ms')} {ms / 1000:.3f} s" for name, ms in zip(medals._fields, medals, strict=True)
    )
    return f"{track.name}: {times}"
