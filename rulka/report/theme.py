"""How plots look: on white, with colours that colour-blind people can tell apart.

The hues are those of Okabe and Ito 2008; every line that matters also has its own dash or marker.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rulka.evaluation.results import Evaluation

STYLE = Path(__file__).with_name("plots.mplstyle")
WIDTH_IN = 9.6
SPEED_COLOURS = "viridis"
"""Perceptually even, readable without colour; used for speed."""


INK, MUTED = "#1b1f24", "#667080"
"""Text; axes and secondary text."""
EDGE = "#b4bac4"
"""What lies behind what is told."""
BLUE, ORANGE, PINK, GREEN = "#0072b2", "#d55e00", "#b0578d", "#00835f"
"""The agent, whatever its algorithm; another algorithm; a third one; the cloned policy."""


def colours_of(evaluation: Evaluation) -> dict[str, str]:
    """Returns a colour for every contestant's key; others than the agent's are told apart by alphabet.

    The dashboard draws their laps in the same hues: `hues_of` in `rulka.dashboard.laps`.
    """
    named = {"agent": BLUE, "cloned": GREEN, "random": MUTED}
    others = sorted({contestant.key for contestant in evaluation.contestants} - set(named))
    return named | {key: (ORANGE, PINK)[place % 2] for place, key in enumerate(others)}


Draw = Callable[[], "Figure | None"]
"""Draws a figure; None when there is nothing to show."""


def to_png(draw: Draw) -> bytes | None:
    """Draws a figure in the style of all plots and returns it as a PNG file; None when there is nothing to show."""
    with plt.style.context(STYLE):
        figure = draw()
        if figure is None:
            return None
        with io.BytesIO() as file:
            figure.savefig(file, format="png", metadata={"Software": None})
            plt.close(figure)
            return file.getvalue()
