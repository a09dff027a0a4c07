"""What the cells of an experiment came to: a row for each finished one, and a summary of each variant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rulka.agents.algorithms import ALGORITHMS
from rulka.errors import UserError
from rulka.evaluation.metrics import TRACK_HEAD, track_rows
from rulka.folders import AGENT, AGENT_INIT, EVALUATION, METRICS_FILE, TRAINING_LOG, TRANSFER_REPORT
from rulka.graph import read_graph
from rulka.statistics import Interval
from rulka.study.plan import Cell, Plan
from rulka.study.statistics import (
    Scores,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)
from rulka.study.work import Work

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
    "cpu_minutes_before",
    "minutes",
)
PRETRAINING: Mapping[str, tuple[str, ...]] = {
    "pretrained": ("races", "capture", "pretrain"),
    "cloned": ("races", "capture", "pretrain", "clone"),
}
"""The stages that an agent owes something to, by where its parts come from."""
PACE = "check_pace"
"""How well a greedy check went: the share of its races that finished, over their mean time in seconds."""


class NoResultsError(UserError):
    """No cell has come to its end."""


class UnknownMeasureError(UserError):
    """A stage's metrics do not hold what an experiment is to compare."""


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
    cpu_minutes_before: float


class Arrival(NamedTuple):
    """When the runs of a variant first did as well as those of the baseline did at their best.

    Attributes:
        num_runs: of the variant.
        env_steps: of each run that got there, when it did, ascending.
        cpu_minutes: likewise; of training, and of what came before it.
    """

    variant: str
    num_runs: int
    env_steps: list[float]
    cpu_minutes: list[float]


@dataclass(frozen=True)
class Results:
    """All finished cells of an experiment.

    Attributes:
        rows: one for each, with `COLUMNS`.
        curves: the log of training of each, with `variant`, `seed` and `PACE`; its `cpu_minutes` are those of the
            stages before it as well.
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
            float(numbers["cpu_minutes_before"].mean()),
        )

    def level(self, baseline: str) -> float:
        """Returns the pace of the best greedy check of the baseline's runs, their median; 0 if most finish nothing."""
        best = [checks[:, 2].max() for checks in self._checks(baseline)]
        return float(np.median(best)) if best else 0.0

    def arrivals(self, level: float) -> list[Arrival]:
        """Returns for each variant when its greedy checks first reached a level, which is above 0."""
        found = []
        for variant in self.rows["variant"].unique():
            runs = self._checks(variant)
            first = [run[run[:, 2] >= level][0] for run in runs if (run[:, 2] >= level).any()]
            steps, minutes = (sorted(float(row[place]) for row in first) for place in (0, 1))
            found.append(Arrival(variant, len(runs), steps, minutes))
        return found

    def _checks(self, variant: str) -> list[NDArray[np.float64]]:
        """Returns for each run of a variant [C, 3] env steps, CPU minutes and pace of its greedy checks."""
        known = self.curves.dropna(subset=[PACE])
        runs = known.loc[known["variant"] == variant, ["seed", "env_steps", "cpu_minutes", PACE]].to_numpy(np.float64)
        return [runs[runs[:, 0] == seed, 1:] for seed in np.unique(runs[:, 0])]


@dataclass(frozen=True)
class Measures:
    """All finished cells of an experiment that ends before anything races.

    Attributes:
        rows: one for each, with `variant`, `seed`, and a column for each measure of the file.
        missing: names of the cells that did not come to their end.
    """

    rows: pd.DataFrame
    missing: tuple[str, ...]


def gather_measures(plan: Plan, work: Work) -> Measures:
    """Reads the numbers that an experiment's file names, of all cells that came to their end.

    Raises:
        NoResultsError: if none has.
        UnknownMeasureError: if there is no such number.
    """
    finished, missing = _finished(plan, work)
    rows = []
    for cell in finished:
        job = cell.jobs[-1]
        metrics = _json(work.folder_of(job) / read_graph()[job.stage]["outs"][0] / METRICS_FILE)
        numbers = {name: _number(metrics, name, f"metrics of {job.stage}") for name in plan.file.measures}
        rows.append({"variant": cell.variant, "seed": cell.seed, **numbers})
    return Measures(pd.DataFrame(rows), missing)


def _number(metrics: Any, name: str, whose: str) -> float:
    value = metrics
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            known = ", ".join(value) if isinstance(value, dict) else "a number"
            message = f"measures: {whose} have no {name}; where {key} is looked for there is {known}"
            raise UnknownMeasureError(message, hint="A dot stands before each key inside another.")
        value = value[key]
    if not isinstance(value, (int, float)):
        message = f"measures: {name} of the {whose} is no number"
        raise UnknownMeasureError(message, hint="Name one of the numbers inside it.")
    return float(value)


def _finished(plan: Plan, work: Work) -> tuple[list[Cell], tuple[str, ...]]:
    finished = [cell for cell in plan.cells if work.spent(cell.jobs[-1]) is not None]
    if not finished:
        message = f"no cell of {plan.name} has come to its end"
        raise NoResultsError(message, hint=f"Look at the logs in {work.folder.as_posix()}.")
    return finished, tuple(cell.name for cell in plan.cells if cell not in finished)


def gather(plan: Plan, work: Work) -> Results:
    """Reads the results of all cells that came to their end.

    Raises:
        NoResultsError: if none has.
    """
    finished, missing = _finished(plan, work)
    rows = pd.DataFrame([_row(cell, work) for cell in finished], columns=list(COLUMNS))
    curves = pd.concat([_curve(cell, work) for cell in finished], ignore_index=True)
    tracks = pd.concat([_tracks(cell, work) for cell in finished], ignore_index=True)
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
        "cpu_minutes_before": _minutes_before(cell, work),
        "minutes": last["minutes"],
    }


def _minutes_before(cell: Cell, work: Work) -> float:
    """Returns the CPU minutes of the stages that an agent owes something to; 0 for one from scratch.

    They are counted whole for each cell, also where cells share them.
    """
    report = _json(_folder(cell, "transfer", work) / AGENT_INIT / TRANSFER_REPORT)
    entry, sources = ALGORITHMS[report["algorithm"]], set(report["parts"].values())
    if entry.clone_inside and any(tensor["name"].startswith(entry.clone_inside) for tensor in report["tensors"]):
        sources.add("cloned")
    stages = {stage for source in sources for stage in PRETRAINING.get(source, ())}
    if entry.needs_demonstrations(cell.params.algorithms[report["algorithm"]]):
        stages |= {"races", "capture"}
    spent = [work.spent(job) for job in cell.jobs if job.stage in stages]
    return sum(each.cpu_seconds for each in spent if each is not None) / 60.0


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
    rows = pd.DataFrame(track_rows(entries), columns=list(TRACK_HEAD))
    return rows.assign(variant=cell.variant, seed=cell.seed)


def _curve(cell: Cell, work: Work) -> pd.DataFrame:
    before = _minutes_before(cell, work)
    lines = [
        line | {"cpu_minutes": line["cpu_minutes"] + before, PACE: _pace(line)}
        for line in _lines(_folder(cell, "train", work) / AGENT / TRAINING_LOG)
    ]
    return pd.DataFrame(lines).assign(variant=cell.variant, seed=cell.seed)


def _pace(line: Mapping[str, Any]) -> float | None:
    rate = line.get("check_finish_rate")
    return rate / line["check_mean_time_s"] if rate else rate


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
