"""The policy of parallel Q-learning in a process of its own: ratios, slow processes, dead ones, and going on."""

from __future__ import annotations

import copy
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_run import run_spec, small_params
from runtime_fakes import memory_of

from rulka.agents.pql.learner import PqlLearner, RemotePolicyHalf
from rulka.buffers.experience import BlockSpec, new_block
from rulka.runtime.connect import connect
from rulka.runtime.policy_process import PolicyProcess
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals
from tests.waiting import PATIENCE_S, wait_for

STEPS, UPDATES, START = 8, 2, 96
"""Decisions for an update of the critics, updates of these for one of the policy, and `small_params`' start steps."""


def small_spec(folder: Path, track: Path, max_env_steps: int = 10_000) -> RunSpec:
    own = {
        "policy_process": True,
        "steps_per_critic_update": STEPS,
        "critic_updates_per_policy_update": UPDATES,
        "critic_updates_per_version": 2,
        "critic_warmup_updates": 0,
        "max_steps_ahead": 16,
        "buffer_steps": 1024,
    }
    run = {
        "order": "free",
        "num_collectors": 1,
        "cars_per_collector": 4,
        "block_steps": 4,
        "num_checks": 1,
        "checkpoint_s": 60.0,
    }
    params = small_params("pql", own, max_env_steps=max_env_steps, **run)
    seen = params.observation.model_copy(update={"withheld": ("image",)})
    return run_spec(params.model_copy(update={"observation": seen}), track, folder)


def three_times_as_slow(method: Any) -> Any:
    """On an idle machine; where others compute meanwhile, their time is not taken three times, too."""

    def slow(*given: Any, **named: Any) -> Any:
        started_s = time.thread_time()
        result = method(*given, **named)
        time.sleep(2.0 * (time.thread_time() - started_s))
        return result

    return slow


def slow_half(make: Any) -> RemotePolicyHalf:
    half = make()
    half.learn = three_times_as_slow(half.learn)
    return half


class Cars:
    """Blocks of nothing in particular, as far as the learner allows."""

    def __init__(self, spec: BlockSpec) -> None:
        self.block, self._rng = new_block(spec), np.random.default_rng(0)

    def drive(self, learner: PqlLearner) -> None:
        block = self.block
        block.floats[...] = self._rng.normal(size=block.floats.shape)
        block.reward[...] = self._rng.normal(size=block.reward.shape)
        block.action[...] = self._rng.integers(0, 12, block.action.shape)
        learner.insert(block, 0, learner.version)


@contextmanager
def parted(spec: RunSpec) -> Iterator[tuple[PqlLearner, PolicyProcess]]:
    """A learner whose policy learns in another process, which has begun."""
    learner = spec.make_learner()
    assert isinstance(learner, PqlLearner)
    other = PolicyProcess(learner, spec.block, silence_limit_s=PATIENCE_S)
    try:
        learner.attach_remote(other)
        other.start()
        yield learner, other
    finally:
        other.stop()


Look = Callable[[], None]


