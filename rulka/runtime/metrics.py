"""Metrics of a run: results of races, and time shares."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rulka.buffers.experience import BlockSpec
from rulka.runtime.messages import BlockFilled, CollectorTimes, RaceEnd

NUM_RECENT_RACES = 200
Activity = Literal["waiting", "inserting", "updating", "publishing", "checking", "saving", "reporting"]
"""Activities of the learner's process; in serial mode, waiting includes driving its collector."""
_COLLECTOR_ACTIVITIES = [field.name.removesuffix("_s") for field in fields(CollectorTimes)]
MEASURED = {
    *("minutes", "cpu_minutes", "blocks_under_way", "num_restarts", "blocks_ready", "learner_busy_share"),
    *("env_steps_per_s", "samples_learned_per_s", "fresh_samples_per_s", "blocks_mb_per_s", "weights_mb_per_s"),
    *("learner_cpu_share", *(f"learner_{activity}_share" for activity in get_args(Activity))),
    *(f"collectors_{activity}_share" for activity in _COLLECTOR_ACTIVITIES),
}
"""Metrics of the machine's performance, which never repeat."""
SPREAD = {"grad_norm"}
QUANTILES = {"median": 0.5, "d9": 0.9, "max": 1.0}
_NO_TIME = np.zeros(len(_COLLECTOR_ACTIVITIES))


