"""The log of a training run, `training.jsonl` beside the agent's weights: one JSON object a line, rising in time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rulka.errors import UserError

LOG_FILE = "training.jsonl"
AXES = ("env_steps", "minutes")


class TrainingLogError(UserError):
    """A training log that cannot be read; the message names file and line."""


@dataclass(frozen=True)
class TrainingLog:
    """How a training run went.

    Attributes:
        label: name of the algorithm for people.
        columns: [L] values of every number in the log by name; NaN where a line does not hold it.
    """

    label: str
    columns: dict[str, NDArray[np.float64]]

    def curve(self, axis: str, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the known points of a curve, both [P]; empty when the log never holds it."""
        x, y = self.columns[axis], self.columns.get(name)
        if y is None:
            return np.zeros(0), np.zeros(0)
        known = np.isfinite(x) & np.isfinite(y)
        return x[known], y[known]

    def last(self, name: str) -> float | None:
        """Returns the last known value of a number, None when the log never holds it."""
        values = self.columns.get(name, np.zeros(0))
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else None


def read_training_log(path: Path, label: str) -> TrainingLog:
    """Reads a training log.

    Raises:
        TrainingLogError: if a line is no JSON object, or lacks `env_steps` or `minutes`.
    """
    lines = [_parse(path, number, line) for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)]
    rows = [row for row in lines if row is not None]
    names = {name for row in rows for name in row} | set(AXES)
    return TrainingLog(label, {name: np.array([_number(row.get(name)) for row in rows]) for name in sorted(names)})


def _parse(path: Path, number: int, line: str) -> dict[str, object] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{path.as_posix()} line {number} is not JSON: {error}"
        raise TrainingLogError(message, hint="Run `dvc repro train` again.") from error
    if not isinstance(row, dict) or any(name not in row for name in AXES):
        message = f"{path.as_posix()} line {number} does not hold {' and '.join(AXES)}"
        raise TrainingLogError(message, hint="Run `dvc repro train` again.")
    return row


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
