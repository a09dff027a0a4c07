"""Tasks of `benchmarks.qrdqn`, and the settings shared by both sides."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from benchmarks.qrdqn.catch import NUM_ACTIONS, SIZE, CatchEnv
from rulka.contracts.observation import Normalisation, reference_normalisation
from rulka.envs.episodes import Episodes
from rulka.envs.race import RaceEnv
from rulka.envs.vector import RaceVectorEnv
from rulka.params import reference_params
from rulka.runtime.collector import CarBatch
from rulka.tracks.generate import generate_track

NUM_ENVS, BATCH, STEPS_PER_UPDATE, NUM_QUANTILES, HEAD_WIDTH, FLOAT_WIDTH = 8, 32, 4, 8, 512, 64
LEARNING_RATE, OPTIMIZER_EPSILON = 1e-3, 1e-4
START_STEPS, TARGET_STEPS, LAST_EPSILON = 1024, 400, 0.02
"""Decisions before the first update; decisions between target network updates; final epsilon. `STEPS_PER_UPDATE` must
divide `NUM_ENVS`: QR-DQN updates after a step of all environments."""


class Episode(NamedTuple):
    """Result of an episode: undiscounted return, and whether the car crossed the finish line."""

    total_reward: float
    is_finished: bool


@dataclass(frozen=True)
class Task:
    """An environment, built for either side, and its success criterion.

    Attributes:
        make_cars: builds the batch of cars for Rulka's runtime.
        make_env: builds one gymnasium environment.
        normalisation: of the floats.
        num_actions: size of the action table.
        size: height and width of a frame.
        gamma: discount per decision.
        explore_steps: decisions over which epsilon decays linearly from 1.
        max_steps: decisions after which an attempt is given up.
        episodes: N; the score is the mean over the last N training episodes.
        target: score to reach.
        score: score of an episode.
        score_name: describes the criterion.
    """

    make_cars: Callable[[int], CarBatch]
    make_env: Callable[[], gymnasium.Env[Any, Any]]
    normalisation: Normalisation
    num_actions: int
    size: int
    gamma: float
    explore_steps: int
    max_steps: int
    episodes: int
    target: float
    score: Callable[[Episode], float]
    score_name: str


class Watch:
    """Scores training episodes until the target or a limit is reached; counts CPU time from its creation.

    Attributes:
        best: best score so far; minus infinity until there are enough episodes.
        reached: True once the target is reached.
    """

    def __init__(self, task: Task, max_cpu_s: float) -> None:
        self._task, self._max_cpu_s = task, max_cpu_s
        self._scores: deque[float] = deque(maxlen=task.episodes)
        self._began_s = time.process_time()
        self._first_update: tuple[int, float] | None = None
        self.best, self.reached = -np.inf, False

    def note(self, episode: Episode) -> None:
        """Records a finished episode."""
        self._scores.append(self._task.score(episode))
        if len(self._scores) == self._task.episodes:
            self.best = max(self.best, float(np.mean(self._scores)))
            self.reached = self.reached or self.best >= self._task.target

    def is_over(self, steps: int) -> bool:
        """True if training should stop after `steps` decisions; also notes when learning begins."""
        if self._first_update is None and steps >= START_STEPS:
            self._first_update = steps, time.process_time()
        return self.reached or steps >= self._task.max_steps or time.process_time() - self._began_s > self._max_cpu_s

    def result(self, steps: int) -> dict[str, float]:
        """Returns the measurements after `steps` decisions."""
        now_s = time.process_time()
        learned_from, learned_at_s = self._first_update or (0, self._began_s)
        return {
            "reached": float(self.reached),
            "best": float(self.best),
            "steps": float(steps),
            "cpu_s": now_s - self._began_s,
            "steps_per_cpu_s": steps / (now_s - self._began_s),
            "learning_steps_per_cpu_s": (steps - learned_from) / max(now_s - learned_at_s, 1e-9),
        }


def catch_task() -> Task:
    """Returns Catch64; its target is 4.5 of 5 balls caught, a return of 4."""
    seen = reference_params().observation.model_copy(update={"height": SIZE, "width": SIZE})
    return Task(
        make_cars=lambda num_cars: Episodes("rulka/Catch64-v0", num_cars, seen),
        make_env=CatchEnv,
        normalisation=Normalisation(np.zeros(1, np.float32), np.array([70], np.float32)),  # the clock alone
        num_actions=NUM_ACTIONS,
        size=SIZE,
        gamma=0.95,
        explore_steps=4000,
        max_steps=16_000,
        episodes=30,
        target=4.0,
        score=lambda episode: episode.total_reward,
        score_name="mean return of the last 30 training episodes at least 4 (4.5 of 5 balls caught)",
    )


def race_task() -> Task:
    """Returns an easy track of `rulka/Race-v0`; its target is half of the last 20 training races finished."""
    track = generate_track(seed=0, length_m=150.0, width_m=24.0, max_slope=0.0, gate_spacing_m=50.0, difficulty="easy")
    options: dict[str, Any] = {"start_anywhere": 0.0, "max_race_s": 15.0}
    return Task(
        make_cars=lambda num_cars: RaceVectorEnv(num_cars, track=track, **options).batch,
        make_env=lambda: RaceEnv(track=track, **options),
        normalisation=reference_normalisation(),
        num_actions=12,
        size=64,
        gamma=0.97,
        explore_steps=8000,
        max_steps=40_000,
        episodes=20,
        target=0.5,
        score=lambda episode: float(episode.is_finished),
        score_name="at least half of the last 20 training races finished",
    )


TASKS: dict[str, Callable[[], Task]] = {"catch": catch_task, "race": race_task}
