"""Training logs and learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from rulka.contracts.stored import LARGEST
from rulka.machine.errors import UserError
from rulka.report.theme import WIDTH_IN

DASHES = ("-", "--", "-.")
ROWS = (
    ("finish_rate", "check_finish_rate", "races finished"),
    ("record_s", "check_mean_time_s", "race time (s)"),
    ("mean_return", "", "return of a race"),
)
"""Metric of training races, metric of the greedy checks, axis label."""
AXIS = "env_steps"
"""Key that every line of a training log holds."""


@dataclass(frozen=True)
class TrainingLog:
    """Log of one training run.

    Attributes:
        label: display name of the algorithm.
        rows: one row per log line, one column per metric; NaN where a line lacks it.
    """

    label: str
    rows: pd.DataFrame

    def curve(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the points of a curve, steps [P] and values [P]; empty if the log never holds it.

        NaN and numbers beyond `LARGEST` are dropped.
        """
        numbers = self.rows.reindex(columns=[AXIS, name]).apply(pd.to_numeric, errors="coerce").astype(np.float64)
        x, y = numbers.where(numbers.abs() <= LARGEST).dropna().to_numpy().T
        return x, y


def read_training_log(path: Path, label: str) -> TrainingLog:
    """Reads a training log, `training.jsonl` beside the agent's weights.

    Raises:
        UserError: if it is not valid JSON Lines, or lacks `env_steps`.
    """
    try:
        rows = pd.read_json(path, lines=True, dtype=False)  # pyright: ignore[reportArgumentType] - stubs lack False
    except (TypeError, ValueError) as error:
        raise UserError(f"{path.as_posix()} is damaged: {error}", hint="Run `dvc repro train` again.") from error
    if not rows.empty and AXIS not in rows:
        raise UserError(f"{path.as_posix()} is damaged: no line holds {AXIS}", hint="Run `dvc repro train` again.")
    return TrainingLog(label, rows)


def training_plot(logs: Mapping[str, TrainingLog], colours: Mapping[str, str]) -> Figure | None:
    """Draws finish rate, record and return over environment steps; dots are greedy checks.

    Args:
        logs: one per algorithm by contestant key, the agent's first.
        colours: by contestant key.
    """
    rows = [row for row in ROWS if any(len(log.curve(row[0])[0]) for log in logs.values())]
    if not rows:
        return None
    size = (WIDTH_IN, 0.7 + 2.25 * len(rows))
    figure, places = plt.subplots(len(rows), figsize=size, layout="constrained", sharex=True, squeeze=False)
    for (name, check, label), axes in zip(rows, places.flat, strict=True):
        axes.set_ylabel(label)
        for number, (key, log) in enumerate(logs.items()):
            axes.plot(*log.curve(name), DASHES[number % 3], color=colours[key], label=log.label)
            axes.plot(*log.curve(check), "o", color=colours[key], markersize=4.5)
        if name == "finish_rate":
            axes.set_ylim(-0.02, 1.02)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    places[-1, 0].set_xlabel("environment steps")
    places[0, 0].legend(loc="best")
    return figure
