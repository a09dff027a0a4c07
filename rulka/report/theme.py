"""How plots look: two themes, light and dark, with colours that colour-blind people can tell apart.

The hues are those of Okabe and Ito 2008; every line that matters also has its own dash or marker.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from rulka.evaluation.results import Evaluation

DOTS_PER_INCH = 130
SPEED_COLOURS = "viridis"
"""Perceptually even, readable without colour; used for speed on both themes."""


@dataclass(frozen=True)
class Theme:
    """Colours of one theme.

    Attributes:
        name: "light" or "dark".
        ink: text.
        muted: axes and secondary text.
        grid: lines that should hardly be seen.
        road: the road's surface.
        edge: the road's edges.
        paper: background, the same as the page's.
        blue: the agent, whatever its algorithm.
        orange: another algorithm.
        pink: a third algorithm.
        green: the cloned policy.
    """

    name: str
    ink: str
    muted: str
    grid: str
    road: str
    edge: str
    paper: str
    blue: str
    orange: str
    pink: str
    green: str

    def colours_of(self, evaluation: Evaluation) -> dict[str, str]:
        """Returns a colour for every contestant's key; algorithms other than the agent's are told apart by place."""
        named = {"agent": self.blue, "cloned": self.green, "random": self.muted}
        others = [contestant.key for contestant in evaluation.contestants if contestant.key not in named]
        return named | {key: self.other(place) for place, key in enumerate(others)}

    def other(self, place: int) -> str:
        """Returns the colour of an algorithm that is not the agent's, by its place among those."""
        return (self.orange, self.pink)[place % 2]


LIGHT = Theme(
    name="light",
    ink="#1b1f24",
    muted="#667080",
    grid="#e4e7ec",
    road="#eceef1",
    edge="#b4bac4",
    paper="#ffffff",
    blue="#0072b2",
    orange="#d55e00",
    pink="#b0578d",
    green="#00835f",
)
DARK = Theme(
    name="dark",
    ink="#e8eaed",
    muted="#9aa4b2",
    grid="#2b313a",
    road="#262b33",
    edge="#566070",
    paper="#171a1f",
    blue="#56b4e9",
    orange="#f08c3c",
    pink="#dd8fbd",
    green="#2fc39a",
)

Draw = Callable[[Theme], "Figure | None"]
"""Draws a figure in a theme; None when there is nothing to show."""


@contextmanager
def applied(theme: Theme) -> Iterator[None]:
    """Gives everything that matplotlib draws within the block the look of a theme."""
    settings: dict[Any, Any] = {
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "text.color": theme.ink,
        "axes.labelcolor": theme.muted,
        "axes.titlecolor": theme.ink,
        "axes.edgecolor": theme.grid,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "grid.color": theme.grid,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.labelsize": 10,
        "xtick.labelsize": 9.5,
        "ytick.labelsize": 9.5,
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "font.family": "DejaVu Sans",
        "lines.linewidth": 1.8,
        "figure.dpi": DOTS_PER_INCH,
    }
    with mpl.rc_context(settings):
        yield


def to_png(draw: Draw, theme: Theme) -> bytes | None:
    """Draws a figure in a theme and returns it as a PNG file; None when there is nothing to show."""
    with applied(theme):
        figure = draw(theme)
        if figure is None:
            return None
        with io.BytesIO() as file:
            figure.savefig(file, format="png", metadata={"Software": None})
            plt.close(figure)
            return file.getvalue()


def draw_scale(axes: Axes, edges: NDArray[np.float64], theme: Theme) -> None:
    """Draws a bar of a round length in the lower right corner."""
    low, high = edges.reshape(-1, 2).min(axis=0), edges.reshape(-1, 2).max(axis=0)
    length_m = 10.0 ** np.floor(np.log10((high[0] - low[0]) / 5.0))
    length_m *= 5.0 if (high[0] - low[0]) / length_m > 25.0 else 2.0 if (high[0] - low[0]) / length_m > 10.0 else 1.0
    x, y = high[0] - length_m, low[1] - 6.0
    axes.plot([x, x + length_m], [y, y], color=theme.muted, linewidth=2.0, solid_capstyle="butt")
    axes.text(x + length_m / 2, y + 2.5, f"{length_m:g} m", ha="center", va="bottom", fontsize=8.5, color=theme.muted)
