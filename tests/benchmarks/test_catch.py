"""Catch64 is one world, whichever side of the benchmark plays it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.qrdqn.catch import BALL, EPISODE_STEPS, GRID, NUM_BALLS, NUM_FLOATS, SIZE, CatchCars, CatchEnv
from benchmarks.qrdqn.rulka_side import run
from benchmarks.qrdqn.tasks import START_STEPS, Episode, Watch, catch_task


def test_batch_and_environment_show_and_pay_the_same() -> None:
    cars, env = CatchCars(1), CatchEnv()
    image, floats, potential = np.ones((1, 1, SIZE, SIZE), np.uint8), np.ones((1, NUM_FLOATS), np.float32), np.ones(1)
    cars.reset_into(image, floats, potential.astype(np.float32), 3)
    seen, _ = env.reset(seed=3)
    assert np.array_equal(image[0], seen)
    actions = np.random.default_rng(0).integers(3, size=3 * EPISODE_STEPS)
    ends = 0
    for action in actions:
        ours = cars.step_into(np.array([action]), image, floats, potential.astype(np.float32))
        seen, reward, is_over, is_cut, _ = env.step(action)
        assert np.array_equal(image[0], seen)
        assert (ours.reward[0], ours.terminated[0], ours.truncated[0]) == (reward, is_over, is_cut)
        assert not ours.is_reset[0]
        if is_over:
            ends += 1
            seen, _ = env.reset()
            assert cars.step_into(np.array([1]), image, floats, potential.astype(np.float32)).is_reset[0]
            assert np.array_equal(image[0], seen)
    assert ends == 3


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
