"""Trainings of several learners: what they do together, and what happens when one of them dies.

What they add up in an update is tested in `tests/agents/test_ranks.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from runtime_fakes import (
    BLOCK_STEPS,
    drive,
    fake_run,
    fake_stage,
    family,
    is_alive,
    memory_of,
    newest,
    saved_env_steps,
    until_saved,
)

from rulka.machine import device
from rulka.machine.device import CPU, devices_of_learners
from rulka.machine.errors import UserError
from rulka.machine.processes import RestartBudget
from rulka.runtime import connect as connecting
from rulka.runtime import ranks
from rulka.runtime.connect import train_run
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.metrics_log import read_metrics
from rulka.runtime.ranks import RankProgress, split_budget
from rulka.runtime.specs import rank_folders
from tests.waiting import PATIENCE_S, wait_for


def seen_by(folder: Path) -> list[list[float]]:
    """What each rank was given, block by block, as its newest checkpoint names it."""
    saved = newest(folder)
    return [
        [float(np.load(own / "experience" / name)["seen"]) for _, name in sorted(part["experience"]["names"].items())]
        for own, part in zip(rank_folders(folder), [saved, *saved["others"]], strict=True)
    ]


@pytest.fixture(autouse=True)
def nobody_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process may be left behind; and one that ends within an update has all the time it needs to say why."""
    monkeypatch.setattr(ranks, "STOP_GRACE_S", PATIENCE_S)
    before = family()
    yield
    assert family() == before


def test_they_share_budget_and_schedules_and_learn_from_what_all_were_given(tmp_path: Path) -> None:
    """20 blocks and 2 of each learner for an update: 5 updates, made of 20 blocks that are all different."""
    spec = fake_run(tmp_path, learners=2, checkpoint_s=1e-9)
    _, loop = drive(spec)
    learner: Any = loop._learner
    one, other = seen_by(tmp_path)
    assert loop.state.env_steps == 20 * BLOCK_STEPS
    assert (len(one), len(other), len({*one, *other})) == (10, 10, 20)
    assert one == learner.seen
    assert learner.version == newest(tmp_path)["learner"]["version"] == 5
    assert learner.together == pytest.approx(sum(one) + sum(other))
    assert learner.totals[-1] == 20 * BLOCK_STEPS, "schedules go by the environment steps of all"
    last = read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert last["env_steps"] == 20 * BLOCK_STEPS
    assert last["num_races"] == 2 * 3 * (10 * 16 // 8), "the races of all cars"


@pytest.mark.slow
@pytest.mark.parametrize(("harm", "words"), [("kill", "was ended by signal 9"), ("suspend", "said nothing for 3 s")])
def test_when_one_is_lost_all_begin_again_and_the_run_ends_with_the_planned_experience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, harm: str, words: str
) -> None:
    """Before it is told to take a turn, after some updates and a checkpoint; each has collectors of its own."""
    cars, memory, before = {"step_s": 0.002}, set[Path](), memory_of()
    spec = fake_run(tmp_path, learners=2, num_collectors=2, max_env_steps=60 * BLOCK_STEPS, checkpoint_s=0.1, cars=cars)
    take = LearnerLoop._take_experience

    def harm_and_take(loop: LearnerLoop) -> int:
        if memory or loop._learner.version < 6 or not saved_env_steps(tmp_path):
            return take(loop)
        (pid,) = loop._others._processes.pids()
        memory.update((memory_of() - before) | memory_of(pid))
        process = psutil.Process(pid)
        getattr(process, harm)()
        with monkeypatch.context() as patch:
            if harm == "suspend":
                wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "it to stand still")
                patch.setattr(ranks, "SILENCE_LIMIT_S", 3.0)
            return take(loop)

    monkeypatch.setattr(LearnerLoop, "_take_experience", harm_and_take)
    assert train_run(spec).state.env_steps == 60 * BLOCK_STEPS
    assert f"learner 1 of 2 {words}; all learners begin again at the last checkpoint" in caplog.text
    assert "going on from" in caplog.text, "or nothing was saved before, and this proves nothing"
    saved = newest(tmp_path)
    counts = [part["learner"]["num_env_steps"] for part in (saved, *saved["others"])]
    assert sum(counts) == 60 * BLOCK_STEPS
    assert [len(seen) * BLOCK_STEPS for seen in seen_by(tmp_path)] == counts, "every block that counts is there once"
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["num_restarts"] == 1
    assert len(memory) == 4, "weights and blocks of each"
    assert not any(path.exists() for path in memory)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_each_has_a_policy_worker_for_its_own_collectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, rank: int
) -> None:
    """One of two is killed after some updates and replaced: no learner begins again, and no block is missing."""
    learner, budget = {"is_central": True}, 60 * BLOCK_STEPS
    spec = fake_run(tmp_path, learners=2, num_collectors=2, inference="central", max_env_steps=budget, learner=learner)
    take, workers = LearnerLoop._take_experience, list[list[psutil.Process]]()

    def kill_and_take(loop: LearnerLoop) -> int:
        if not workers and loop._learner.version >= 6:
            learners = psutil.Process(), *map(psutil.Process, loop._others._processes.pids())
            # A policy worker has its learner's weights and the request slot; a collector has its blocks too.
            workers.extend([each for each in one.children() if len(memory_of(each.pid)) == 2] for one in learners)
            workers[rank][0].kill()
        return take(loop)

    monkeypatch.setattr(LearnerLoop, "_take_experience", kill_and_take)
    assert train_run(spec).state.env_steps == budget
    assert [len(each) for each in workers] == [1, 1]
    assert "all learners begin again" not in caplog.text
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["num_restarts"] == 1
    saved = newest(tmp_path)
    counts = [part["learner"]["num_env_steps"] for part in (saved, *saved["others"])]
    assert sum(counts) == budget
    assert [len(seen) * BLOCK_STEPS for seen in seen_by(tmp_path)] == counts, "every block that counts is there once"


