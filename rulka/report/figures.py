"""All figures of the report, with the words that say how to read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rulka.evaluation.results import Evaluation
from rulka.folders import PREVIEWS_PICTURE
from rulka.report.learning_plots import TrainingLog, confusion_plot, training_plot
from rulka.report.race_plots import map_plot, split_chart
from rulka.report.theme import to_png

ENCODER_PICTURES = {
    PREVIEWS_PICTURE: (
        "Level 0: what it was shown",
        "Frames, and below them what was rebuilt of them from their features, or two views that were compared.",
    ),
}
"""Title and caption of the pictures that `pretrain` leaves beside the encoder."""


@dataclass(frozen=True)
class Plot:
    """A picture of the page.

    Attributes:
        title: heading above it.
        caption: how to read it.
        png: the picture.
        is_small: whether it should not fill the page's width.
    """

    title: str
    caption: str
    png: bytes
    is_small: bool = False


def draw_figures(
    evaluation: Evaluation, logs: Sequence[TrainingLog], confusion: Sequence[Sequence[int]]
) -> dict[str, Plot]:
    """Draws everything there is something to show for.

    Args:
        evaluation: all races.
        logs: training logs, the agent's first; may be empty.
        confusion: of the cloned policy, see `confusion_plot`; may be empty.

    Returns:
        Figures by file name without extension, in the order of the page.
    """
    wanted = {
        "driven_lines": (
            map_plot,
            "Driven lines",
            "From above. The best race of each is coloured by its speed, the others are thin grey lines; a cross is "
            "where a race ended early. Cross lines are gates.",
        ),
        "splits": (
            split_chart,
            "Time gained and lost",
            "Difference to the best demonstration at every metre of the track, dots at the gates. A line that climbs "
            "gains time there, one that falls loses it. A cross is where a race ended early.",
        ),
        "training": (
            lambda evaluation: training_plot(logs, evaluation),
            "Training",
            "By minutes. Lines are training races, which explore and may start anywhere on the track: share that "
            "finished, best time from the start line so far, mean return. Dots are greedy checks from the start line "
            "during training: share that finished, and their mean time. `rulka dashboard` draws them by steps too.",
        ),
        "cloning": (
            lambda _: confusion_plot(np.array(confusion, np.float64)) if confusion else None,
            "What the cloned policy mixes up",
            "Each row is an action of the demonstrators, each column what the cloned policy chose instead, in percent "
            "of the row. Many confusions are a matter of a twentieth of a second.",
        ),
    }
    figures = {}
    for name, (draw, title, caption) in wanted.items():
        png = to_png(partial(draw, evaluation))
        if png is not None:
            figures[name] = Plot(title, caption, png, is_small=name == "cloning")
    return figures


def encoder_figures(folder: Path) -> list[Plot]:
    """Returns the pictures that lie beside the encoder."""
    return [
        Plot(title, caption, (folder / name).read_bytes(), is_small=True)
        for name, (title, caption) in ENCODER_PICTURES.items()
        if (folder / name).exists()
    ]
