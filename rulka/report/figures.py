"""All figures of the report, with the words that say how to read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rulka.evaluation.results import Evaluation
from rulka.folders import PREVIEWS_PICTURE
from rulka.report import learning_plots, race_plots
from rulka.report.learning_plots import TrainingLog
from rulka.report.theme import DARK, LIGHT, Draw, to_png


@dataclass(frozen=True)
class Plot:
    """A plot in both themes.

    Attributes:
        title: heading above it.
        caption: how to read it.
        light: PNG for light pages.
        dark: PNG for dark pages; None where it is the same.
        is_small: whether it should not fill the page's width.
    """

    title: str
    caption: str
    light: bytes
    dark: bytes | None
    is_small: bool = False


class _Wanted(NamedTuple):
    name: str
    title: str
    caption: str
    draw: Draw
    is_small: bool = False


def draw_figures(evaluation: Evaluation, logs: Sequence[TrainingLog], cloning: Mapping[str, Any]) -> dict[str, Plot]:
    """Draws everything there is something to show for.

    Args:
        evaluation: all races.
        logs: training logs, the agent's first; may be empty.
        cloning: measures of the cloned policy, see `rulka.pretraining.cloning`; empty when unknown.

    Returns:
        Figures by file name without extension, in the order of the page.
    """
    wanted = [*_race_figures(evaluation), *_learning_figures(evaluation, logs), *_cloning_figures(cloning)]
    figures = {}
    for figure in wanted:
        light, dark = to_png(figure.draw, LIGHT), to_png(figure.draw, DARK)
        if light is not None and dark is not None:
            figures[figure.name] = Plot(figure.title, figure.caption, light, dark, figure.is_small)
    return figures


def save_figures(folder: Path, figures: dict[str, Plot]) -> None:
    """Writes the light version of every figure as a PNG file into a new folder."""
    folder.mkdir()
    for name, figure in figures.items():
        (folder / f"{name}.png").write_bytes(figure.light)


def encoder_figures(folder: Path) -> list[Plot]:
    """Returns the pictures of Level 0 that lie in the encoder's folder."""
    titles = {
        PREVIEWS_PICTURE: (
            "Level 0: what it was shown",
            "Frames, and below them what was rebuilt of them from their features, or two views that were compared.",
        ),
    }
    files = {folder / name: words for name, words in titles.items()}
    return [
        Plot(title, caption, file.read_bytes(), None, is_small=True)
        for file, (title, caption) in files.items()
        if file.exists()
    ]


def _race_figures(evaluation: Evaluation) -> list[_Wanted]:
    def draw(function: Callable[..., object]) -> Draw:
        return lambda theme: function(evaluation, theme)  # pyright: ignore[reportReturnType]

    return [
        _Wanted(
            "driven_lines",
            "Driven lines",
            "From above. The best race of each is coloured by its speed, the others are thin grey lines; a cross is "
            "where a race ended early. Cross lines are gates.",
            draw(race_plots.map_plot),
        ),
        _Wanted(
            "splits",
            "Time gained and lost",
            "Difference to the best demonstration at every metre of the track, dots at the gates. A line that climbs "
            "gains time there, one that falls loses it. A cross is where a race ended early.",
            draw(race_plots.split_chart),
        ),
        _Wanted(
            "speed",
            "Speed",
            "Speed over distance of the best race of each; where nobody finished, of the race that came furthest.",
            draw(race_plots.speed_plot),
        ),
        _Wanted(
            "times",
            "All times",
            "A dot is a finished race, a bar the median. Dots are spread vertically only to be seen.",
            draw(race_plots.time_plot),
        ),
    ]


def _learning_figures(evaluation: Evaluation, logs: Sequence[TrainingLog]) -> list[_Wanted]:
    if not logs:
        return []
    return [
        _Wanted(
            "training",
            "Training",
            "Left by minutes, right by decisions. Lines are training races, which explore and may start anywhere "
            "on the track: share that finished, best time from the start line so far, mean return. Dots are "
            "greedy checks from the start line during training: share that finished, and their mean time.",
            lambda theme: learning_plots.training_plot(logs, evaluation, theme),
        )
    ]


def _cloning_figures(cloning: Mapping[str, Any]) -> list[_Wanted]:
    if not cloning:
        return []
    accuracy = cloning["validation_accuracy"]
    known = f" It takes the demonstrated action in {accuracy:.0%} of held-out frames." if accuracy else ""
    confusion = np.array(cloning["confusion"], np.float64)
    return [
        _Wanted(
            "cloning",
            "What the cloned policy mixes up",
            f"Each row is an action of the demonstrators, each column what the cloned policy chose instead, in "
            f"percent of the row.{known} Many confusions are a matter of a twentieth of a second.",
            lambda theme: learning_plots.confusion_plot(confusion, theme),
            is_small=True,
        )
    ]