@pytest.mark.slow
def test_one_that_dies_in_an_update_ends_it_and_all_begin_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = fake_run(tmp_path, learners=2, checkpoint_s=1e-9, learner={"fault": f"die:{tmp_path / 'died'}"})
    assert train_run(spec).state.env_steps == 20 * BLOCK_STEPS
    assert "learner 1 of 2 was ended by signal 9" in caplog.text
    one, other = seen_by(tmp_path)
    assert (len(one), len(other), len({*one, *other})) == (10, 10, 20)
    assert newest(tmp_path)["learner"]["together"] == pytest.approx(sum(one) + sum(other)), "nothing counts twice"


@pytest.mark.slow
def test_learners_that_keep_parting_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "RestartBudget", lambda window_s: RestartBudget(0, window_s))
    spec = fake_run(tmp_path, learners=2, learner={"fault": f"die:{tmp_path / 'died'}"})
    with pytest.raises(RuntimeError, match="came apart 1 times within 600 s; the last time learner 1 of 2"):
        train_run(spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", r"(?s)learner 1 of 2 ended .*RuntimeError: the second learner broke down"),
        ("nan", "learner 1 of 2: training diverged: after update 4, 'weight' holds NaN"),
    ],
)
def test_an_error_of_one_ends_the_run_with_its_words(tmp_path: Path, fault: str, words: str) -> None:
    """A traceback, or what an error says that a person can act on."""
    with pytest.raises(UserError, match=words):
        train_run(fake_run(tmp_path, learners=2, learner={"fault": fault}))


@pytest.mark.slow
def test_weights_that_differ_are_noticed_and_not_saved(tmp_path: Path) -> None:
    spec = fake_run(tmp_path, learners=2, checkpoint_s=1e-9, learner={"fault": "drift"})
    with pytest.raises(UserError, match="after update 4, learner 1 of 2 has other weights than learner 0"):
        train_run(spec)
    assert newest(tmp_path)["learner"]["version"] == 3


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of two learners with a collector each, after its first checkpoint."""
    with fake_stage(tmp_path, "2", "", "2") as stage:
        until_saved(stage, tmp_path)
        yield stage


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_take_all_processes_with_them_and_the_next_start_goes_on(
    tmp_path: Path, stage: subprocess.Popen[str], number: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM reach all processes of a group; `kill -9` the first alone."""
    process = psutil.Process(stage.pid)
    everybody = [process, *process.children(recursive=True)]
    assert len(everybody) == 5, "the stage, the resource tracker, a learner, and a collector of each"
    memory = set[Path]().union(*(memory_of(each.pid) for each in everybody))
    assert len(memory) == 4, "weights and blocks of each"
    if number == signal.SIGKILL:
        stage.kill()
    else:
        os.killpg(stage.pid, number)
    text, _ = stage.communicate(timeout=PATIENCE_S)
    assert stage.returncode == (-9 if number == signal.SIGKILL else 130), text
    assert "Traceback" not in text, text
    wait_for(lambda: not any(map(is_alive, everybody)), "all processes to end")
    assert not any(path.exists() for path in memory)
    saved = newest(tmp_path)
    env_steps = saved["run"]["env_steps"]
    assert env_steps == sum(part["learner"]["num_env_steps"] for part in (saved, *saved["others"])) > 0
    spec = fake_run(tmp_path, learners=2, num_collectors=2, max_env_steps=env_steps + 4 * BLOCK_STEPS)
    assert train_run(spec).state.env_steps == env_steps + 4 * BLOCK_STEPS


def progress(num_env_steps: int, num_under_way: int = 0, *, is_ready: bool = False) -> RankProgress:
    return RankProgress(num_env_steps, 0, num_under_way, is_ready, 0, is_whole=True)


def test_permission_by_hand() -> None:
    """Blocks of 10. 100 steps, of which 30 and 20 are taken and 10 under way: 4 blocks are left, 2 for each."""
    assert split_budget(100, 10, [progress(30, 1), progress(20)]) == [60, 40]
    assert split_budget(91, 10, [progress(30, 1), progress(20)]) == [60, 40], "a block too many, as one learner takes"
    assert split_budget(90, 10, [progress(30, 1), progress(20)]) == [50, 40], "the odd one goes to who has fewer"
    last = [progress(40, is_ready=True), progress(50)]
    assert split_budget(100, 10, last) == [40, 60], "the last one to who cannot learn without it"
    assert split_budget(90, 10, last) == [40, 50]
    assert split_budget(50, 10, last) == [40, 50], "never less than there is"


def test_more_learners_than_there_is_to_share_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_num_cores", lambda: 2)
    assert devices_of_learners(CPU, 2) == [CPU, CPU]
    with pytest.raises(UserError, match=r"train\.learners is 3, and there are 2 processor cores here"):
        train_run(fake_run(tmp_path, learners=3))
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    second = torch.device("cuda", 1)
    assert [str(place) for place in devices_of_learners(second, 2)] == ["cuda:1", "cuda:2"]
    with pytest.raises(UserError, match="is 3, and there are 3 GPUs, of which they would take those from cuda:1 on"):
        devices_of_learners(second, 3)
