"""Pictures of what Levels 0 and 1 learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from rulka.datasets.card import contact_sheet
from rulka.pretraining.fit import History
from rulka.pretraining.probes import Probes

_PROBED = {
    "speed_mps": "speed\nm/s",
    "progress_m": "progress\nm",
    "lateral_m": "across the road\nm",
    "heading_deg": "heading\ndegrees",
    "action": "action\nshare wrong",
}
"""What probes tell, and in what it is measured."""


def plot_loss(path: Path, history: History, *, title: str, unit: str, baselines: dict[str, float]) -> None:
    """Draws the loss of every epoch, with horizontal lines to compare it with.

    Args:
        path: image file to write.
        history: what to draw.
        title: of the plot.
        unit: label of the loss axis.
        baselines: other losses worth comparing with, by name.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    numbers = [epoch.epoch + 1 for epoch in history.epochs]
    axes.plot(numbers, [epoch.train_loss for epoch in history.epochs], "o-", color="#4477aa", label="training")
    held_out = [epoch.validation_loss for epoch in history.epochs if epoch.validation_loss is not None]
    if held_out:
        axes.plot(numbers, held_out, "o-", color="#ee6677", label="validation")
    axes.axvline(history.best_epoch + 1, color="#bbbbbb", linestyle=":", label="kept")
    for style, (name, value) in zip(("--", "-."), baselines.items(), strict=False):
        axes.axhline(value, color="#777777", linestyle=style, linewidth=1, label=name)
    axes.set(title=title, xlabel="epoch", ylabel=unit, ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)


def plot_probes(path: Path, probes: Probes | None) -> None:
    """Draws the errors of all probes as shares of what a constant has, pretrained beside random weights."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(title="What features tell of frames from held-out races", ylabel="error, share of a constant's")
    axes.set_ylim(0, 1.25)
    if probes is None:
        axes.text(0.5, 0.5, "no race is held out", ha="center", transform=axes.transAxes)
        axes.set_xticks([])
        figure.savefig(path, dpi=100)
        return
    rows = {
        name: [1.0 - value if name == "action" else value for value in each.values()] for name, each in probes.items()
    }
    places = np.arange(len(rows))
    for which, (label, colour) in enumerate((("pretrained", "#4477aa"), ("random weights", "#bbbbbb"))):
        shares = [row[which] / row[2] if row[2] else 0.0 for row in rows.values()]
        axes.bar(places + 0.4 * which, shares, 0.38, color=colour, label=label)
        for place, share, (name, row) in zip(places, shares, rows.items(), strict=True):
            text = f"{row[which]:.0%}" if name == "action" else f"{row[which]:.3g}"
            axes.text(place + 0.4 * which, share, text, ha="center", va="bottom", fontsize=8)
    axes.axhline(1.0, color="#777777", linestyle="--", linewidth=1, label="a constant")
    axes.set_xticks(places + 0.2, [_PROBED[name] for name in rows])
    axes.legend(frameon=False, ncols=3, loc="upper center")
    figure.savefig(path, dpi=100)


def save_rows(path: Path, *rows: NDArray[np.uint8]) -> None:
    """Writes images [N, H, W] with their counterparts below them, in one row or more, as one picture."""
    imsave(path, contact_sheet(np.concatenate(rows), len(rows[0])), cmap="gray", vmin=0, vmax=255)
