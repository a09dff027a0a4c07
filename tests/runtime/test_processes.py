"""The runtime with real processes, and what happens when they die."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime_fakes import (
    BLOCK_STEPS,
    OVER_S,
    FakeNetwork,
    command_of,
    fake_run,
    fake_stage,
    family,
    is_alive,
    memory_of,
    saved_env_steps,
    until_saved,
)

from rulka.runtime.central import CentralInference
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import CollectorProcesses, Delivery
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.messages import Request
from rulka.runtime.shared import SharedWeights, layout_of
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import WorkerCrashError
from rulka.schedule import Moment
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Neither shared memory nor a process may be left behind."""
    before, memory = family(), memory_of()
    yield
    assert family() == before
    gc.collect()
    assert memory_of() <= memory


@pytest.mark.parametrize("inference", ["local", pytest.param("central", marks=pytest.mark.slow)])
def test_blocks_arrive_intact_and_fresh(tmp_path: Path, inference: str) -> None:
    """The fake learner checks every number; with 4 blocks ahead and 2 an update, nothing is older than 1 version."""
    is_central, before = inference == "central", memory_of()
    spec = fake_run(
        tmp_path,
        num_collectors=2,
        max_env_steps=60 * BLOCK_STEPS,
        inference=inference,
        learner={"is_central": is_central},
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        _let_two_blocks_lag(loop)
        assert len(memory_of() - before) == 1 + 2 + 2 * is_central, "weights, a collector's blocks, its request slot"
        outcome = loop.run()
        learner = loop._learner
    assert outcome.state.env_steps >= 60 * BLOCK_STEPS
    assert set(learner.collectors) == {0, 1}
    assert min(learner.staleness) >= 0
    assert max(learner.staleness) == 1 or (is_central and max(learner.staleness) > 0)
    assert loop._collectors.num_restarts == 0


def test_central_inference_acts_for_processes_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="central inference acts for collector processes"):
        fake_run(tmp_path, num_collectors=0, inference="central")


def _let_two_blocks_lag(loop: LearnerLoop) -> None:
    """Holds back two of the first four blocks until there are newer weights than those that drove in all four."""
    learner, collect, held = loop._learner, loop._collectors.collect, list[Delivery]()

    def collect_late(*turn: Any) -> list[Delivery]:
        held.extend(collect(*turn))
        if not learner.version and len(held) < 4:
            return []
        num_given = len(held) if learner.version else 2
        given, held[:] = held[:num_given], held[num_given:]
        return given

    loop._collectors.collect = collect_late  # type: ignore[method-assign]


