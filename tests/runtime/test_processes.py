"""The runtime with real processes, and what happens when they die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest
from runtime_fakes import BLOCK_STEPS, FakeNetwork, fake_run, memory_of

from rulka.runtime import shared_memory
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import CollectorProcesses
from rulka.runtime.connect import connect, train_run
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import WorkerCrashError

PATIENCE_S = 120.0


def _wait_for(condition: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain for {what}"
        time.sleep(0.05)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "resource_tracker" not in " ".join(child.cmdline())}


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch):
    """Names of the shared memory that runs in this process reserve; neither it nor a process may be left behind."""
    reserved: list[str] = []

    class Noted(SharedMemory):
        def __init__(self, name: str | None = None, create: bool = False, size: int = 0) -> None:
            super().__init__(name, create, size)
            if create:
                reserved.append(self.name)

    monkeypatch.setattr(shared_memory, "SharedMemory", Noted)
    children = _children()
    yield reserved
    assert _children() == children
    assert [name for name in reserved if (shared_memory.MEMORY_FOLDER / name).exists()] == []


def test_blocks_arrive_intact_and_fresh(tmp_path: Path, reserved: list[str]) -> None:
    """The fake learner checks every number; with 4 blocks ahead and 2 an update, nothing is older than 1 version."""
    spec = fake_run(tmp_path, num_collectors=2, max_env_steps=60 * BLOCK_STEPS)
    with StopSignals() as stop, connect(spec, stop) as loop:
        outcome = loop.run()
        learner = loop._learner
    assert outcome.state.env_steps >= 60 * BLOCK_STEPS
    assert set(learner.collectors) == {0, 1}
    assert min(learner.staleness) >= 0
    assert max(learner.staleness) == 1
    assert loop._collectors.num_restarts == 0
    assert len(reserved) > 0, "or that nothing is left of it would say nothing"


def _during(loop: LearnerLoop, condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Does something beside the run as soon as a condition holds."""

    def run() -> None:
        _wait_for(condition, "the moment to act")
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("moment", ["building its environment", "filling a block", "waiting for permission"])
def test_killed_collector_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture, moment: str) -> None:
    is_waiting = moment == "waiting for permission"
    cars = {"step_s": 0.0 if is_waiting else 0.001}
    spec = fake_run(tmp_path, num_collectors=2, max_env_steps=10**9, cars=cars)
    with StopSignals() as stop, connect(spec, stop) as loop:
        collectors, learner = loop._collectors, loop._learner
        victim = collectors.pids[1]
        successors = []
        is_held, is_killed = threading.Event(), threading.Event()
        update = learner.update

        def hold() -> object:
            """Lets nobody fill anything for a while: who learns gives no permission."""
            if is_waiting and 1 in learner.collectors and not is_held.is_set():
                is_held.set()
                assert is_killed.wait(PATIENCE_S)
            return update()

        learner.update = hold

        def kill() -> None:
            if is_waiting:
                _wait_for(lambda: psutil.Process(victim).status() == psutil.STATUS_SLEEPING, "it to wait")
            os.kill(victim, signal.SIGKILL)
            is_killed.set()
            _wait_for(lambda: collectors.num_restarts == 1, "the restart")
            successors.append(collectors.pids[1])
            num_blocks = len(learner.collectors)
            _wait_for(lambda: 1 in learner.collectors[num_blocks:], "blocks of its successor")
            loop.state.seconds = 1e9  # over

        when: dict[str, Callable[[], bool]] = {
            "building its environment": lambda: not learner.collectors,
            "filling a block": lambda: 1 in learner.collectors,
            "waiting for permission": is_held.is_set,
        }
        _during(loop, when[moment], kill)
        assert loop.run().ended_by == "max_minutes"
        assert successors != [victim]
        assert "collector 1 was ended by signal 9; starting it again" in caplog.text


def test_central_inference_acts_for_all(tmp_path: Path) -> None:
    spec = fake_run(
        tmp_path, num_collectors=2, max_env_steps=60 * BLOCK_STEPS, inference="central", learner={"is_central": True}
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        loop.run()
        assert set(loop._learner.collectors) == {0, 1}
        assert min(loop._learner.staleness) >= 0
        assert max(loop._learner.staleness) > 0, "or nothing was seen of weights that change"
        assert loop._collectors.num_restarts == 0


def test_policy_workers_share_the_collectors_and_decide_for_one_group_while_another_drives(tmp_path: Path) -> None:
    spec = fake_run(
        tmp_path,
        num_collectors=3,
        max_env_steps=60 * BLOCK_STEPS,
        inference="central",
        policy_workers=2,
        car_groups=3,
        learner={"is_central": True, "car_groups": 3},
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        memory = memory_of(tmp_path)
        assert len(memory) == 1 + 3 + 3 * 3, "weights, a collector's blocks, and a slot for each group of cars"
        loop.run()
        assert set(loop._learner.collectors) == {0, 1, 2}
        assert max(loop._learner.staleness) > 0, "or nothing was seen of weights that change"
        assert loop._collectors.num_restarts == 0
    assert not [path for path in memory if path.exists()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_collectors": 0, "inference": "central"}, "central inference acts for collector processes"),
        ({"num_collectors": 2, "policy_workers": 2}, "policy_workers and car_groups are of central inference"),
        ({"num_collectors": 2, "car_groups": 3}, "policy_workers and car_groups are of central inference"),
        ({"num_collectors": 2, "inference": "central", "policy_workers": 3}, "3 policy_workers have only 2 collectors"),
        (
            {"num_collectors": 2, "inference": "central", "car_groups": 2},
            "3 cars_per_collector cannot be parted into 2",
        ),
    ],
)
def test_roles_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fake_run(tmp_path, **changes)


@pytest.mark.parametrize("victim", ["policy worker", "collector"])
def test_either_side_of_central_inference_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, victim: str
) -> None:
    spec = fake_run(
        tmp_path,
        num_collectors=2,
        max_env_steps=10**9,
        cars={"step_s": 0.001},
        inference="central",
        policy_workers=2,
        learner={"is_central": True},
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        collectors, learner = loop._collectors, loop._learner
        pid = collectors._inference.pids[0] if victim == "policy worker" else collectors.pids[0]

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)
            _wait_for(lambda: collectors.num_restarts == 1, "the restart")
            num_blocks = len(learner.collectors)
            _wait_for(lambda: {0, 1} <= set(learner.collectors[num_blocks + 6 :]), "blocks of both collectors")
            loop.state.seconds = 1e9  # over

        _during(loop, lambda: 0 in learner.collectors, kill)
        assert loop.run().ended_by == "max_minutes"
        assert f"{victim} 0 was ended by signal 9; starting it again" in caplog.text