def train(learner: PqlLearner, cars: Cars, until: int, look: Look = lambda: None) -> None:
    """Goes on until the critics have made so many updates, and the policy all that belong to them."""
    newest, moved_s = (0, 0), time.monotonic()
    while newest < (until, until // UPDATES):
        if newest[0] < until:
            if learner.num_env_steps < learner.num_allowed_env_steps():
                cars.drive(learner)
            learner.update()
            look()
        else:
            learner._keep_in_touch(0.5)
        found = (learner.num_critic_updates, learner.policy.num_updates)
        if found != newest:
            newest, moved_s = found, time.monotonic()
        assert time.monotonic() < moved_s + PATIENCE_S, "somebody waits for what does not come"
    assert newest == (until, until // UPDATES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "num_updates"), [("policy", 60), *((slow, 600) for slow in ("cars", "critics", "policy"))]
)
def test_ratios_hold_within_one_percent_while_one_is_three_times_as_slow(
    tmp_path: Path, track: Path, monkeypatch: pytest.MonkeyPatch, slow: str, num_updates: int
) -> None:
    """Nobody is ahead by more than two versions at any moment, and of 600 updates that is less than 1 %."""
    spec, make_half = small_spec(tmp_path, track), PqlLearner.make_half
    cars = Cars(spec.block)
    if slow == "policy":
        monkeypatch.setattr(PqlLearner, "make_half", lambda learner: partial(slow_half, make_half(learner)))
    with parted(spec) as (learner, _):
        if slow == "cars":
            monkeypatch.setattr(cars, "drive", three_times_as_slow(cars.drive))
        if slow == "critics":
            monkeypatch.setattr(learner, "_learn_critics", three_times_as_slow(learner._learn_critics))
        ahead: list[tuple[int, int]] = []

        def look() -> None:
            critic, policy = learner.num_critic_updates, learner.policy.num_updates
            ahead.append((learner.num_env_steps - START - critic * STEPS, critic - policy * UPDATES))

        train(learner, cars, num_updates, look)
        most_ahead = 2 * STEPS + 16 + 16
        assert max(steps for steps, _ in ahead) <= most_ahead, "a version, max_steps_ahead and a block"
        assert min(updates for _, updates in ahead) >= 0, "the policy does nothing that is not permitted"
        assert max(updates for _, updates in ahead) <= 4, "two versions"
        critic, policy = learner.num_critic_updates, learner.policy.num_updates
        share_ahead = most_ahead / (num_updates * STEPS)  # 0.01 of 600 updates
        assert (learner.num_env_steps - START) / (critic * STEPS) == pytest.approx(1.0, abs=share_ahead)
        assert critic == policy * UPDATES, "at the end"


@pytest.mark.slow
def test_a_policy_that_is_killed_goes_on_from_what_it_had_published(tmp_path: Path, track: Path) -> None:
    """And is shown what there is again; the ratios hold as if nothing had been."""
    spec = small_spec(tmp_path, track)
    cars = Cars(spec.block)
    with parted(spec) as (learner, other):
        train(learner, cars, 40)
        known, weights = learner.policy.num_updates, copy.deepcopy(learner.half_tensors())
        assert known == 20
        os.kill(other._supervisor.pids[0], signal.SIGKILL)

        def is_begun_anew() -> bool:
            other.poll(0.5)
            return other.num_restarts == 1

        wait_for(is_begun_anew, "a successor")
        assert learner.policy.num_updates == known
        for name, tensor in learner.half_tensors().items():
            torch.testing.assert_close(tensor, weights[name], rtol=0.0, atol=0.0)
        train(learner, cars, 80)
        assert learner.policy.num_updates == 40
        steps = {float(tensor) for name, tensor in learner.half_tensors().items() if name.startswith("step.")}
        assert steps == {40.0}, "its optimizer goes on too"
        moved = [name for name, tensor in learner.half_tensors().items() if not torch.equal(tensor, weights[name])]
        assert "weight.policy_head.weight" in moved

        def is_shown_all() -> bool:
            learner._keep_in_touch(0.5)
            return other._next == learner.replay.numbers().stop

        wait_for(is_shown_all, "it to be shown all there is")


def test_what_is_shown_is_what_was_seen(tmp_path: Path, track: Path) -> None:
    spec = small_spec(tmp_path, track)
    learner, cars = spec.make_learner(), Cars(spec.block)
    assert isinstance(learner, PqlLearner)
    cars.block.is_reset[1, 2] = True
    cars.block.image[...] = np.arange(cars.block.image.size).reshape(cars.block.image.shape) % 251
    cars.drive(learner)
    shown = new_block(spec.block)
    learner.replay.copy_states(0, shown)
    for name in ("image", "floats", "is_reset"):
        np.testing.assert_array_equal(getattr(shown, name), getattr(cars.block, name))
    assert not shown.reward.any()


@pytest.mark.slow
def test_both_halves_go_on_from_a_checkpoint(tmp_path: Path, track: Path) -> None:
    spec = small_spec(tmp_path, track)
    cars = Cars(spec.block)
    with parted(spec) as (learner, _):
        train(learner, cars, 20)
        state, experience = copy.deepcopy(learner.state_dict()), learner.experience()
    resumed = spec.make_learner()
    assert isinstance(resumed, PqlLearner)
    resumed.load_state_dict(state)
    resumed.load_experience(experience)
    half = resumed.make_half()
    assert half is not None
    made = half()
    assert made.num_updates == 10
    for name, tensor in made.tensors().items():
        assert torch.equal(tensor, learner.half_tensors()[name]), name


@pytest.mark.slow
def test_a_whole_run_with_three_kinds_of_processes(tmp_path: Path, track: Path) -> None:
    before = memory_of()
    spec = small_spec(tmp_path, track, max_env_steps=START + 40 * STEPS)
    with StopSignals() as stop, connect(spec, stop) as loop:
        learner = loop._learner
        assert isinstance(learner, PqlLearner)
        assert learner._remote is not None
        assert len(memory_of() - before) == 1 + 1 + 3
        assert loop.run().ended_by == "max_env_steps"
        assert learner.policy.num_updates >= learner.num_critic_updates // UPDATES - 2
    del learner, loop
    gc.collect()
    assert memory_of() <= before
