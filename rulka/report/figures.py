"""All figures of the report, with their captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rulka.evaluation.results import Evaluation, median_race
from rulka.report.learning_plots import TrainingLog, training_plot
from rulka.report.race_plots import map_plot, panels_of, split_chart
from rulka.report.theme import colours_of, to_png
from rulka.stages.folders import PREVIEWS_PICTURE


@dataclass(frozen=True)
class Plot:
    """A figure of the page.

    Attributes:
        title: heading above it.
        caption: how to read it.
        alt: text alternative for screen readers.
        png: PNG file content.
        is_small: True to keep it narrower than the page.
    """

    title: str
    caption: str
    alt: str
    png: bytes
    is_small: bool = False


def draw_figures(evaluation: Evaluation, logs: Mapping[str, TrainingLog], off_road_m: float) -> dict[str, Plot]:
    """Draws every figure that has data.

    Args:
        evaluation: all races.
        logs: training logs by contestant key, the agent's first; may be empty.
        off_road_m: how far beside the road races go on.

    Returns:
        Figures by file name without extension, in page order.
    """
    wanted = {
        "driven_lines": (
            lambda: map_plot(evaluation),
            "Driven lines",
            "From above. The best race of each is coloured by its speed, the others are thin grey lines; a cross is "
            "where a race ended early. Cross lines are gates. Beside the road a race goes on, up to "
            f"{off_road_m:g} m away from it: lines may leave the grey.",
            "; ".join(title for title, _ in panels_of(evaluation)),
        ),
        "splits": (
            lambda: split_chart(evaluation),
            "Time gained and lost",
            "Difference to the best demonstration at every metre of the track, dots at the gates. A line that climbs "
            "gains time there, one that falls loses it. A cross is where a race ended early.",
            _splits_in_words(evaluation),
        ),
        "training": (
            lambda: training_plot(logs, colours_of(evaluation)),
            "Training",
            "Lines are training races, which explore and may start anywhere on the track: share that "
            "finished, best time from the start line so far, mean return. Dots are greedy checks from the start line: "
            "share that finished, and their mean time. `rulka dashboard` draws them by minutes too.",
            f"Curves of {' and '.join(log.label for log in logs.values())}; their ends are in the table of results.",
        ),
    }
    drawn = {name: (title, caption, alt, to_png(draw)) for name, (draw, title, caption, alt) in wanted.items()}
    return {name: Plot(title, caption, alt, png) for name, (title, caption, alt, png) in drawn.items() if png}


def _splits_in_words(evaluation: Evaluation) -> str:
    """Describes each contestant's gap to the best demonstration at the finish, for the median race."""
    best, middles = evaluation.best_demonstration, [(c.label, median_race(c.races)) for c in evaluation.contestants]
    if best is None or best.time_s is None:
        return ""
    told = [f"{name} {race.time_s - best.time_s:+.2f} s" for name, race in middles if race and race.time_s is not None]
    return f"Median races at the finish, against the best demonstration: {', '.join(told) or 'none finished'}"


def encoder_figures(folder: Path) -> list[Plot]:
    """Returns the preview picture that `pretrain` writes beside the encoder; empty if it is missing."""
    picture = folder / PREVIEWS_PICTURE
    caption = "Frames, and below them what was rebuilt of them from their features, or two views that were compared."
    if not picture.exists():
        return []
    return [Plot("Level 0: what it was shown", caption, "A row of frames, and one below", picture.read_bytes(), True)]
