"""How learning went: the log of a training run, its curves, and what the cloned policy mixes up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import PercentFormatter

from rulka.actions import CONTROLS, Controls
from rulka.errors import UserError
from rulka.report.theme import BLUE, INK, MUTED, WIDTH_IN, other_colour

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from rulka.evaluation.results import Evaluation

DASHES = ("-", "--", "-.")
ROWS = (
    ("finish_rate", "check_finish_rate", "races finished"),
    ("record_s", "check_mean_time_s", "race time (s)"),
    ("mean_return", "", "return of a race"),
)
"""Number of training races, number of greedy checks between them, label."""
AXES = ("env_steps", "minutes")
"""What every line of a training log holds."""


class TrainingLogError(UserError):
    """A training log that cannot be read; the message names file and line."""


@dataclass(frozen=True)
class TrainingLog:
    """How a training run went.

    Attributes:
        label: name of the algorithm for people.
        rows: one for each line of the log, a column for everything that a line holds; NaN where it does not.
    """

    label: str
    rows: pd.DataFrame

    def curve(self, axis: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the known points of a curve, both [P]; empty when the log never holds it."""
        known = self.rows.reindex(columns=[axis, name]).apply(pd.to_numeric, errors="coerce").dropna()
        x, y = known.to_numpy(np.float64).T
        return x, y


def read_training_log(path: Path, label: str) -> TrainingLog:
    """Reads a training log, `training.jsonl` beside the agent's weights.

    Raises:
        TrainingLogError: if it is no table of numbers, or lacks `env_steps` or `minutes`.
    """
    try:
        rows = pd.read_json(path, lines=True, convert_dates=False)
    except (TypeError, ValueError) as error:
        message = f"{path.as_posix()} is damaged: {error}"
        raise TrainingLogError(message, hint="Run `dvc repro train` again.") from error
    if not rows.empty and (missing := set(AXES) - set(rows)):
        message = f"{path.as_posix()} is damaged: no line holds {' and '.join(sorted(missing))}"
        raise TrainingLogError(message, hint="Run `dvc repro train` again.")
    return TrainingLog(label, rows)


def training_plot(logs: Sequence[TrainingLog], evaluation: Evaluation) -> Figure | None:
    """Draws finish rate, record and return over minutes; dots are greedy checks.

    Args:
        logs: one for each algorithm, the agent's first.
        evaluation: supplies the times of the demonstrations to compare with.
    """
    rows = [row for row in ROWS if any(len(log.curve("minutes", row[0])[0]) for log in logs)]
    if not rows:
        return None
    size = (WIDTH_IN, 0.7 + 2.25 * len(rows))
    figure, places = plt.subplots(len(rows), figsize=size, layout="constrained", sharex=True, squeeze=False)
    for (name, check, label), axes in zip(rows, places.flat, strict=True):
        axes.set_ylabel(label)
        for number, log in enumerate(logs):
            colour = BLUE if number == 0 else other_colour(number - 1)
            axes.plot(*log.curve("minutes", name), DASHES[number % 3], color=colour, label=log.label)
            axes.plot(*log.curve("minutes", check), "o", color=colour, markersize=4.5)
        if name == "record_s":
            _mark_demonstrations(axes, evaluation)
        if name == "finish_rate":
            axes.set_ylim(-0.02, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    places[-1, 0].set_xlabel("minutes of training")
    places[0, 0].legend(loc="best")
    return figure


def _mark_demonstrations(axes: Axes, evaluation: Evaluation) -> None:
    for name, race in (("best", evaluation.best_demonstration), ("median", evaluation.median_demonstration)):
        if race is not None and race.time_s is not None:
            axes.axhline(race.time_s, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{name} demonstration",
                (0.01, race.time_s),
                xycoords=axes.get_yaxis_transform(),
                va="bottom",
                fontsize=8.5,
                color=MUTED,
            )


def confusion_plot(confusion: NDArray[np.float64]) -> Figure | None:
    """Draws which action the cloned policy takes where the demonstrations took which.

    Args:
        confusion: [A, A] counts; rows are the demonstrated action, columns the policy's.
    """
    totals = confusion.sum(axis=1)
    used = np.flatnonzero((totals > 0) | (confusion.sum(axis=0) > 0))
    if not len(used):
        return None
    shares = confusion[np.ix_(used, used)] / np.maximum(totals[used, None], 1)
    side_in = min(6.8, 2.6 + 0.5 * len(used))
    figure, axes = plt.subplots(figsize=(side_in + 1.2, side_in), layout="constrained")
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            colour = "white" if share > 0.55 else INK
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=8.5, color=colour)
    labels = [action_name(CONTROLS[index]) for index in used]
    axes.set_xticks(range(len(used)), labels, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(used)), [f"{n}  ({t:,.0f})" for n, t in zip(labels, totals[used], strict=True)])
    axes.grid(visible=False)
    axes.set(xlabel="action of the cloned policy", ylabel="demonstrated action (frames)")
    figure.colorbar(image, ax=axes, label="share of the demonstrated action", format=PercentFormatter(1.0), shrink=0.8)
    return figure


def action_name(controls: Controls) -> str:
    """Returns the keys of an action in words."""
    names = [name for name in ("accelerate", "brake", "left", "right") if getattr(controls, name)]
    return " + ".join(names).replace("accelerate", "gas") or "nothing"
