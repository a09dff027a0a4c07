"""Results of an experiment: a row for each finished cell, and a summary of each variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rulka.agents.algorithms import actor_class
from rulka.contracts.artifacts import META_FILE
from rulka.contracts.stored import checked
from rulka.evaluation.statistics import improvement_p, probability_of_improvement, stratified_interval
from rulka.machine.errors import UserError
from rulka.runtime.live import METRICS_FILE as RUN_METRICS
from rulka.stages.folders import AGENT, AGENT_INIT, EVALUATION, METRICS_FILE, TRAINING_RUNS, TRANSFER_REPORT
from rulka.stages.graph import read_graph
from rulka.study.plan import EXPERIMENTS, Cell, Plan

SCORE = "lap_share"
"""Score of a run: mean over races of reference lap over race time, 0 for an unfinished race."""
PRETRAINING: Mapping[str, tuple[str, ...]] = {
    "pretrained": ("races", "capture", "pretrain"),
    "cloned": ("races", "capture", "pretrain", "clone"),
}
"""Stages that an agent's parts depend on, by source of the part."""
PACE = "check_mean_pace_mps"
"""Score of a greedy check."""


@dataclass(frozen=True)
class Results:
    """All finished cells of an experiment.

    Attributes:
        rows: one per cell, with `variant`, `seed`, and its numbers: `measures` if the file names any, else results of
            training and races.
        missing: names of the unfinished cells.
        curves: training log of each cell, with `variant`, `seed` and `PACE`; `cpu_minutes` includes the stages before
            training. Empty with `measures`.
        tracks: results of each cell's agent and cloned policy on each track, with `variant` and `seed`; likewise.
    """

    rows: pd.DataFrame
    missing: tuple[str, ...]
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    tracks: pd.DataFrame = field(default_factory=pd.DataFrame)

    def summaries(self, baseline: str) -> list[dict[str, Any]]:
        """Aggregates the seeds of each variant with a finished cell, in the order of the file.

        Each summary has the mean score with its interval, the probability of improvement over the baseline with its
        p-value (None for the baseline, or a single run), the median time, the minimum of `kept`, and means of the rest.
        """
        return [self._summary(variant, runs, baseline) for variant, runs in self.rows.groupby("variant", sort=False)]

    def _summary(self, variant: Any, runs: pd.DataFrame, baseline: str) -> dict[str, Any]:
        scores, others = column(runs, SCORE), column(self.rows[self.rows["variant"] == baseline], SCORE)
        is_compared = variant != baseline and min(len(scores), len(others)) > 1
        times_s, kept = column(runs, "median_time_s"), column(runs, "kept")
        times_s = times_s[np.isfinite(times_s)]
        return {
            "variant": variant,
            "num_runs": len(runs),
            "score": float(scores.mean()),
            # A single run, or equal ones, do not tell how far another may lie.
            "score_interval": stratified_interval(scores[:, None]) if np.ptp(scores) > 0.0 else None,
            "improvement": float(probability_of_improvement(scores, others)) if is_compared else None,
            "improvement_p": improvement_p(scores, others) if is_compared else None,
            "median_time_s": float(np.median(times_s)) if len(times_s) else None,
            "kept": float(kept.min()) if np.isfinite(kept).all() else None,
        } | {
            name: float(column(runs, name).mean())
            for name in ("finish_rate", "env_steps", "cpu_minutes", "cpu_minutes_before")
        }

    def level(self, baseline: str) -> float:
        """Returns the median over the baseline's runs of their best greedy check's pace; 0 if most finish nothing."""
        checks = self.curves[(self.curves["variant"] == baseline) & self.curves[PACE].notna()]
        best = [column(run, PACE).max() for _, run in checks.groupby("seed")]
        return float(np.median(best)) if best else 0.0

    def steps_to_level(self, level: float) -> pd.DataFrame:
        """Returns `variant`, `env_steps` and `cpu_minutes` of each run whose greedy checks reached a level above 0.

        Values are those of the first check that did; minutes include the stages before training.
        """
        reached = self.curves[self.curves[PACE] >= level]
        return reached.groupby(["variant", "seed"], sort=False)[["env_steps", "cpu_minutes"]].first().reset_index()


def column(rows: Any, name: str) -> NDArray[np.float64]:
    """Returns [N] the numbers of a column; NaN if missing."""
    return np.asarray(rows[name], np.float64)


