"""What a run measures of itself: results of races, and shares of time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rulka.runtime.messages import BlockFilled, RaceEnd

NUM_RECENT_RACES = 200


class RaceStatistics:
    """Results of training races: recent ones in the mean, and the best time ever.

    Attributes:
        num_races: races that ended so far.
        best_training_time_s: fastest finished training race from the start line, or None before there is one.
    """

    def __init__(self) -> None:
        self.num_races = 0
        self.best_training_time_s: float | None = None
        self._recent: deque[tuple[bool, float, float]] = deque(maxlen=NUM_RECENT_RACES)

    def add(self, races: Iterable[RaceEnd]) -> None:
        """Adds races that ended. A race that did not finish, or began down the track, is never a record."""
        for race in races:
            self.num_races += 1
            self._recent.append((race.is_finished, race.total_reward, race.progress_m))
            if race.is_finished and race.is_full_race:
                self.best_training_time_s = min(race.time_ms / 1000.0, self.best_training_time_s or float("inf"))

    def values(self) -> dict[str, float | int | None]:
        """Returns finish rate, mean return and mean progress of recent races, None before the first, and totals."""
        names = ("finish_rate", "mean_return", "mean_progress_m")
        means = np.mean(np.array(self._recent), axis=0).tolist() if self._recent else [None] * len(names)
        totals = {"best_training_time_s": self.best_training_time_s, "num_races": self.num_races}
        return dict(zip(names, means, strict=True)) | totals

    def state_dict(self) -> dict[str, Any]:
        """Returns all of it for a checkpoint."""
        recent = [list(race) for race in self._recent]
        return {"num_races": self.num_races, "best_training_time_s": self.best_training_time_s, "recent": recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self.num_races, self.best_training_time_s = state["num_races"], state["best_training_time_s"]
        self._recent.clear()
        self._recent.extend((finished, total_reward, progress) for finished, total_reward, progress in state["recent"])


class TimeShares:
    """How learner and collectors spend their time, and how old the experience is, since the last report."""

    def __init__(self) -> None:
        self._start()

    def add_block(self, facts: BlockFilled, num_env_steps: int, version: int) -> None:
        """Adds a block that was just inserted.

        Args:
            facts: of the block.
            num_env_steps: decisions in it.
            version: of the learner's weights now.
        """
        self._num_env_steps += num_env_steps
        self._filling_s += facts.filling_s
        self._waiting_s += facts.waiting_s
        self._versions_behind.append(version - facts.version)

    def add_learning(self, seconds: float) -> None:
        """Adds time that the learner spent on inserting and updating."""
        self._learning_s += seconds

    def take(self) -> dict[str, float | None]:
        """Returns what happened since the last call, None where there is nothing to average, and starts anew."""
        wall_s = max(1e-9, time.monotonic() - self._started_s)
        collecting_s = self._filling_s + self._waiting_s
        behind = self._versions_behind
        values = {
            "env_steps_per_s": self._num_env_steps / wall_s,
            "learner_busy_share": self._learning_s / wall_s,
            "collectors_waiting_share": self._waiting_s / collecting_s if collecting_s else None,
            "versions_behind": float(np.mean(behind)) if behind else None,
            "most_versions_behind": max(behind, default=None),
        }
        self._start()
        return values

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._num_env_steps = 0
        self._filling_s = self._waiting_s = self._learning_s = 0.0
        self._versions_behind: list[int] = []


class LearningMeans:
    """Means of the learner's metrics since the last report."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Adds the metrics of one update."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(float(value))

    def take(self) -> dict[str, float]:
        """Returns the means and starts anew."""
        means = {name: float(np.mean(values)) for name, values in self._values.items()}
        self._values.clear()
        return means
