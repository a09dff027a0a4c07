"""What the cells of an experiment came to: a row for each finished one, and a summary of each variant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rulka.errors import UserError
from rulka.evaluation.by_track import HEAD, track_rows
from rulka.evaluation.statistics import Interval
from rulka.experiments.plan import Cell, Plan
from rulka.experiments.statistics import (
    Scores,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)
from rulka.experiments.work import Work
from rulka.folders import AGENT, EVALUATION, METRICS_FILE, TRAINING_LOG

SCORE = "lap_share"
"""What runs are compared by: the mean over races of reference lap over race time, 0 for one that did not finish."""
COLUMNS = (
    "variant",
    "seed",
    SCORE,
    "finish_rate",
    "median_time_s",
    "kept",
    "env_steps",
    "gradient_steps",
    "cpu_minutes",
    "minutes",
)


class NoResultsError(UserError):
    """No cell has come to its end."""


class Summary(NamedTuple):
    """What the seeds of a variant say together.

    Attributes:
        score: interquartile mean of the score, and its 95 % interval.
        improvement: chance that a run scores higher than one of the baseline, and its interval; None for the baseline.
        kept: the least of its runs, see `kept_of_start`.
    """

    variant: str
    num_runs: int
    score: float
    score_interval: Interval
    improvement: float | None
    improvement_interval: Interval | None
    finish_rate: float
    median_time_s: float | None
    kept: float | None
    env_steps: float
    cpu_minutes: float


@dataclass(frozen=True)
class Results:
    """All finished cells of an experiment.

    Attributes:
        rows: one for each, with `COLUMNS`.
        curves: the log of training of each, with `variant` and `seed`.
        tracks: how the agent of each did on each track, in words, with `variant` and `seed`.
        missing: names of the cells that did not come to their end.
    """

    rows: pd.DataFrame
    curves: pd.DataFrame
    tracks: pd.DataFrame
    missing: tuple[str, ...]

    def scores(self, variant: str) -> Scores:
        """Returns [R, 1] the scores of a variant's runs."""
        return self.rows.loc[self.rows["variant"] == variant, [SCORE]].to_numpy(np.float64)

    def summaries(self, baseline: str) -> list[Summary]:
        """Returns a summary of each variant that has a finished cell, in the order of the file."""
        return [self._summary(variant, baseline) for variant in self.rows["variant"].unique()]

    def _summary(self, variant: str, baseline: str) -> Summary:
        rows = self.rows[self.rows["variant"] == variant]
        scores, others = self.scores(variant), self.scores(baseline)
        is_compared = variant != baseline and len(others) > 0
        numbers = {name: np.asarray(rows[name], np.float64) for name in COLUMNS[3:]}
        times_s = numbers["median_time_s"][np.isfinite(numbers["median_time_s"])]
        return Summary(
            variant,
            len(rows),
            interquartile_mean(scores),
            stratified_interval(interquartile_mean, scores),
            probability_of_improvement(scores, others) if is_compared else None,
            stratified_interval(probability_of_improvement, scores, others) if is_compared else None,
            float(numbers["finish_rate"].mean()),
            float(np.median(times_s)) if len(times_s) else None,
            float(numbers["kept"].min()) if np.isfinite(numbers["kept"]).all() else None,
            float(numbers["env_steps"].mean()),
            float(numbers["cpu_minutes"].mean()),
        )


def gather(plan: Plan, work: Work) -> Results:
    """Reads the results of all cells that came to their end.

    Raises:
        NoResultsError: if none has.
    """
    finished = [cell for cell in plan.cells if work.spent(cell.jobs[-1]) is not None]
    if not finished:
        message = f"no cell of {plan.name} has come to its end"
        raise NoResultsError(message, hint=f"Look at the logs in {work.folder.as_posix()}.")
    rows = pd.DataFrame([_row(cell, work) for cell in finished], columns=list(COLUMNS))
    curves = pd.concat([_curve(cell, work) for cell in finished], ignore_index=True)
    tracks = pd.concat([_tracks(cell, work) for cell in finished], ignore_index=True)
    missing = tuple(cell.name for cell in plan.cells if cell not in finished)
    return Results(rows, curves, tracks, missing)


def _folder(cell: Cell, stage: str, work: Work) -> Path:
    return next(work.folder_of(job) for job in cell.jobs if job.stage == stage)


def _row(cell: Cell, work: Work) -> dict[str, Any]:
    agent = _metrics(cell, work)["agent"]
    lines = _lines(_folder(cell, "train", work) / AGENT / TRAINING_LOG)
    last = lines[-1]
    return {
        "variant": cell.variant,
        "seed": cell.seed,
        SCORE: agent[SCORE],
        "finish_rate": agent["finish_rate"],
        "median_time_s": agent["median_time_s"],
        "kept": kept_of_start(lines),
        "env_steps": last["env_steps"],
        "gradient_steps": last.get("gradient_steps", 0),
        "cpu_minutes": last["cpu_minutes"],
        "minutes": last["minutes"],
    }


def kept_of_start(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns how much is kept in the first tenth of a training, as its log has it.

    That is the lowest finish rate of the greedy checks in the first tenth of all environment steps, in units of the
    first check's, which is of the weights that training began with. None where these finished nowhere.
    """
    checks = [line for line in lines if line.get("check_finish_rate") is not None]
    early = [check["check_finish_rate"] for check in checks if check["env_steps"] <= 0.1 * lines[-1]["env_steps"]]
    return min(early) / early[0] if early and early[0] > 0.0 else None


def _metrics(cell: Cell, work: Work) -> dict[str, Any]:
    return _json(_folder(cell, "evaluate", work) / EVALUATION / METRICS_FILE)


def _tracks(cell: Cell, work: Work) -> pd.DataFrame:
    entries = _metrics(cell, work)["tracks"]
    rows = pd.DataFrame(track_rows(entries), columns=list(HEAD))
    return rows.assign(variant=cell.variant, seed=cell.seed)


def _curve(cell: Cell, work: Work) -> pd.DataFrame:
    lines = pd.DataFrame(_lines(_folder(cell, "train", work) / AGENT / TRAINING_LOG))
    return lines.assign(variant=cell.variant, seed=cell.seed)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
