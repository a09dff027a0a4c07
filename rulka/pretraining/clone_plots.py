"""Pictures of a cloned policy, drawn of its measures: by the stage, and in the report of an evaluation.

They take whatever look matplotlib is set to; see `rulka.pretraining.clone_measures` for what they show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rulka.actions import CONTROLS

KEYS = (("accelerate", "gas"), ("brake", "brake"), ("left", "left"), ("right", "right"))
"""Rows of a timeline from above: names of keys in `Controls`, and for people."""


class Colours(NamedTuple):
    """Whose are what: names that matplotlib knows."""

    driver: str
    policy: str
    other: str


ON_WHITE = Colours("#667080", "#00835f", "#d55e00")


def draw_calibration(calibration: Mapping[str, Any], colours: Colours = ON_WHITE) -> Figure:
    """Draws how often the most likely action is right over how likely the policy finds it: a reliability diagram.

    Args:
        calibration: with the recorded previous actions, and with its own.
        colours: of the policy, and of the same with its own actions.
    """
    figure = _figure(5.6, 5.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=colours.driver, linewidth=1.0, linestyle="--", label="as sure as it is right")
    shown = {
        "recorded_actions": ("seeing the recorded actions", "o-", colours.policy),
        "own_actions": ("seeing its own", "s--", colours.other),
    }
    for name, (label, style, colour) in shown.items():
        bins = calibration[name]["bins"]
        error = calibration[name]["expected_calibration_error"]
        places, shares = ([each[key] for each in bins] for key in ("confidence", "accuracy"))
        axes.plot(places, shares, style, markersize=4.5, color=colour, label=f"{label}: error {error:.1%}")
    axes.set(xlabel="probability of its most likely action", ylabel="share of frames where that was done")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(loc="upper left", fontsize=8.5, frameon=False)
    return figure


def draw_timelines(timelines: Sequence[Mapping[str, Any]], colours: Colours = ON_WHITE) -> Figure:
    """Draws when the policy holds which key, each below the driver's, for some races.

    Args:
        timelines: at least one.
        colours: of driver and policy.
    """
    figure = _figure(9.6, 0.5 + 2.6 * len(timelines))
    for axes, timeline in zip(np.atleast_1d(figure.subplots(len(timelines), 1)), timelines, strict=True):
        _draw_timeline(axes, timeline, colours)
    return figure


def _draw_timeline(axes: Axes, timeline: Mapping[str, Any], colours: Colours) -> None:
    for row, (key, _) in enumerate(KEYS):
        for who, colour, top in (("driver", colours.driver, row + 0.1), ("policy", colours.policy, row + 0.48)):
            spans = _held(timeline[who], timeline["end_ms"], key)
            axes.broken_barh(spans, (top, 0.34), color=colour, linewidth=0, label=who if row == 0 else None)
    axes.set_yticks(np.arange(len(KEYS)) + 0.46, [name for _, name in KEYS])
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(len(KEYS), 0), xlim=(0, timeline["end_ms"] / 1000.0), xlabel="race time (s)")
    axes.set_title(f"race {timeline['race_id']}", loc="left", fontsize=9.5)
    axes.grid(visible=False)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=8.5, frameon=False)


def _held(changes: Sequence[Sequence[int]], end_ms: int, key: str) -> list[tuple[float, float]]:
    """Returns when a key is held, as beginnings and lengths in seconds."""
    ends_ms = [*(begin_ms for begin_ms, _ in changes[1:]), end_ms]
    spans = zip(changes, ends_ms, strict=True)
    return [(t / 1000.0, (end - t) / 1000.0) for (t, action), end in spans if getattr(CONTROLS[action], key)]


def _figure(width_in: float, height_in: float) -> Figure:
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
