"""Plot style: white background, colour-blind-safe palette.

The hues are those of Okabe and Ito 2008; every important line also has its own dash or marker.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from rulka.evaluation.results import Evaluation

STYLE = Path(__file__).with_name("plots.mplstyle")
WIDTH_IN = 9.6
SPEED_COLOURS = "viridis"
"""Colour map of speed: perceptually uniform, readable in greyscale."""


INK, MUTED = "#1b1f24", "#667080"
"""Text; axes and secondary text."""
EDGE = "#b4bac4"
"""Background elements such as gate lines."""
BLUE, ORANGE, PINK, GREEN = "#0072b2", "#d55e00", "#b0578d", "#00835f"
"""The agent, whatever its algorithm; a second algorithm; a third; the cloned policy."""


def colours_of(evaluation: Evaluation) -> dict[str, str]:
    """Returns a colour by contestant key; compared algorithms alternate two colours in alphabetical order.

    The dashboard draws laps in the same hues: `hues_of` in `rulka.dashboard.laps`.
    """
    named = {"agent": BLUE, "cloned": GREEN, "random": MUTED}
    others = sorted({contestant.key for contestant in evaluation.contestants} - set(named))
    return named | {key: (ORANGE, PINK)[place % 2] for place, key in enumerate(others)}


Draw = Callable[[], "Figure | None"]
"""Draws a figure, or returns None if there is no data."""


def to_png(draw: Draw) -> bytes | None:
    """Draws a figure in the common style and returns PNG bytes; None if there is no data."""
    with plt.style.context(STYLE):
        figure = draw()
        if figure is None:
            return None
        with io.BytesIO() as file:
            figure.savefig(file, format="png", metadata={"Software": None})
            plt.close(figure)
            return file.getvalue()
