"""Pictures of a comparison: a plot of the leads of all pairs, and a side-by-side video of one pair."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from rulka.evaluation.results import RaceResult
from rulka.evaluation.statistics import Interval
from rulka.machine.errors import counted
from rulka.machine.progress import Progress
from rulka.operations.pairs import Comparison, Racer, TrackPairs
from rulka.params import Params
from rulka.report.theme import BLUE, EDGE, MUTED, WIDTH_IN, to_png
from rulka.video.hud import HudTexts
from rulka.video.race_video import VideoRace, frame_times_ms, race_frames, write_mp4

ROW_IN, AROUND_IN = 0.5, 1.5
SPREAD = 0.22
"""Dots of one row are spread this far to either side, so that equal leads do not overlap."""


def leads_png(comparison: Comparison) -> bytes:
    """Returns the plot of all leads as a PNG file."""
    return to_png(lambda: _leads(comparison)) or b""


def _leads(comparison: Comparison) -> Figure:
    rows = [(pairs.track.name, pairs.leads, pairs.interval(comparison.seed)) for pairs in comparison.tracks]
    if len(rows) > 1:
        rows.append(("all tracks", np.empty(0), comparison.interval))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, AROUND_IN + ROW_IN * len(rows)), layout="constrained")
    means = [float(pairs.leads.mean()) for pairs in comparison.tracks] + [comparison.lead]
    for place, ((_, leads, interval), mean) in enumerate(zip(rows, means, strict=False)):
        _draw_row(axes, place, leads, mean, interval)
    axes.axvline(0.0, color=MUTED, linewidth=1.0)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    reach = max(1.05 * float(np.abs(comparison.leads).max()), 0.01)
    axes.set_xlim(-reach, reach)
    names = comparison.second.name, comparison.first.name
    axes.set_xlabel(
        "{} ahead   \N{LEFTWARDS ARROW}   part of the track   \N{RIGHTWARDS ARROW}   {} ahead".format(*names)
    )
    pairs = counted(comparison.num_pairs, "pair")
    axes.set_title(f"Lead of {comparison.first.name} in {pairs}, mean and 95 % interval")
    return figure


def _draw_row(axes: Axes, place: int, leads: NDArray[np.float64], mean: float, interval: Interval) -> None:
    away = np.linspace(-SPREAD, SPREAD, len(leads)) if len(leads) > 1 else np.zeros(len(leads))
    axes.scatter(leads, place + away, s=14, color=EDGE, linewidths=0)
    colour = MUTED if interval.low <= 0.0 <= interval.high else BLUE
    axes.plot(interval, (place, place), color=colour, linewidth=4.0, solid_capstyle="butt")
    axes.plot(mean, place, "o", color=colour, markersize=8)


def typical_pair(comparison: Comparison) -> tuple[TrackPairs, int]:
    """Returns the pair with the median lead on the first track, as the track's pairs and its index."""
    pairs = comparison.tracks[0]
    order = np.argsort(pairs.leads, kind="stable")
    return pairs, int(order[(len(order) - 1) // 2])


def write_side_by_side(path: Path, comparison: Comparison, params: Params, stream: TextIO | None = None) -> str:
    """Writes a video of the typical pair, the first agent on the left; each has the other as its ghost.

    Args:
        path: MP4 file, twice as wide as `evaluate.video_width`. The first to end freezes on its last frame.
        comparison: the races.
        params: camera, and size and rate of the video.
        stream: stream for progress; None is standard output.

    Returns:
        A description of the pair.
    """
    pairs, number = typical_pair(comparison)
    ours, theirs = pairs.first[number], pairs.second[number]
    fps = params.evaluate.video_fps
    num_frames = len(frame_times_ms(max(ours.duration_ms, theirs.duration_ms), fps))
    left = _frames(comparison.first, ours, comparison.second, theirs, params)
    right = _frames(comparison.second, theirs, comparison.first, ours, params)
    with Progress("video", num_frames, "frames", stream=stream) as bar:
        write_mp4(path, _beside(left, right), fps, bar.advance)
    return f"{pairs.track.name}, start {ours.seed}: the pair in the middle of all leads there"


def _frames(
    racer: Racer, result: RaceResult, other: Racer, ghost: RaceResult, params: Params
) -> Iterator[NDArray[np.uint8]]:
    ending = f"{result.time_s:.2f} s" if result.time_s is not None else result.end
    texts = HudTexts(
        f"{racer.name[:18]}  {ending}", f"{result.track.name[:28]}, start {result.seed}", f"ghost: {other.name}"
    )
    observation = getattr(racer.policy, "observation", params.observation)
    shown = VideoRace(result, (ghost,), texts)
    return race_frames(shown, params.simulator.camera, observation, params.evaluate)


def _beside(left: Iterator[NDArray[np.uint8]], right: Iterator[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    """Yields frames of both side by side; the one that ends first freezes on its last frame."""
    last: list[NDArray[np.uint8]] = []
    for pair in zip_longest(left, right):
        last = [new if new is not None else old for new, old in zip(pair, last or pair, strict=True)]
        yield np.concatenate(last, axis=1)
