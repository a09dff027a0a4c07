"""Draws the road from above (surfaces, edges, gates, scale bar) for track and race plots."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from numpy.typing import NDArray

from rulka.contracts.observation import MATERIAL_GROUP, ZONE_SPACING_M
from rulka.report.theme import BLUE, GREEN, INK, MUTED, PINK
from rulka.tracks.top_view import TopView, road_edges
from rulka.tracks.track import DROP, VERGE, WALL, Track

CHUNK_ZONES = 24
"""Zones drawn as one piece. Higher pieces are drawn on top, so that bridges cover the road below."""
SURFACES = ("asphalt", "grass", "dirt", "turbo", "other")
"""Names of the groups in `rulka.contracts.observation.MATERIAL_GROUP`; materials without a group count as the last."""
SURFACE_COLOURS = ("#aeb5c0", "#8cbf6f", "#c88d52", "#f0b400", "#cfc6e3")
LABEL_AWAY_PT = 11.0


def groups_of(track: Track) -> NDArray[np.int64]:
    """Returns [Z] index into `SURFACES`."""
    return MATERIAL_GROUP[track.material] % len(SURFACES)


def draw_top(axes: Axes, track: Track, view: TopView, *, gate_labels: bool = False) -> None:
    """Draws a track from above (zorder 2 to 3), its gates above that, optionally labelled, and a scale bar."""
    edges = road_edges(track, view)
    left, right = edges
    quads = np.stack([left[:-1], left[1:], right[1:], right[:-1]], axis=1)
    sides = np.stack([np.stack([side[:-1], side[1:]], axis=1) for side in edges], axis=1)
    colours = np.array(SURFACE_COLOURS)[groups_of(track)[:-1]]
    strokes = {VERGE: (MUTED, 0.6), WALL: (INK, 1.3), DROP: (BLUE, 1.3)}
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
    _draw_gates(axes, track, edges, gate_labels=gate_labels)
    _draw_scale(axes, edges)


def _draw_gates(axes: Axes, track: Track, edges: NDArray[np.float64], *, gate_labels: bool) -> None:
    last = track.num_zones - 1
    zones = np.round(track.gate_m / ZONE_SPACING_M).astype(int).clip(0, last)
    names = [f"{at_m:,.0f} m" if gate_labels else "" for at_m in track.gate_m[:-1]]
    colours = {0: GREEN, last: PINK}
    for zone, name in zip((0, *zones[:-1], last), ("start", *names, "finish"), strict=True):
        is_end, middle, ends = zone in colours, edges[:, zone].mean(axis=0), edges[:, zone]
        over = middle + (ends - middle) * (1.7 if is_end else 1.25)
        left = (ends[0] - middle) / np.linalg.norm(ends[0] - middle)
        colour = colours.get(zone, INK)
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


def _draw_scale(axes: Axes, edges: NDArray[np.float64]) -> None:
    """Draws a scale bar of a round length in the lower right corner."""
    low, high = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
    length_m = 10.0 ** np.floor(np.log10((high[0] - low[0]) / 5.0))
    length_m *= 5.0 if (high[0] - low[0]) / length_m > 25.0 else 2.0 if (high[0] - low[0]) / length_m > 10.0 else 1.0
    x, y = high[0] - length_m, low[1] - 6.0
    axes.plot([x, x + length_m], [y, y], color=MUTED, linewidth=2.0, solid_capstyle="butt")
    axes.text(x + length_m / 2, y + 2.5, f"{length_m:g} m", ha="center", va="bottom", fontsize=8.5, color=MUTED)