def _during(loop: LearnerLoop, condition: Callable[[], bool], act: Callable[[], object]) -> list[BaseException]:
    """Does something beside the run as soon as a condition holds, then ends the run; returns what will go wrong."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            wait_for(condition, "the moment to act")
            act()
        except BaseException as error:
            failures.append(error)
        loop.state.seconds = OVER_S

    threading.Thread(target=run, daemon=True).start()
    return failures


@pytest.mark.parametrize(
    "moment",
    [
        "building its environment",
        *(pytest.param(moment, marks=pytest.mark.slow) for moment in ("filling a block", "waiting for permission")),
    ],
)
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
                wait_for(lambda: psutil.Process(victim).status() == psutil.STATUS_SLEEPING, "it to wait")
            os.kill(victim, signal.SIGKILL)
            is_killed.set()
            wait_for(lambda: collectors.num_restarts == 1, "the restart")
            successors.append(collectors.pids[1])
            num_blocks = len(learner.collectors)
            wait_for(lambda: 1 in learner.collectors[num_blocks:], "blocks of its successor")

        when: dict[str, Callable[[], bool]] = {
            "building its environment": lambda: not learner.collectors,
            "filling a block": lambda: 1 in learner.collectors,
            "waiting for permission": is_held.is_set,
        }
        failures = _during(loop, when[moment], kill)
        assert loop.run().ended_by == "max_minutes"
        assert failures == []
        assert successors != [victim]
        assert "collector 1 was ended by signal 9; starting it again" in caplog.text


@pytest.mark.slow
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
        learner={"is_central": True},
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        collectors, learner = loop._collectors, loop._learner
        pid = collectors._inference._supervisor.pids[0] if victim == "policy worker" else collectors.pids[0]

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: collectors.num_restarts == 1, "the restart")
            num_blocks = len(learner.collectors)
            wait_for(lambda: {0, 1} <= set(learner.collectors[num_blocks + 6 :]), "blocks of both collectors")

        failures = _during(loop, lambda: 0 in learner.collectors, kill)
        assert loop.run().ended_by == "max_minutes"
        assert failures == []
        assert f"{victim} 0 was ended by signal 9; starting it again" in caplog.text


def test_who_is_killed_while_reading_leaves_no_half_message_to_the_next(tmp_path: Path) -> None:
    """Pipes of central inference outlive the processes at their ends, and a message is read in two steps."""
    spec = fake_run(tmp_path, num_collectors=1, inference="central")
    weights = SharedWeights(layout_of(FakeNetwork().state_dict()))
    inference = CentralInference(spec, weights, 0, PATIENCE_S)
    try:
        ((collector, worker),) = inference._pipes
        for writer, reader, forget in (
            (collector, worker, lambda: inference._forget(0)),
            (worker, collector, lambda: inference.forget_collector(0)),
        ):
            writer.send(Request(1, Moment(0)))
            os.read(reader.fileno(), 4)  # its length
            forget()
            assert not reader.poll()
            writer.send(Request(2, Moment(0)))
            assert reader.recv() == Request(2, Moment(0))
    finally:
        inference.stop()


@pytest.mark.slow
def test_repeated_crashes_end_the_run_with_the_traceback(tmp_path: Path) -> None:
    spec = fake_run(tmp_path, num_collectors=1, cars={"fault": "raise"})
    with StopSignals() as stop, connect(spec, stop) as loop:
        (worker,) = loop._collectors._supervisor._workers
        worker.budget.window_s = 3.0 * PATIENCE_S  # three starts may take more than a minute
        with pytest.raises(WorkerCrashError, match=r"(?s)crashed 3 times.*the fake cars broke down"):
            loop.run()
    assert Checkpoints(tmp_path).load_newest() is not None


@pytest.mark.slow
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


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signals_leave_a_checkpoint_and_nothing_else(tmp_path: Path, number: signal.Signals) -> None:
    with fake_stage(tmp_path, "1") as stage:
        until_saved(stage, tmp_path)
        family = _family(stage.pid)
        assert len(family) == 3  # stage, resource tracker, collector
        memory = memory_of(stage.pid)
        assert memory
        stage.send_signal(number)
        text, _ = stage.communicate(timeout=PATIENCE_S)
        assert stage.returncode == 130, text
        assert "Traceback" not in text
        wait_for(lambda: not any(map(is_alive, family)), "the children to end")
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
    assert not list(tmp_path.glob("*.tmp"))
    assert not any(path.exists() for path in memory)


@pytest.mark.slow
def test_killed_run_takes_its_collectors_with_it_and_resumes(tmp_path: Path) -> None:
    with fake_stage(tmp_path, "1") as stage:
        until_saved(stage, tmp_path)
        family, memory = _family(stage.pid), memory_of(stage.pid)
        stage.kill()
        stage.communicate(timeout=PATIENCE_S)
        wait_for(lambda: not any(map(is_alive, family)), "the children to end")
    assert not any(path.exists() for path in memory)
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    before = saved_env_steps(tmp_path)
    with fake_stage(tmp_path, "1") as again:
        until_saved(again, tmp_path, before)
        again.send_signal(signal.SIGINT)
        text, _ = again.communicate(timeout=PATIENCE_S)
    assert "going on from" in text
    resumed = Checkpoints(tmp_path).load_newest()
    assert resumed is not None
    assert resumed["run"]["num_starts"] == saved["run"]["num_starts"] + 1
    assert resumed["run"]["seconds"] > saved["run"]["seconds"]


@pytest.mark.slow
def test_an_interrupt_while_collectors_import_prints_no_traceback(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all its processes; here collectors get it many times while they load libraries."""
    with fake_stage(tmp_path, "2") as stage:
        wait_for(lambda: any(map(_is_importing, _collectors_of(stage.pid))) or stage.poll() is not None, "imports")
        assert stage.poll() is None, stage.communicate()[0]
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
        return [child for child in children if "spawn_main" in command_of(child)]
    return []