def gather(plan: Plan) -> Results:
    """Reads the results of all finished cells.

    Raises:
        UserError: if no cell has finished, or the file names a measure that does not exist.
    """
    finished = [cell for cell in plan.cells if cell.last.cpu_seconds is not None]
    if not finished:
        message = f"no cell of {plan.name} has come to its end"
        raise UserError(message, hint=f"Look at the logs in {EXPERIMENTS.as_posix()}.")
    missing = tuple(cell.name for cell in plan.cells if cell not in finished)
    if plan.file.measures:
        return Results(pd.DataFrame([_measured(cell, plan.file.measures) for cell in finished]), missing)
    rows, curves, tracks = zip(*map(_raced, finished), strict=True)
    return Results(
        pd.DataFrame(rows).astype({"median_time_s": float, "kept": float}),
        missing,
        pd.concat(curves, ignore_index=True),
        pd.concat(tracks, ignore_index=True).astype({"median_time_s": float, "times_reference": float}),
    )


def _measured(cell: Cell, measures: Sequence[str]) -> dict[str, Any]:
    stage = list(cell.jobs)[-1]
    metrics = _json(cell.last.folder / read_graph()[stage]["outs"][0] / METRICS_FILE)
    numbers = {name: _number(metrics, name, f"metrics of {stage}") for name in measures}
    return {"variant": cell.variant, "seed": cell.seed, **numbers}


def _number(metrics: Any, name: str, whose: str) -> float:
    value = metrics
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            known = ", ".join(value) if isinstance(value, dict) else "a number"
            message = f"measures: {whose} have no {name}; where {key} is looked for there is {known}"
            raise UserError(message, hint="A dot stands before each key inside another.")
        value = value[key]
    if value is None:  # say the mean time of races of which none was finished
        return float("nan")
    if not isinstance(value, (int, float)):
        raise UserError(f"measures: {name} of the {whose} is no number", hint="Name one of the numbers inside it.")
    return float(value)


def _raced(cell: Cell) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
    """Returns the row, the curve and the tracks of a cell whose agent has raced."""
    metrics = _json(cell.jobs["evaluate"].folder / EVALUATION / METRICS_FILE)
    trained = cell.jobs["train"].folder
    training = _json(trained / AGENT / META_FILE)["provenance"]["training"]
    log = trained / TRAINING_RUNS / training["run"] / RUN_METRICS  # has times, unlike any output
    lines = [_object(line, log) for line in log.read_bytes().splitlines()]
    agent, last, before = metrics["agent"], lines[-1], _minutes_before(cell)
    own = {"variant": cell.variant, "seed": cell.seed}
    row = own | {
        SCORE: agent[SCORE],
        "finish_rate": agent["finish_rate"],
        "median_time_s": agent["median_time_s"],
        "kept": retained_finish_rate(lines),
        "env_steps": last["env_steps"],
        "gradient_steps": last.get("gradient_steps", 0),
        "cpu_minutes": last["cpu_minutes"],
        "cpu_minutes_before": before,
        "minutes": last["minutes"],
        "repeats": "yes" if training["repeats"] == "yes" else "no",
    }
    curve = [line | {"cpu_minutes": line["cpu_minutes"] + before, PACE: line.get(PACE)} for line in lines]
    facts = ("uid", "name", "length_m", "trained_on")
    tracks = pd.DataFrame(
        {name: entry[name] for name in facts} | {"driver": driver} | entry["drivers"][driver]
        for entry in metrics["tracks"]
        for driver in ("agent", "cloned")
        if driver in entry["drivers"]
    )
    return row, pd.DataFrame(curve).assign(**own).astype({PACE: float}), tracks.assign(**own)


def _minutes_before(cell: Cell) -> float:
    """Returns the CPU minutes of the stages that an agent depends on; 0 for one from scratch.

    Stages that cells share count in full for each cell.
    """
    report = _json(cell.jobs["transfer"].folder / AGENT_INIT / TRANSFER_REPORT)
    inside, sources = actor_class(report["algorithm"]).clone_inside, set(report["parts"].values())
    if inside and any(tensor["name"].startswith(inside) for tensor in report["tensors"]):
        sources.add("cloned")
    stages = {stage for source in sources for stage in PRETRAINING.get(source, ())}
    if cell.params.algorithms[report["algorithm"]].has_demonstrations:
        stages |= {"races", "capture"}
    return sum(job.cpu_seconds or 0.0 for stage, job in cell.jobs.items() if stage in stages) / 60.0


def retained_finish_rate(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the share of the initial finish rate that is kept in the first half of a training.

    It is the lowest finish rate of the greedy checks in the first half of all environment steps, relative to the first
    check's, which is of the initial weights. None if these finished no race. A tenth would be too short: so long IQN is
    driven by its guide.
    """
    checks = [line for line in lines if line.get("check_finish_rate") is not None]
    early = [check["check_finish_rate"] for check in checks if check["env_steps"] <= 0.5 * lines[-1]["env_steps"]]
    return min(early) / early[0] if early and early[0] > 0.0 else None


def _json(path: Path) -> dict[str, Any]:
    return _object(path.read_bytes(), path)


def _object(data: bytes, path: Path) -> dict[str, Any]:
    hint = "Remove the folder of its stage: the same command makes it anew."
    return checked(data, dict[str, Any], path.as_posix(), hint=hint)
