"""Pictures of what Levels 0 and 1 learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from rulka.datasets.card import contact_sheet
from rulka.pretraining.embedding import Embedding, nearest_in_other_races, principal_plane
from rulka.pretraining.fit import History
from rulka.pretraining.probes import Probes

NUM_QUERIES, NUM_NEAREST = 6, 5
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
    action = probes.action
    rows = {
        name: (each.pretrained_error, each.random_error, each.constant_error)
        for name, each in probes.quantities.items()
    }
    rows["action"] = (1.0 - action.accuracy, 1.0 - action.random_accuracy, 1.0 - action.constant_accuracy)
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


def plot_neighbours(path: Path, embedding: Embedding) -> None:
    """Draws some frames, one from each stretch of the track, each with those of other races that are nearest to it."""
    figure = Figure(figsize=(7, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("Frames (blue), and those of other races with the nearest features", fontsize=11)
    if len(np.unique(embedding.race)) < 2:
        figure.text(0.5, 0.5, "there are no frames of other races to be near to", ha="center")
        figure.savefig(path, dpi=100)
        return
    by_place = np.argsort(embedding.along_m, kind="stable")
    middles = (np.arange(NUM_QUERIES) + 0.5) / NUM_QUERIES * len(by_place)
    queries = by_place[middles.astype(np.int64)]
    nearest = nearest_in_other_races(embedding.features, embedding.race, queries, NUM_NEAREST)
    places = figure.subplots(NUM_QUERIES, 1 + NUM_NEAREST)
    for axes in places.flat:
        axes.set_axis_off()
    for row, query, found in zip(places, queries, nearest, strict=True):
        for axes, frame in zip(row, [query, *found], strict=False):
            axes.imshow(embedding.images[frame], cmap="gray", vmin=0, vmax=255)
            text = f"{embedding.along_m[frame]:.0f} m, {embedding.speed_mps[frame]:.0f} m/s"
            axes.set_title(text, fontsize=8, color="#4477aa" if frame == query else "black")
    figure.savefig(path, dpi=100)


def plot_embedding(path: Path, embedding: Embedding) -> None:
    """Draws features in the plane in which they vary most, coloured by speed and by the place along the track."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("Features of frames, two principal components", fontsize=11)
    plane, shares = principal_plane(embedding.features)
    quantities = {"speed, m/s": embedding.speed_mps, "place along the track, m": embedding.along_m}
    for axes, (name, values) in zip(figure.subplots(1, 2, sharey=True), quantities.items(), strict=True):
        points = axes.scatter(plane[:, 0], plane[:, 1], c=values, s=5, cmap="viridis", linewidths=0)
        figure.colorbar(points, ax=axes, label=name)
        axes.set_xlabel(f"first, {shares[0]:.0%} of the variance")
    figure.axes[0].set_ylabel(f"second, {shares[1]:.0%} of the variance")
    figure.savefig(path, dpi=100)


def save_rows(path: Path, *rows: NDArray[np.uint8]) -> None:
    """Writes images [N, H, W] with their counterparts below them, in one row or more, as one picture."""
    imsave(path, contact_sheet(np.concatenate(rows), len(rows[0])), cmap="gray", vmin=0, vmax=255)
