"""What `rulka track` does: lists the campaign, tells a track's facts, and draws tracks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rulka.folders import TRACKS
from rulka.outputs import check_file, new_file
from rulka.report.theme import LIGHT, to_png
from rulka.report.track_plot import track_plot, track_sheet
from rulka.tracks.campaign import CAMPAIGN, campaign_track
from rulka.tracks.facts import climb_m, track_facts
from rulka.tracks.find import find_track


def show_track(name: str, out: Path | None) -> dict[str, Any]:
    """Returns the facts of a track, and draws it where `out` names a PNG file.

    Raises:
        UserError: if there is no such track, or the picture cannot be written.
    """
    track = find_track(name, TRACKS)
    if out is not None:
        _write(out, to_png(lambda theme: track_plot(track, theme), LIGHT))
    return track_facts(track)


def show_campaign(out: Path | None) -> list[dict[str, Any]]:
    """Returns the facts of every track of the campaign, and draws them on one sheet where `out` names a PNG file."""
    tracks = [campaign_track(entry.slug) for entry in CAMPAIGN]
    if out is not None:
        _write(out, to_png(lambda theme: track_sheet(tracks, theme), LIGHT))
    return [{"slug": entry.slug, **track_facts(track)} for entry, track in zip(CAMPAIGN, tracks, strict=True)]


def format_campaign() -> str:
    """Returns the campaign as a table for people."""
    lines = [f"{'slug':18}{'name':20}{'difficulty':12}{'length':>8}{'climb':>8}  features"]
    for entry in CAMPAIGN:
        climb = f"{climb_m(campaign_track(entry.slug)):.0f} m"
        length = f"{entry.length_m:,.0f} m"
        lines.append(f"{entry.slug:18}{entry.name:20}{entry.style.name:12}{length:>8}{climb:>8}  {entry.features}")
    return "\n".join(lines)


def _write(path: Path, picture: bytes | None) -> None:
    with new_file(check_file(path, ".png")) as beside:
        beside.write_bytes(picture or b"")
