"""Plots of races: driven lines, and time gained along the track.

Public plot functions return one figure, or None if there is no data; `theme.to_png` applies the style.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rulka.evaluation.results import MPS_TO_KMH, Evaluation, RaceResult, best_race, median_race, time_at_distance_s
from rulka.machine.errors import counted
from rulka.report.road import draw_top
from rulka.report.theme import EDGE, INK, MUTED, ORANGE, SPEED_COLOURS, WIDTH_IN, colours_of
from rulka.tracks.top_view import TopView, road_edges, top_view
from rulka.tracks.track import Track

DISTANCE_STEP_M = 1.0
FAR_BEHIND = 1.5
"""Lower limit of the split chart, as a multiple of the largest deficit at the finish."""
MARGIN_M = 14.0
WIDE = 1.35
"""From this width-to-height ratio of the track on, panels are stacked vertically."""


def map_plot(evaluation: Evaluation) -> Figure | None:
    """Draws all contestants' races except the random policy's, the demonstrations and the reference lap.

    The best race of each panel is coloured by speed.
    """
    panels = panels_of(evaluation)
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
        draw_top(axes, evaluation.track, view)
        _draw_races(axes, races, view, speed_scale)
        axes.set_title(title)
    lines = plt.cm.ScalarMappable(norm=speed_scale, cmap=SPEED_COLOURS)
    figure.colorbar(
        lines, ax=list(places.flat), label="speed (km/h)", location="bottom", aspect=60, pad=0.015, shrink=0.5
    )
    return figure


def panels_of(evaluation: Evaluation) -> list[tuple[str, list[RaceResult]]]:
    """Returns title and races of each panel of `map_plot`."""
    panels = [(_title(c.label, c.races), c.races) for c in evaluation.contestants if c.key != "random"]
    if evaluation.best_demonstration:
        panels.append((_title("Demonstrations", evaluation.demonstrations), evaluation.demonstrations))
    if evaluation.reference:
        panels.append((_title("Reference lap", [evaluation.reference]), [evaluation.reference]))
    return panels


def _title(label: str, races: list[RaceResult]) -> str:
    best = best_race(races)
    if best is None or best.time_s is None:
        return f"{label}: none of {counted(len(races), 'race')} finished"
    return f"{label}: {counted(len(races), 'race')}, the best ({best.time_s:.2f} s) in colour"


def _draw_races(axes: Axes, races: list[RaceResult], view: TopView, speed_scale: Normalize) -> None:
    best = best_race(races)
    for race in races:
        path = view(race.position_m)
        if race is not best:
            axes.plot(path[:, 0], path[:, 1], color=MUTED, linewidth=0.7, alpha=0.6, zorder=4)
        if not race.is_finished:
            axes.plot(path[-1, 0], path[-1, 1], "x", color=ORANGE, markersize=6, markeredgewidth=1.6, zorder=4)
    if best is None:
        return
    path, speed_kmh = view(best.position_m), best.speed_mps * MPS_TO_KMH
    segments = np.stack([path[:-1], path[1:]], axis=1)
    axes.plot(path[:, 0], path[:, 1], color=INK, linewidth=3.8, alpha=0.55, solid_capstyle="round", zorder=4)
    line = LineCollection(
        list(segments), cmap=SPEED_COLOURS, norm=speed_scale, linewidths=2.6, capstyle="round", zorder=4
    )
    line.set_array((speed_kmh[:-1] + speed_kmh[1:]) / 2.0)
    axes.add_collection(line)


def split_chart(evaluation: Evaluation) -> Figure | None:
    """Draws each race's time gap to the best demonstration along the track; up is ahead."""
    best, median = evaluation.best_demonstration, median_race(evaluation.demonstrations)
    if best is None:
        return None
    length_m, gate_m = evaluation.track.length_m, evaluation.track.gate_m
    distance_m = np.append(np.arange(0.0, length_m, DISTANCE_STEP_M), length_m)
    best_s = time_at_distance_s(best, distance_m)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 4.8), layout="constrained")
    _mark_gates(axes, evaluation.track)
    axes.axhline(0.0, color=INK, linewidth=1.6, label="best demonstration")
    lines = _split_lines(evaluation)
    if median is not None and median is not best:
        lines.append(("median demonstration", median, MUTED, "--"))
    if evaluation.reference is not None:
        lines.append(("reference lap", evaluation.reference, INK, "-."))
    at_finish: list[float] = []
    for label, race, colour, dash in lines:
        behind_s = time_at_distance_s(race, distance_m) - best_s
        axes.plot(distance_m, behind_s, color=colour, linestyle=dash, label=label)
        axes.plot(gate_m, np.interp(gate_m, distance_m, behind_s), "o", color=colour, markersize=4.5)
        driven = np.flatnonzero(np.isfinite(behind_s))
        if 0 < len(driven) < len(behind_s):
            last = driven[-1]
            axes.plot(distance_m[last], behind_s[last], "x", color=colour, markersize=8, markeredgewidth=2)
        at_finish += [behind_s[-1]] if race.is_finished else []
    # One very slow race must not flatten the others.
    low, high = axes.get_ylim()
    highest = max(1.0, FAR_BEHIND * max(at_finish)) if at_finish else high
    axes.set_ylim(min(high, highest), low)
    axes.set(xlabel="distance along the track (m)", ylabel="time behind (s); up is ahead", xlim=(0, distance_m[-1]))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _split_lines(evaluation: Evaluation) -> list[tuple[str, RaceResult, str, str]]:
    """Returns label, race, colour and dash of each contestant's median race (else furthest) and the agent's best."""
    colours = colours_of(evaluation)
    lines: list[tuple[str, RaceResult, str, str]] = []
    for contestant in evaluation.contestants:
        best, middle = best_race(contestant.races), median_race(contestant.races)
        if contestant.key == "agent" and best is not None and middle is not None:
            lines.append((f"{contestant.label}, best race", best, colours["agent"], ":"))
        if contestant.key != "random" and best is not None:
            name = f"{contestant.label}, median race" if middle else f"{contestant.label}, furthest race"
            lines.append((name, middle or best, colours[contestant.key], "-"))
    return lines


def _mark_gates(axes: Axes, track: Track) -> None:
    axes.grid(visible=False, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(10))
    for number, gate_m in enumerate(track.gate_m, start=1):
        axes.axvline(gate_m, color=EDGE, linewidth=0.9, linestyle=(0, (1, 2)))
        name = "finish" if number == len(track.gate_m) else f"gate {number}"
        axes.annotate(
            name,
            (gate_m, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right" if name == "finish" else "center",
            color=MUTED,
            fontsize=8.5,
        )
