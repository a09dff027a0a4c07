"""Tracks: list the campaign, show and draw one track, search near-optimal laps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rulka.cli.options import AsJson, OneTrack, report, say, say_json, stdout_to_stderr
from rulka.stages.folders import TRACKS
from rulka.stages.outputs import check_file, new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def list_(out: Path | None = None, as_json: AsJson = False) -> None:
    """List the tracks of the campaign.

    Example: `rulka track list --out campaign.png`

    Args:
        out: draw all of them into this PNG file.
        as_json: print a JSON list.
    """
    from rulka.report.track_plot import track_sheet
    from rulka.tracks.campaign import CAMPAIGN, campaign_track
    from rulka.tracks.facts import track_facts

    tracks = [campaign_track(entry.slug) for entry in CAMPAIGN]
    _draw(out, lambda: track_sheet(tracks))
    facts = [{"slug": entry.slug, **track_facts(track)} for entry, track in zip(CAMPAIGN, tracks, strict=True)]
    lines = [f"{'slug':18}{'name':20}{'difficulty':12}{'length':>8}{'climb':>8}  features"]
    for entry, found in zip(CAMPAIGN, facts, strict=True):
        climb, length = f"{found['climb_m']:.0f} m", f"{entry.length_m:,.0f} m"
        lines.append(f"{entry.slug:18}{entry.name:20}{entry.style.name:12}{length:>8}{climb:>8}  {entry.features}")
    report(facts, lambda: "\n".join(lines), as_json)


def show(name: OneTrack, /, out: Path | None = None, as_json: AsJson = False) -> None:
    """Show the facts of a track, and draw it.

    Example: `rulka track show last-light --out last-light.png`

    Args:
        name: a slug of the campaign, a track file, or the uid of a track in data/races.
        out: draw it into this PNG file.
        as_json: print one JSON object.
    """
    from rulka.report.track_plot import track_plot
    from rulka.tracks.facts import track_facts
    from rulka.tracks.find import find_track

    track = find_track(name, TRACKS)
    _draw(out, lambda: track_plot(track))
    facts = track_facts(track)
    lines = [f"{key:14}{'' if value is None else value}" for key, value in facts.items()]
    report(facts, lambda: "\n".join(lines), as_json)


def _draw(out: Path | None, draw: Callable[[], Figure]) -> None:
    """Writes a figure as PNG if `out` is given."""
    from rulka.report.theme import to_png

    if out is not None:
        with new_file(check_file(out, ".png")) as beside:
            beside.write_bytes(to_png(draw) or b"")


def reference(
    track: OneTrack,
    /,
    seed: int = 1,
    searches: int = 1,
    budget: int | None = None,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Search a near-optimal lap and write it as an input script.

    Example: `rulka track reference copper-oval --searches 3 --out lap.txt`

    Args:
        track: a slug of the campaign, a track file, or the uid of a track in data/races.
        seed: of the first search.
        searches: number of searches, each with the next seed. The fastest lap is written, with the times of all
            searches.
        budget: approximate number of decisions to simulate; if omitted, 8,000 per metre of track. The first lap is
            completed regardless of the budget.
        out: file to write; if omitted, <uid>.reference.txt in this folder.
        as_json: print one JSON object.
    """
    from rulka.params import read_params
    from rulka.reference.command import Searches, find_lap

    if out is not None:
        check_file(out)
    with stdout_to_stderr(as_json):
        found = find_lap(track, read_params(), Searches(seed, searches, budget), out, say)
    if as_json:
        say_json(found)