def test_repeated_crashes_end_the_run_with_the_traceback(tmp_path: Path) -> None:
    spec = fake_run(tmp_path, num_collectors=1, cars={"fault": "raise"})
    with pytest.raises(WorkerCrashError, match=r"(?s)crashed 3 times.*the fake cars broke down"):
        train_run(spec)
    assert Checkpoints(tmp_path).load_newest() is not None


def test_silent_collector_is_replaced(tmp_path: Path) -> None:
    spec = fake_run(tmp_path, num_collectors=1, cars={"step_s": 0.001})
    collectors = CollectorProcesses(spec, FakeNetwork().state_dict(), env_steps=0, num_starts=0)
    try:
        collectors.start()
        collectors.publish(0, FakeNetwork().state_dict())
        _collect_until(collectors, lambda delivered: delivered > 0)
        os.kill(collectors.pids[0], signal.SIGSTOP)
        collectors._supervisor._silence_limit_s = 3.0
        _collect_until(collectors, lambda _: collectors.num_restarts == 1)
        collectors._supervisor._silence_limit_s = PATIENCE_S
        _collect_until(collectors, lambda delivered: delivered > 3)  # more than were under way
    finally:
        collectors.stop()


def _collect_until(collectors: CollectorProcesses, is_enough: Callable[[int], bool]) -> None:
    delivered, give_up_s = 0, time.monotonic() + PATIENCE_S
    while not is_enough(delivered):
        assert time.monotonic() < give_up_s
        for delivery in collectors.collect(10**9, 0.2):
            collectors.release(delivery)
            delivered += 1


def _start_stage(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).parent / "fake_main.py"), str(folder), "1"]
    stage = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    before = _newest_env_steps(folder)
    _wait_for(lambda: _newest_env_steps(folder) > before or stage.poll() is not None, "a checkpoint")
    assert stage.poll() is None, stage.communicate()[0]
    return stage


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_a_checkpoint_and_nothing_else(tmp_path: Path, number: signal.Signals) -> None:
    stage = _start_stage(tmp_path)
    family = _family(stage.pid)
    assert len(family) == 3  # stage, resource tracker, collector
    memory = memory_of(tmp_path)
    assert memory
    assert all(path.exists() for path in memory)
    stage.send_signal(number)
    text, _ = stage.communicate(timeout=PATIENCE_S)
    assert stage.returncode == 130, text
    assert "Traceback" not in text
    _wait_for(lambda: not any(process.is_running() for process in family), "the children to end")
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
    assert not list(tmp_path.glob("*.tmp"))
    assert not any(path.exists() for path in memory)


def test_killed_run_takes_its_collectors_with_it_and_resumes(tmp_path: Path) -> None:
    stage = _start_stage(tmp_path)
    family, memory = _family(stage.pid), memory_of(tmp_path)
    stage.kill()
    stage.communicate(timeout=PATIENCE_S)
    _wait_for(lambda: not any(process.is_running() for process in family), "the children to end")
    assert not any(path.exists() for path in memory)
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    again = _start_stage(tmp_path)
    again.send_signal(signal.SIGINT)
    text, _ = again.communicate(timeout=PATIENCE_S)
    assert "going on from" in text
    resumed = Checkpoints(tmp_path).load_newest()
    assert resumed is not None
    assert resumed["run"]["num_starts"] == saved["run"]["num_starts"] + 1
    assert resumed["run"]["seconds"] > saved["run"]["seconds"]


def _newest_env_steps(folder: Path) -> int:
    return max((int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.ckpt")), default=0)


def test_an_interrupt_while_collectors_import_prints_no_traceback(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all its processes; here collectors get it many times while they load libraries."""
    command = [sys.executable, str(Path(__file__).parent / "fake_main.py"), str(tmp_path), "2"]
    stage = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    _wait_for(lambda: any(map(_is_importing, _collectors_of(stage.pid))) or stage.poll() is not None, "imports")
    os.killpg(stage.pid, signal.SIGINT)
    give_up_s = time.monotonic() + PATIENCE_S
    while stage.poll() is None and time.monotonic() < give_up_s:
        for collector in _collectors_of(stage.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                collector.send_signal(signal.SIGINT)
        time.sleep(0.02)
    text, _ = stage.communicate(timeout=PATIENCE_S)
    assert stage.returncode == 130, text
    assert "Traceback" not in text, text


def _is_importing(process: psutil.Process) -> bool:
    """Whether a process has begun to load NumPy: earlier than that, an interrupt would end it without a word."""
    with contextlib.suppress(OSError):
        return "numpy" in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
    return False


def _collectors_of(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return []
