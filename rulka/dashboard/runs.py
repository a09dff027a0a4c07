"""Finds all training runs, finished or running, and reads their curves.

    runs/**/metrics.jsonl                               runs of the stage, of experiments, of other environments
    data/agent/, data/agent/compared/*, data/agents/*   agents whose runs may be deleted

An agent's log is its run's log without times, so an agent whose run still exists is not listed separately.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from rulka.contracts.artifacts import ArtifactError, read_meta
from rulka.dashboard.live import MetricsReader, cars_on_page, read_live, track_of, track_outline
from rulka.machine.errors import UserError
from rulka.runtime.live import METRICS_FILE
from rulka.stages.folders import AGENT, COMPARED, KEPT_AGENTS, RUNS, TRAINING_LOG

FIND_EVERY_S = 3.0
AXES = {"env_steps": "environment steps", "minutes": "minutes", "cpu_minutes": "minutes of processor time"}
MAIN = {
    "finish_rate": ("races finished (share)", "Of the last training races, which explore and may start anywhere."),
    "mean_progress_m": ("progress of a race (m)", "How far along the track; mean of the last training races."),
    "mean_return": ("return of a race (reward)", "Mean of the last training races, shaping left out."),
    "check_finish_rate": (
        "greedy checks: finished (share)",
        "Without exploring, from the start line; they choose weights.",
    ),
    "check_mean_time_s": ("greedy checks: mean time (s)", "Of the races of a check that finished."),
    "record_s": ("record (s)", "The fastest greedy race so far."),
    "loss": ("loss", "What an update minimises; comparable within one algorithm alone."),
    "entropy": ("entropy (nats)", "How undecided the policy is; 0 where it always takes the same action."),
    "grad_norm": ("norm of the gradient", "Before it is clipped."),
    "env_steps_per_s": ("environment steps a second", "Decisions of all cars together."),
}
"""Metrics to list first: label with unit, and explanation, by key."""


class Log(NamedTuple):
    """Metrics file of a training run.

    Attributes:
        key: folder of the run, its id in URLs.
        label: display name.
        path: metrics file.
        written_s: time of last modification, Unix seconds.
    """

    key: str
    label: str
    path: Path
    written_s: float

    @property
    def folder(self) -> Path:
        """Folder that holds it."""
        return self.path.parent


class Runs:
    """Finds and reads training runs; thread-safe.

    Args:
        folder: searched recursively for runs.
        with_agents: True to include the logs of agents in `data/`.
    """

    def __init__(self, folder: Path = RUNS, *, with_agents: bool = True) -> None:
        self._folder, self._with_agents, self._lock = folder, with_agents, RLock()
        self._logs: dict[str, Log] = {}
        self._found_s = -np.inf
        self._metrics: dict[str, MetricsReader] = {}

    def logs(self) -> list[Log]:
        """Returns all training runs, the most recently written first."""
        with self._lock:
            if time.monotonic() - self._found_s > FIND_EVERY_S:
                self._logs = {}
                for path in self._paths():
                    key, label = path.parent.as_posix(), _label(path, self._folder)
                    with suppress(FileNotFoundError):
                        self._logs[key] = Log(key, label, path, path.stat().st_mtime)
                self._found_s = time.monotonic()
            return sorted(self._logs.values(), key=lambda log: -log.written_s)

    def _paths(self) -> list[Path]:
        """Returns the logs of runs, and of agents whose runs no longer exist."""
        runs, handed_on = sorted(self._folder.rglob(METRICS_FILE)), sorted(self._folder.rglob(TRAINING_LOG))
        if self._with_agents:
            agents = [AGENT, *sorted((AGENT / COMPARED).glob("*/")), *sorted(KEPT_AGENTS.glob("*/"))]
            handed_on += [path for folder in agents if (path := folder / TRAINING_LOG).is_file()]
        there = {path.parent.name for path in runs}
        return runs + [path for path in handed_on if _run_of(path.parent) not in there]

    def log(self, key: str) -> Log:
        """Returns one training run.

        Args:
            key: its key; empty takes the most recently written.

        Raises:
            UserError: if there is none.
        """
        logs = self.logs()
        for log in logs:
            if key in ("", log.key):
                return log
        message = f"there is no training {key!r}" if key else "nothing was trained yet"
        raise UserError(message, hint="`dvc repro train` trains; it appears here with its first numbers.")

    def metrics(self, log: Log) -> MetricsReader:
        """Returns the reader of a run's metrics, brought up to date."""
        with self._lock:
            reader = self._metrics.setdefault(log.key, MetricsReader(log.path))
            reader.read_on()
            return reader

    def names(self) -> list[str]:
        """Returns the names of the metrics in all logs."""
        return sorted({name for log in self.logs() for name in self.metrics(log).names})

    def curves(self, metric: str, axis: str) -> list[dict[str, Any]]:
        """Returns one metric's curve for every run that has it.

        Args:
            metric: name of the metric.
            axis: one of `AXES`.

        Returns:
            `key`, `x` and `y` of each run; `x` and `y` have equal length.
        """
        found = []
        for log in self.logs():
            metrics = self.metrics(log)
            with self._lock:
                points = np.array(metrics.curve(metric), np.float64).reshape(-1, 2)
                clock = metrics.points(axis)
            if not len(points) or (axis != "env_steps" and not len(clock)):
                continue
            x = points[:, 0] if axis == "env_steps" else np.interp(points[:, 0], clock[:, 0], clock[:, 1])
            found.append({"key": log.key, "x": np.round(x, 3).tolist(), "y": points[:, 1].tolist()})
        return found

    def snapshot(self, key: str) -> dict[str, Any]:
        """Returns the live page's full data of a run.

        Returns:
            Fields of `newest`, plus `curves` (points [env steps, value] by metric) and `track`, see `track_outline`.

        Raises:
            UserError: if there is no such run, or its track is damaged.
        """
        log = self.log(key)
        with self._lock:
            curves = self.metrics(log).curves()
        return self.newest(log.key) | {"curves": curves, "track": track_outline(track_of(log.folder))}

    def newest(self, key: str) -> dict[str, Any]:
        """Returns the frequently changing part of a run's data.

        Returns:
            `key`, `run` (its label), `is_running`, `latest` (last value of every metric), `cars`, see `cars_on_page`,
            and `num_damaged` (lines of its metrics that cannot be parsed).

        Raises:
            UserError: if there is no such run, or its track is damaged.
        """
        log = self.log(key)
        live, metrics = read_live(log.folder), self.metrics(log)
        return {
            "key": log.key,
            "run": log.label,
            "is_running": live.is_running,
            "latest": metrics.latest,
            "cars": cars_on_page(track_of(log.folder), np.array(live.cars, np.float64).reshape(-1, 4)),
            "num_damaged": metrics.num_damaged,
        }

    def is_running(self, log: Log) -> bool:
        """True if the run is active."""
        return read_live(log.folder).is_running


def _run_of(agent: Path) -> str | None:
    """Returns the name of the run that trained an agent; None if its metadata lack it."""
    with suppress(ArtifactError):
        return read_meta(agent, kind="agent")["provenance"]["training"].get("run")
    return None


def _label(path: Path, runs: Path) -> str:
    folder = path.parent
    if folder == AGENT:
        return "latest agent"
    if folder.parent == AGENT / COMPARED:
        return f"latest agent, {folder.name}"
    if folder.parent == KEPT_AGENTS:
        return f"promoted, {folder.name}"
    inside = folder.relative_to(runs) if folder.is_relative_to(runs) else folder
    return inside.as_posix().removesuffix(f"/{AGENT.as_posix()}").removeprefix("train/") or folder.name
