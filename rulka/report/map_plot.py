"""Driven lines from above, coloured by speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize

from rulka.evaluation.results import MPS_TO_KMH, RaceResult, best_race
from rulka.evaluation.summary import Evaluation
from rulka.report.theme import SPEED_COLOURS
from rulka.tracks.top_view import TopView, top_view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from rulka.report.theme import Theme
    from rulka.tracks.track import Track

WIDTH_IN = 9.6
MARGIN_M = 14.0
WIDE = 1.35
"""A track at least this many times as long as high is shown in panels below one another."""


def map_plot(evaluation: Evaluation, theme: Theme) -> Figure | None:
    """Draws the races of the agent, the cloned policy and the best demonstration, the best of each in colour."""
    panels = _panels(evaluation)
    if not panels:
        return None
    view = top_view(evaluation.track)
    edges = road_edges(evaluation.track, view)
    size_m = np.ptp(edges.reshape(-1, 2), axis=0) + 2 * MARGIN_M
    is_wide = size_m[0] >= WIDE * size_m[1]
    grid = (len(panels), 1) if is_wide else (1, len(panels))
    height_in = WIDTH_IN / grid[1] * size_m[1] / size_m[0] * grid[0] + 0.35 * grid[0] + 0.75
    figure, places = plt.subplots(*grid, figsize=(WIDTH_IN, height_in), layout="constrained", squeeze=False)
    fastest_kmh = max(float(race.speed_mps.max()) for _, races in panels for race in races) * MPS_TO_KMH
    speed_scale = Normalize(0.0, fastest_kmh)
    for axes, (title, races) in zip(places.flat, panels, strict=True):
        _draw_road(axes, evaluation.track, view, edges, theme)
        _draw_races(axes, races, view, speed_scale, theme)
        axes.set_title(title)
    lines = plt.cm.ScalarMappable(norm=speed_scale, cmap=SPEED_COLOURS)
    figure.colorbar(
        lines, ax=list(places.flat), label="speed (km/h)", location="bottom", aspect=60, pad=0.015, shrink=0.5
    )
    return figure


def _panels(evaluation: Evaluation) -> list[tuple[str, list[RaceResult]]]:
    shown = [c for c in evaluation.contestants if c.key in ("agent", "cloned")]
    panels = [(_title(c.label, c.races), c.races) for c in shown]
    if evaluation.best_demonstration:
        panels.append((_title("Demonstrations", evaluation.demonstrations), evaluation.demonstrations))
    return panels


def _title(label: str, races: list[RaceResult]) -> str:
    best = best_race(races)
    if best is None or best.time_s is None:
        return f"{label}: none of {len(races)} races finished"
    return f"{label}: {len(races)} races, the best ({best.time_s:.2f} s) in colour"


def road_edges(track: Track, view: TopView) -> NDArray[np.float64]:
    """Returns page coordinates [2, Z, 2] of the left and right edge of the road."""
    centre = view(track.centre_m)
    ahead = np.gradient(centre, axis=0)
    ahead /= np.maximum(np.linalg.norm(ahead, axis=1, keepdims=True), 1e-9)
    left = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1) * (track.width_m / 2.0)[:, None]
    return np.stack([centre + left, centre - left])


def _draw_road(axes: Axes, track: Track, view: TopView, edges: NDArray[np.float64], theme: Theme) -> None:
    outline = np.concatenate([edges[0], edges[1][::-1]])
    axes.fill(outline[:, 0], outline[:, 1], color=theme.road, linewidth=0)
    for edge in edges:
        axes.plot(edge[:, 0], edge[:, 1], color=theme.edge, linewidth=0.8)
    zone_m = np.linspace(0.0, track.length_m, track.num_zones)
    gates = np.searchsorted(zone_m, track.gate_m).clip(0, track.num_zones - 1)
    for zone, name in [(0, "start"), *((int(g), "") for g in gates[:-1]), (int(gates[-1]), "finish")]:
        ends = edges[:, zone]
        axes.plot(ends[:, 0], ends[:, 1], color=theme.ink if name else theme.muted, linewidth=2.2 if name else 1.0)
        if name:
            outward = ends[0] - view(track.centre_m[zone])
            at = ends[0] + outward / np.linalg.norm(outward) * 9.0
            axes.text(at[0], at[1], name, ha="center", va="center", fontsize=9, color=theme.ink)
    draw_scale(axes, edges, theme)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.02, 0.08)


def draw_scale(axes: Axes, edges: NDArray[np.float64], theme: Theme) -> None:
    """Draws a bar of a round length in the lower right corner."""
    low, high = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
    length_m = 10.0 ** np.floor(np.log10((high[0] - low[0]) / 5.0))
    length_m *= 5.0 if (high[0] - low[0]) / length_m > 25.0 else 2.0 if (high[0] - low[0]) / length_m > 10.0 else 1.0
    x, y = high[0] - length_m, low[1] - 6.0
    axes.plot([x, x + length_m], [y, y], color=theme.muted, linewidth=2.0, solid_capstyle="butt")
    axes.text(x + length_m / 2, y + 2.5, f"{length_m:g} m", ha="center", va="bottom", fontsize=8.5, color=theme.muted)


def _draw_races(axes: Axes, races: list[RaceResult], view: TopView, speed_scale: Normalize, theme: Theme) -> None:
    best = best_race(races)
    for race in races:
        path = view(race.position_m)
        if race is not best:
            axes.plot(path[:, 0], path[:, 1], color=theme.muted, linewidth=0.7, alpha=0.45)
        if not race.is_finished:
            axes.plot(path[-1, 0], path[-1, 1], "x", color=theme.orange, markersize=6, markeredgewidth=1.6)
    if best is None:
        return
    path, speed_kmh = view(best.position_m), best.speed_mps * MPS_TO_KMH
    segments = np.stack([path[:-1], path[1:]], axis=1)
    axes.plot(path[:, 0], path[:, 1], color=theme.ink, linewidth=3.8, alpha=0.55, solid_capstyle="round")
    line = LineCollection(list(segments), cmap=SPEED_COLOURS, norm=speed_scale, linewidths=2.6, capstyle="round")
    line.set_array((speed_kmh[:-1] + speed_kmh[1:]) / 2.0)
    axes.add_collection(line)
