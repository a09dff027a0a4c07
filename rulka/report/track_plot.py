"""Draws a track (top view, height profile, bank), and the whole campaign on one sheet."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from rulka.contracts.observation import ZONE_SPACING_M
from rulka.report.road import SURFACE_COLOURS, SURFACES, draw_top, groups_of
from rulka.report.theme import BLUE, INK, MUTED, WIDTH_IN
from rulka.tracks.facts import climb_m, difficulty_of
from rulka.tracks.top_view import road_edges, top_view
from rulka.tracks.track import DROP, VERGE, WALL, Track

MARGIN_IN = 0.35
SHEET_COLUMNS, PANEL_HEIGHT_IN = 2, 2.8
EDGES = {VERGE: "verge", WALL: "wall", DROP: "drop"}


def track_plot(track: Track) -> Figure:
    """Draws one track: top view, height profile and bank along the centre line."""
    view = top_view(track)
    edges = road_edges(track, view)
    low, high = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
    top_in = float(np.clip(WIDTH_IN * (high[1] - low[1]) / (high[0] - low[0]), 2.2, 7.5)) + MARGIN_IN
    figure = plt.figure(figsize=(WIDTH_IN, top_in + 3.6), layout="constrained")
    top, profile, bank = figure.subplots(3, 1, height_ratios=(top_in, 1.5, 0.8))
    draw_top(top, track, view, gate_labels=True)
    top.legend(handles=_legend(track), loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=8)
    _draw_profile(profile, track)
    profile.set_ylabel("height (m)")
    profile.tick_params(labelbottom=False)
    bank.plot(_along(track), np.degrees(track.bank_rad), color=BLUE)
    bank.set_ylabel("bank (°)\nleft side up +")
    bank.set_xlabel("distance (m)")
    bank.set_xlim(0.0, track.length_m)
    reach = max(5.0, 1.15 * float(np.degrees(np.abs(track.bank_rad)).max()))
    bank.set_ylim(-reach, reach)
    figure.suptitle(_headline(track), x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    return figure


def track_sheet(tracks: Sequence[Track]) -> Figure:
    """Draws many tracks on one sheet, each with top view and height profile, scaled to fill its panel."""
    rows = -(-len(tracks) // SHEET_COLUMNS)
    figure = plt.figure(figsize=(WIDTH_IN, rows * PANEL_HEIGHT_IN + 0.35), layout="constrained")
    places = figure.subfigures(rows, SHEET_COLUMNS, wspace=0.03, hspace=0.03, squeeze=False)
    for number, (place, track) in enumerate(zip(places.flat, tracks, strict=False), start=1):
        top, profile = place.subplots(2, 1, height_ratios=(5.0, 0.8))
        draw_top(top, track, top_view(track), gate_labels=False)
        _draw_profile(profile, track)
        profile.tick_params(labelsize=7.5)
        profile.locator_params(axis="y", nbins=2)
        profile.grid(visible=False)
        place.suptitle(f"{number}  {_headline(track)}", x=0.02, ha="left", fontsize=10, fontweight="bold")
    handles = {handle.get_label(): handle for track in tracks for handle in _legend(track)}
    # Surfaces first, then edges.
    ordered = sorted(handles.values(), key=lambda handle: isinstance(handle, Line2D))
    figure.legend(handles=ordered, loc="outside lower center", ncols=len(ordered))
    return figure


def _headline(track: Track) -> str:
    difficulty = difficulty_of(track)
    facts = [f"{track.length_m:,.0f} m", f"climbs {climb_m(track):.0f} m", *([difficulty] if difficulty else [])]
    return f"{track.name}: {', '.join(facts)}"


def _along(track: Track) -> NDArray[np.float64]:
    return np.arange(track.num_zones, dtype=np.float64) * np.float64(ZONE_SPACING_M)


def _draw_profile(axes: Axes, track: Track) -> None:
    """Draws the height profile, filled by surface, with a line at every gate but the finish."""
    along, height = _along(track), track.centre_m[:, 1] - track.centre_m[:, 1].min()
    top = max(float(height.max()), 10.0)
    groups = groups_of(track)
    for group in np.unique(groups):
        axes.fill_between(along, height, -0.1 * top, where=groups == group, color=SURFACE_COLOURS[group], linewidth=0)
    axes.plot(along, height, color=INK, linewidth=1.2)
    for at_m in track.gate_m[:-1]:
        axes.axvline(at_m, color=MUTED, linewidth=0.7, linestyle=(0, (3, 3)))
    axes.set_xlim(0.0, track.length_m)
    axes.set_ylim(-0.1 * top, 1.15 * top)


def _legend(track: Track) -> list[Patch | Line2D]:
    """Returns legend entries for the surfaces and edges that the track has."""
    shown = [
        Patch(facecolor=SURFACE_COLOURS[group], label=SURFACES[group])
        for group in sorted(set(groups_of(track).tolist()))
    ]
    colours = {VERGE: MUTED, WALL: INK, DROP: BLUE}
    kinds = sorted(set(track.edge.tolist()))
    return shown + [Line2D([], [], color=colours[kind], linewidth=1.7, label=EDGES[kind]) for kind in kinds]
