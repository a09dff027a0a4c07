"""A track on paper: from above with its surfaces and edges, its profile and its bank; and the campaign on one sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rulka.observation import MATERIAL_GROUP, ZONE_SPACING_M
from rulka.report.theme import draw_scale
from rulka.tracks.facts import climb_m, difficulty_of
from rulka.tracks.top_view import TopView, road_edges, top_view
from rulka.tracks.track import DROP, VERGE, WALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from rulka.report.theme import Theme
    from rulka.tracks.track import Track

WIDTH_IN = 9.6
MARGIN_IN = 0.35
SHEET_COLUMNS, SHEET_WIDTH_IN, PANEL_HEIGHT_IN = 2, 9.6, 2.8
CHUNK_ZONES = 24
"""So many zones are drawn as one piece; higher pieces lie on top, so that bridges lead over what is below."""
SURFACES = ("asphalt", "grass", "dirt", "turbo", "other")
"""Names of the groups in `rulka.observation.MATERIAL_GROUP`; a material of no group is the last."""
SURFACE_COLOURS = ("#aeb5c0", "#8cbf6f", "#c88d52", "#f0b400", "#cfc6e3")
EDGES = {VERGE: "verge", WALL: "wall", DROP: "drop"}
LABEL_AWAY_PT = 11.0


def track_plot(track: Track, theme: Theme) -> Figure:
    """Draws one track: from above, and below that its height and bank along the way."""
    view = top_view(track)
    edges = road_edges(track, view)
    low, high = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
    top_in = float(np.clip(WIDTH_IN * (high[1] - low[1]) / (high[0] - low[0]), 2.2, 7.5)) + MARGIN_IN
    figure = plt.figure(figsize=(WIDTH_IN, top_in + 3.6), layout="constrained")
    top, profile, bank = figure.subplots(3, 1, height_ratios=(top_in, 1.5, 0.8))
    draw_top(top, track, view, theme, gate_labels=True)
    top.legend(handles=_legend(track, theme), loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=8)
    _draw_profile(profile, track, theme)
    profile.set_ylabel("height (m)")
    profile.tick_params(labelbottom=False)
    bank.plot(_along(track), np.degrees(track.bank_rad), color=theme.blue)
    bank.set_ylabel("bank (°)\nleft side up +")
    bank.set_xlabel("distance (m)")
    bank.set_xlim(0.0, track.length_m)
    reach = max(5.0, 1.15 * float(np.degrees(np.abs(track.bank_rad)).max()))
    bank.set_ylim(-reach, reach)
    figure.suptitle(_headline(track), x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=theme.ink)
    return figure


def track_sheet(tracks: Sequence[Track], theme: Theme) -> Figure:
    """Draws many tracks on one sheet, each from above with its profile, every one filling its place."""
    rows = -(-len(tracks) // SHEET_COLUMNS)
    figure = plt.figure(figsize=(SHEET_WIDTH_IN, rows * PANEL_HEIGHT_IN + 0.35), layout="constrained")
    places = figure.subfigures(rows, SHEET_COLUMNS, wspace=0.03, hspace=0.03, squeeze=False)
    for number, (place, track) in enumerate(zip(places.flat, tracks, strict=False), start=1):
        top, profile = place.subplots(2, 1, height_ratios=(5.0, 0.8))
        draw_top(top, track, top_view(track), theme, gate_labels=False)
        _draw_profile(profile, track, theme)
        profile.tick_params(labelsize=7.5)
        profile.locator_params(axis="y", nbins=2)
        profile.grid(visible=False)
        place.suptitle(f"{number}  {_headline(track)}", x=0.02, ha="left", fontsize=10, fontweight="bold")
    handles = {handle.get_label(): handle for track in tracks for handle in _legend(track, theme)}
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


def _groups(track: Track) -> NDArray[np.int64]:
    """Returns [Z] index into `SURFACES`."""
    return MATERIAL_GROUP[track.material] % len(SURFACES)


def draw_top(axes: Axes, track: Track, view: TopView, theme: Theme, *, gate_labels: bool = False) -> None:
    """Draws a track from above, in zorder 2 to 3, with its gates above that, which may be labelled, and a scale."""
    edges = road_edges(track, view)
    left, right = edges
    quads = np.stack([left[:-1], left[1:], right[1:], right[:-1]], axis=1)
    sides = np.stack([np.stack([side[:-1], side[1:]], axis=1) for side in edges], axis=1)
    colours = np.array(SURFACE_COLOURS)[_groups(track)[:-1]]
    strokes = {VERGE: (theme.muted, 0.6), WALL: (theme.ink, 1.3), DROP: (theme.blue, 1.3)}
    for start in range(0, track.num_zones - 1, CHUNK_ZONES):
        part = slice(start, min(start + CHUNK_ZONES, track.num_zones - 1))
        order = 2.0 + 1e-3 * float(track.centre_m[part, 1].mean())
        tint = list(colours[part])
        axes.add_collection(
            PolyCollection(list(quads[part]), facecolors=tint, edgecolors=tint, linewidths=0.4, zorder=order)
        )
        for kind, (colour, width) in strokes.items():
            lines = sides[part][track.edge[part] == kind].reshape(-1, 2, 2)
            axes.add_collection(
                LineCollection(list(lines), colors=colour, linewidths=width, capstyle="round", zorder=order)
            )
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.autoscale_view()
    axes.margins(0.05, 0.08)
    _draw_gates(axes, track, edges, theme, gate_labels=gate_labels)
    draw_scale(axes, edges, theme)


def _draw_gates(axes: Axes, track: Track, edges: NDArray[np.float64], theme: Theme, *, gate_labels: bool) -> None:
    last = track.num_zones - 1
    zones = np.round(track.gate_m / ZONE_SPACING_M).astype(int).clip(0, last)
    names = [f"{at_m:,.0f} m" if gate_labels else "" for at_m in track.gate_m[:-1]]
    colours = {0: theme.green, last: theme.pink}
    for zone, name in zip((0, *zones[:-1], last), ("start", *names, "finish"), strict=True):
        is_end, middle, ends = zone in colours, edges[:, zone].mean(axis=0), edges[:, zone]
        over = middle + (ends - middle) * (1.7 if is_end else 1.25)
        left = (ends[0] - middle) / np.linalg.norm(ends[0] - middle)
        colour = colours.get(zone, theme.ink)
        axes.plot(over[:, 0], over[:, 1], color=colour, linewidth=3.0 if is_end else 1.3, zorder=3.5)
        axes.annotate(
            name,
            over[0],
            left * LABEL_AWAY_PT * (1.0 + abs(left[0])),  # text is wide
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            color=colour,
            fontweight="bold" if is_end else "normal",
            zorder=6,
            bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "alpha": 0.7, "linewidth": 0.0},
        )


def _draw_profile(axes: Axes, track: Track, theme: Theme) -> None:
    """Draws the height along the way over its surface, with a line at every gate."""
    along, height = _along(track), track.centre_m[:, 1] - track.centre_m[:, 1].min()
    top = max(float(height.max()), 10.0)
    groups = _groups(track)
    for group in np.unique(groups):
        axes.fill_between(along, height, -0.1 * top, where=groups == group, color=SURFACE_COLOURS[group], linewidth=0)
    axes.plot(along, height, color=theme.ink, linewidth=1.2)
    for at_m in track.gate_m[:-1]:
        axes.axvline(at_m, color=theme.muted, linewidth=0.7, linestyle=(0, (3, 3)))
    axes.set_xlim(0.0, track.length_m)
    axes.set_ylim(-0.1 * top, 1.15 * top)


def _legend(track: Track, theme: Theme) -> list[Patch | Line2D]:
    """Returns what there is to explain about one track."""
    shown = [
        Patch(facecolor=SURFACE_COLOURS[group], label=SURFACES[group]) for group in sorted(set(_groups(track).tolist()))
    ]
    colours = {VERGE: theme.muted, WALL: theme.ink, DROP: theme.blue}
    kinds = sorted(set(track.edge.tolist()))
    return shown + [Line2D([], [], color=colours[kind], linewidth=1.7, label=EDGES[kind]) for kind in kinds]
