"""All trainings that there are traces of, their curves, and those that run now.

    runs/**/metrics.jsonl                               of trainings by the stage, in experiments, in other environments
    data/agent/, data/agent/compared/*, data/agents/*   of agents, whose runs may be long gone

An agent's log is that of its run without times, so that both are one run here.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np

from rulka.artifacts import ArtifactError, read_meta
from rulka.dashboard.live import MetricsReader, cars_on_page, read_live, track_of, track_outline
from rulka.errors import UserError
from rulka.folders import AGENT, COMPARED, KEPT_AGENTS, RUNS, TRAINING_LOG
from rulka.runtime.live import METRICS_FILE

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
"""What matters first of what logs hold: its name with unit, and what it is."""


class UnknownRunError(UserError):
    """There is no training of a name."""


class Log(NamedTuple):
    """Where the metrics of a training are.

    Attributes:
        key: its folder, as pages name it.
        label: for people.
        path: of its metrics.
        written_s: when it was written to last.
    """

    key: str
    label: str
    path: Path
    written_s: float

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.path.parent


class Runs:
    """Finds and reads trainings, for any number of pages at once.

    Args:
        folder: below which runs are looked for.
        with_agents: whether the logs of agents in `data/` are looked at too.
    """

    def __init__(self, folder: Path = RUNS, *, with_agents: bool = True) -> None:
        self._folder, self._with_agents, self._lock = folder, with_agents, RLock()
        self._logs: dict[str, Log] = {}
        self._found_s = -np.inf
        self._metrics: dict[str, MetricsReader] = {}

    def logs(self) -> list[Log]:
        """Returns all trainings, the one that was written to last first."""
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
        """Returns the logs of runs, and of agents whose runs are not there any more."""
        runs, handed_on = sorted(self._folder.rglob(METRICS_FILE)), sorted(self._folder.rglob(TRAINING_LOG))
        if self._with_agents:
            agents = [AGENT, *sorted((AGENT / COMPARED).glob("*/")), *sorted(KEPT_AGENTS.glob("*/"))]
            handed_on += [path for folder in agents if (path := folder / TRAINING_LOG).is_file()]
        there = {path.parent.name for path in runs}
        return runs + [path for path in handed_on if _run_of(path.parent) not in there]

    def log(self, key: str) -> Log:
        """Returns one training.

        Args:
            key: of it; an empty text is the one that was written to last.

        Raises:
            UnknownRunError: if there is none.
        """
        logs = self.logs()
        for log in logs:
            if key in ("", log.key):
                return log
        message = f"there is no training {key!r}" if key else "nothing was trained yet"
        raise UnknownRunError(message, hint="`dvc repro train` trains; it appears here with its first numbers.")

    def metrics(self, log: Log) -> MetricsReader:
        """Returns what is in a training's log now."""
        with self._lock:
            reader = self._metrics.setdefault(log.key, MetricsReader(log.path))
            reader.read_on()
            return reader

    def names(self) -> list[str]:
        """Returns the names of all numbers that any log holds."""
        return sorted({name for log in self.logs() for name in self.metrics(log).names})

    def curves(self, metric: str, axis: str) -> list[dict[str, Any]]:
        """Returns one curve of every training that has it.

        Args:
            metric: name of a number.
            axis: one of `AXES`.

        Returns:
            Of each `key`, `x` and `y`, as long as each other.
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
        """Returns all that the live page shows of a training.

        Returns:
            That of `newest`, `curves` (by metric, points [env steps, value]) and `track`, see `track_outline`.

        Raises:
            UserError: if there is none, or its track is damaged.
        """
        log = self.log(key)
        with self._lock:
            curves = self.metrics(log).curves()
        return self.newest(log.key) | {"curves": curves, "track": track_outline(track_of(log.folder))}

    def newest(self, key: str) -> dict[str, Any]:
        """Returns what changes most of the time in a training.

        Returns:
            `key`, `run` (its label), `is_running`, `latest` (last value of every metric), `cars`, see `cars_on_page`,
            and `num_damaged` (lines of its metrics that cannot be read).

        Raises:
            UserError: if there is none, or its track is damaged.
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
        """Whether a training is at work."""
        return read_live(log.folder).is_running


def _run_of(agent: Path) -> str | None:
    """Returns the name of the run that an agent came of; None where its metadata do not say."""
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
