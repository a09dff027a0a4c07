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


def plot_confusion(path: Path, confusion: NDArray[np.int64], names: list[str]) -> None:
    """Draws how often each action (rows) was predicted as each other (columns), as shares of the rows."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, vmin=0, vmax=1, cmap="Blues")
    for (row, column), value in np.ndenumerate(share):
        if value >= 0.005:
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_yticks(range(len(names)), [f"{n} ({c})" for n, c in zip(names, confusion.sum(axis=1), strict=True)])
    axes.set(xlabel="predicted", ylabel="done (frames)", title="Validation: actions, share of each row")
    figure.savefig(path, dpi=100)


def save_pairs(path: Path, above: NDArray[np.uint8], below: NDArray[np.uint8]) -> None:
    """Writes images [N, H, W] with their counterparts below them, as one picture."""
    imsave(path, contact_sheet(np.concatenate([above, below]), len(above)), cmap="gray", vmin=0, vmax=255)