class RaceCounts:
    """Results of training races: means of recent races, and the best time so far.

    Races that began down the track say little about how far the agent gets: metres count from the start line, and from
    just before the finish nearly every race finishes. So finish rate, progress and times cover only full races, those
    that begin at the start line; a run with `start_anywhere: 1` has none and relies on its greedy checks.

    Attributes:
        num_races: races that ended so far.
        best_training_time_s: fastest finished training race from the start line, or None before there is one.
    """

    def __init__(self) -> None:
        self.num_races = 0
        self.best_training_time_s: float | None = None
        names = ("finish_rate", "mean_progress_m", "mean_return", "mean_training_time_s")
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=NUM_RECENT_RACES) for name in names}

    def add(self, races: Iterable[RaceEnd]) -> None:
        """Adds races that ended. A race that did not finish, or began down the track, is never a record."""
        for race in races:
            self.num_races += 1
            self._recent["mean_return"].append(race.total_reward)
            if not race.is_full_race:
                continue
            self._recent["finish_rate"].append(race.is_finished)
            self._recent["mean_progress_m"].append(race.progress_m)
            if race.is_finished:
                self._recent["mean_training_time_s"].append(race.time_ms / 1000.0)
                self.best_training_time_s = min(race.time_ms / 1000.0, self.best_training_time_s or float("inf"))

    def values(self) -> dict[str, float | int | None]:
        """Returns totals, and means of recent races, None before the first; the mean return covers all races."""
        means = {name: float(np.mean(recent)) if recent else None for name, recent in self._recent.items()}
        return means | {"best_training_time_s": self.best_training_time_s, "num_races": self.num_races}

    def state_dict(self) -> dict[str, Any]:
        """Returns all of it for a checkpoint."""
        recent = {name: list(values) for name, values in self._recent.items()}
        return {"num_races": self.num_races, "best_training_time_s": self.best_training_time_s, "recent": recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        self.num_races, self.best_training_time_s = state["num_races"], state["best_training_time_s"]
        for name, values in state["recent"].items():
            self._recent[name].extend(values)


class Spent:
    """Seconds of a learner by activity, since the last `take`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def spending(self, activity: Activity) -> Iterator[None]:
        """Counts the time of a `with` block as spent on an activity."""
        started_s = time.monotonic()
        yield
        self._seconds[activity] += time.monotonic() - started_s

    def take(self) -> dict[str, float]:
        """Returns the seconds since the last call, by activity; only activities that took place."""
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken


class TimeShares:
    """Time shares of learner and collectors, and amount and staleness of experience, since the last report."""

    def __init__(self, allowed_lag: int | None) -> None:
        """Starts the clocks.

        Args:
            allowed_lag: experience is fresh if its weights lag by at most this many versions; None: always.
        """
        self._allowed_lag = allowed_lag
        self._spent = Spent()
        self.spending = self._spent.spending
        self._start()

    def add_deliveries(self, num_blocks: int) -> None:
        """Adds the number of filled blocks that were ready when the learner took some."""
        self._num_ready.append(num_blocks)

    def add_block(self, collector: int, facts: BlockFilled, spec: BlockSpec, version: int) -> None:
        """Adds a block that was just inserted.

        Args:
            collector: index of the collector that filled it.
            facts: of the block.
            spec: its shape.
            version: of the learner's weights now.
        """
        self._num_env_steps += spec.num_env_steps
        self._num_block_bytes += spec.num_bytes
        self._collector_s[collector] += np.array(astuple(facts.spent))
        self._versions_behind.append(version - facts.version)

    def add_learner(self, rank: int, spent_s: Mapping[str, float]) -> None:
        """Adds the seconds that a further learner spent, by activity."""
        for activity, seconds in spent_s.items():
            self._further_s[rank][activity] += seconds

    def add_update(self, num_samples: float, weight_bytes: int) -> None:
        """Adds an update.

        Args:
            num_samples: transitions or decisions that it learned from, counted once per use.
            weight_bytes: of weights sent to collectors since the last update.
        """
        self._num_samples += num_samples
        self._num_weight_bytes += weight_bytes

    def take(self) -> tuple[dict[str, float | None], dict[str, float]]:
        """Returns the metrics since the last call, None if there is nothing to average, and resets them.

        Returns:
            The learner's shares of wall time and the shares of the collectors' total time;
            and the same for each further learner and each collector, under their own tags.
        """
        wall_s = max(1e-9, time.monotonic() - self._started_s)
        behind, learner_s = self._versions_behind, dict.fromkeys(get_args(Activity), 0.0) | self._spent.take()
        values = {
            "env_steps_per_s": self._num_env_steps / wall_s,
            "samples_learned_per_s": self._num_samples / wall_s,
            "learner_busy_share": (learner_s["inserting"] + learner_s["updating"]) / wall_s,
            "learner_cpu_share": (time.process_time() - self._started_cpu_s) / wall_s,
            "blocks_ready": float(np.mean(self._num_ready)) if self._num_ready else None,
            "versions_behind": float(np.mean(behind)) if behind else None,
            "most_versions_behind": max(behind, default=None),
            "blocks_mb_per_s": self._num_block_bytes / 1e6 / wall_s,
            "weights_mb_per_s": self._num_weight_bytes / 1e6 / wall_s,
        }
        if self._allowed_lag is not None:  # all blocks have the same size
            fresh = float(np.mean(np.array(behind) <= self._allowed_lag)) if behind else None
            learned_per_s = None if fresh is None else self._num_samples / wall_s * fresh
            values |= {"freshness": fresh, "fresh_samples_per_s": learned_per_s}
        values |= {f"learner_{activity}_share": seconds / wall_s for activity, seconds in learner_s.items()}
        together_s = np.sum([_NO_TIME, *self._collector_s.values()], axis=0)
        values |= {f"collectors_{name}_share": share for name, share in _shares(together_s).items()}
        each = {
            f"Collectors/{index}/{name}_share": share
            for index, spent_s in sorted(self._collector_s.items())
            for name, share in _shares(spent_s).items()
            if share is not None
        }
        each |= {
            f"Learners/{rank}/{activity}_share": seconds / wall_s
            for rank, spent_s in sorted(self._further_s.items())
            for activity, seconds in spent_s.items()
        }
        self._start()
        return values, each

    def _start(self) -> None:
        self._started_s, self._started_cpu_s = time.monotonic(), time.process_time()
        self._num_env_steps, self._num_samples = 0, 0.0
        self._num_block_bytes = self._num_weight_bytes = 0
        self._collector_s: dict[int, NDArray[np.float64]] = defaultdict(_NO_TIME.copy)
        self._further_s: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._versions_behind: list[int] = []
        self._num_ready: list[int] = []


def _shares(spent_s: NDArray[np.float64]) -> dict[str, float | None]:
    """Returns each activity's share of collector time; None without any."""
    total_s = float(np.sum(spent_s))
    named = zip(_COLLECTOR_ACTIVITIES, spent_s.tolist(), strict=True)
    return {name: seconds / total_s if total_s else None for name, seconds in named}


class LearningMeans:
    """Means of the learner's metrics since the last report, and the spread of some."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        """Adds the metrics of one update."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(float(value))

    def take(self) -> dict[str, float]:
        """Returns the means and resets them; of `SPREAD` also quantiles over the updates."""
        means = {name: float(np.mean(values)) for name, values in self._values.items()}
        for name in SPREAD & self._values.keys():
            quantiles = np.quantile(self._values[name], list(QUANTILES.values())).tolist()
            means |= {f"{name}_{short}": value for short, value in zip(QUANTILES, quantiles, strict=True)}
        self._values.clear()
        return means

    def state_dict(self) -> dict[str, list[float]]:
        """Returns the values of the next report, for a checkpoint."""
        return self._values

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Resumes from a `state_dict`."""
        self._values = state
