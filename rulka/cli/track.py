"""What `rulka track` does: lists the campaign, tells a track's facts, and draws tracks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rulka.folders import TRACKS
from rulka.outputs import new_file
from rulka.report.theme import to_png
from rulka.report.track_plot import track_plot, track_sheet
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.facts import track_facts
from rulka.tracks.find import find_track


def show_track(name: str, out: Path | None) -> tuple[dict[str, Any], str]:
    """Returns the facts of a track, also as text, and draws it where `out` names a PNG file.

    Raises:
        UserError: if there is no such track, or the picture cannot be written.
    """
    track = find_track(name, TRACKS)
    _draw(out, lambda: track_plot(track))
    facts = track_facts(track)
    return facts, "\n".join(f"{key:14}{'' if value is None else value}" for key, value in facts.items())


def list_campaign(out: Path | None) -> tuple[list[dict[str, Any]], str]:
    """Returns the facts of every track of the campaign, also as a table, and draws all on one sheet where asked."""
    tracks = [campaign_track(entry.slug) for entry in CAMPAIGN]
    _draw(out, lambda: track_sheet(tracks))
    facts = [{"slug": entry.slug, **track_facts(track)} for entry, track in zip(CAMPAIGN, tracks, strict=True)]
    lines = [f"{'slug':18}{'name':20}{'difficulty':12}{'length':>8}{'climb':>8}  features"]
    for entry, found in zip(CAMPAIGN, facts, strict=True):
        climb, length = f"{found['climb_m']:.0f} m", f"{entry.length_m:,.0f} m"
        lines.append(f"{entry.slug:18}{entry.name:20}{entry.style.name:12}{length:>8}{climb:>8}  {entry.features}")
    return facts, "\n".join(lines)


def _draw(path: Path | None, draw: Callable[[], Figure]) -> None:
    if path is not None:
        with new_file(path) as beside:
            beside.write_bytes(to_png(draw) or b"")
