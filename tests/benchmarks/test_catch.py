"""Catch64, and the rule by which the benchmark beside QR-DQN says that it is learned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.qrdqn.catch import BALL, EPISODE_STEPS, GRID, NUM_BALLS, SIZE, CatchEnv
from benchmarks.qrdqn.rulka_side import run
from benchmarks.qrdqn.tasks import START_STEPS, Episode, Watch, catch_task


def test_following_the_ball_catches_all_five() -> None:
    env = CatchEnv()
    seen, _ = env.reset(seed=0)
    rewards = []
    is_over = False
    while not is_over:
        cells = seen[0, :: SIZE // GRID, :: SIZE // GRID]
        ball, paddle = cells.max(axis=0).argmax(), cells[-1].argmax()
        assert cells.max() == BALL
        seen, reward, is_over, _, _ = env.step(1 + np.sign(int(ball) - int(paddle)))
        rewards.append(reward)
        if reward:  # the next ball falls already
            assert len(rewards) % (GRID - 1) == 0
    assert sum(rewards) == NUM_BALLS
    assert len(rewards) == EPISODE_STEPS


def test_target_counts_once_enough_episodes_reach_it() -> None:
    task = catch_task()
    watch = Watch(task, max_cpu_s=1e9)
    for _ in range(task.episodes - 1):
        watch.note(Episode(5.0, is_finished=True))
    assert not watch.is_over(START_STEPS)
    watch.note(Episode(5.0, is_finished=True))
    assert watch.is_over(START_STEPS)
    assert watch.result(START_STEPS)["best"] == 5.0


@pytest.mark.slow
def test_rulkas_side_learns_catch() -> None:
    assert run(catch_task(), seed=0, max_cpu_s=math.inf)["reached"] == 1.0
