"""How plots look: on white, with colours that colour-blind people can tell apart.

The hues are those of Okabe and Ito 2008; every line that matters also has its own dash or marker.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rulka.evaluation.results import Evaluation

STYLE = Path(__file__).with_name("plots.mplstyle")
SPEED_COLOURS = "viridis"
"""Perceptually even, readable without colour; used for speed."""


@dataclass(frozen=True)
class Theme:
    """Colours.

    Attributes:
        ink: text.
        muted: axes and secondary text.
        road: the road's surface.
        edge: the road's edges.
        blue: the agent, whatever its algorithm.
        orange: another algorithm.
        pink: a third algorithm.
        green: the cloned policy.
    """

    ink: str = "#1b1f24"
    muted: str = "#667080"
    road: str = "#eceef1"
    edge: str = "#b4bac4"
    blue: str = "#0072b2"
    orange: str = "#d55e00"
    pink: str = "#b0578d"
    green: str = "#00835f"

    def colours_of(self, evaluation: Evaluation) -> dict[str, str]:
        """Returns a colour for every contestant's key; algorithms other than the agent's are told apart by place."""
        named = {"agent": self.blue, "cloned": self.green, "random": self.muted}
        others = [contestant.key for contestant in evaluation.contestants if contestant.key not in named]
        return named | {key: self.other(place) for place, key in enumerate(others)}

    def other(self, place: int) -> str:
        """Returns the colour of an algorithm that is not the agent's, by its place among those."""
        return (self.orange, self.pink)[place % 2]


LIGHT = Theme()
Draw = Callable[[Theme], "Figure | None"]
"""Draws a figure in a theme; None when there is nothing to show."""


def to_png(draw: Draw, theme: Theme) -> bytes | None:
    """Draws a figure in a theme and returns it as a PNG file; None when there is nothing to show."""
    with plt.style.context(STYLE):
        figure = draw(theme)
        if figure is None:
            return None
        with io.BytesIO() as file:
            figure.savefig(file, format="png", metadata={"Software": None})
            plt.close(figure)
            return file.getvalue()
