"""The runtime with real processes, and what happens when they die."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime_fakes import (
    BLOCK_STEPS,
    OVER_S,
    FakeNetwork,
    fake_run,
    fake_stage,
    family,
    is_alive,
    memory_of,
    newest,
    until_saved,
)

from rulka.contracts.schedule import Moment
from rulka.runtime.central import CentralInference
from rulka.runtime.collectors import CollectLimits, Delivery
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.messages import Request
from rulka.runtime.shared import SharedWeights, layout_of
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import SILENCE_LIMIT_S, WorkerCrashError
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


def _let_two_blocks_lag(loop: LearnerLoop) -> None:
    """Holds back two of the first four blocks until there are newer weights than those that drove in all four."""
    learner, collect, held = loop._learner, loop._collectors.collect, list[Delivery]()

    def collect_late(turn: CollectLimits) -> list[Delivery]:
        held.extend(collect(turn))
        if not learner.version and len(held) < 4:
            return []
        num_given = len(held) if learner.version else 2
        given, held[:] = held[:num_given], held[num_given:]
        return given

    loop._collectors.collect = collect_late  # type: ignore[method-assign]


def run_and_lose(loop: LearnerLoop, when: Callable[[], bool], harm: Callable[[], object], blocks_of: set[int]) -> None:
    """Runs until a process that is harmed at some moment has a successor, and blocks of some collectors came since."""
    failures: list[BaseException] = []
    collectors, learner = loop._collectors, loop._learner

    def lose() -> None:
        try:
            wait_for(when, "the moment to act")
            harm()
            wait_for(lambda: collectors.num_restarts == 1, "the restart")
            num_blocks = len(learner.collectors) + 6
            wait_for(lambda: blocks_of <= set(learner.collectors[num_blocks:]), "blocks since then")
        except BaseException as error:
            failures.append(error)
        loop.state.seconds = OVER_S

    threading.Thread(target=lose, daemon=True).start()
    assert loop.run().ended_by == "max_minutes"
    assert failures == []


LOST = ("building its environment", "filling a block", "standing still", "waiting for permission")


@pytest.mark.parametrize("moment", [LOST[0], *(pytest.param(moment, marks=pytest.mark.slow) for moment in LOST[1:])])
def test_a_lost_collector_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture, moment: str) -> None:
    is_waiting, is_still = moment == "waiting for permission", moment == "standing still"
    cars = {"step_s": 0.0 if is_waiting else 0.001}
    spec = fake_run(tmp_path, num_collectors=2, max_env_steps=10**9, cars=cars)
    with StopSignals() as stop, connect(spec, stop) as loop:
        collectors, learner = loop._collectors, loop._learner
        victim = collectors.pids[1]
        is_held, is_killed = threading.Event(), threading.Event()
        update, receive, worker = learner.update, collectors._supervisor.receive, collectors._supervisor._workers[1]

        def hold() -> object:
            """Lets nobody fill anything for a while: who learns gives no permission."""
            if is_waiting and 1 in learner.collectors and not is_held.is_set():
                is_held.set()
                assert is_killed.wait(PATIENCE_S)
            return update()

        def receive_and_age(timeout_s: float) -> Any:
            heard = receive(timeout_s)
            if is_still and is_killed.is_set() and worker.process.pid == victim:
                worker.heard_s -= 2.0 * SILENCE_LIMIT_S
            return heard

        def harm() -> None:
            if is_waiting:
                wait_for(lambda: psutil.Process(victim).status() == psutil.STATUS_SLEEPING, "it to wait")
            os.kill(victim, signal.SIGSTOP if is_still else signal.SIGKILL)
            is_killed.set()

        learner.update, collectors._supervisor.receive = hold, receive_and_age
        has_begun = moment != "building its environment"
        when = is_held.is_set if is_waiting else lambda: (1 in learner.collectors) == has_begun
        run_and_lose(loop, when, harm, {1})
        assert collectors._supervisor.num_restarts == 1
        reason = f"said nothing for {SILENCE_LIMIT_S:.0f} s" if is_still else "was ended by signal 9; starting it again"
        assert f"collector 1 {reason}" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["policy worker", "collector"])
def test_either_side_of_central_inference_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, victim: str
) -> None:
    cars, learner = {"step_s": 0.001}, {"is_central": True}
    spec = fake_run(tmp_path, num_collectors=2, max_env_steps=10**9, inference="central", cars=cars, learner=learner)
    with StopSignals() as stop, connect(spec, stop) as loop:
        collectors = loop._collectors
        pid = collectors._inference._supervisor.pids[0] if victim == "policy worker" else collectors.pids[0]
        run_and_lose(loop, lambda: 0 in loop._learner.collectors, lambda: os.kill(pid, signal.SIGKILL), {0, 1})
        assert f"{victim} 0 was ended by signal 9; starting it again" in caplog.text


def test_who_is_killed_while_reading_leaves_no_half_message_to_the_next(tmp_path: Path) -> None:
    """Pipes of central inference outlive the processes at their ends, and a message is read in two steps."""
    spec = fake_run(tmp_path, num_collectors=1, inference="central")
    weights = SharedWeights(layout_of(FakeNetwork().state_dict()))
    inference = CentralInference(spec, weights, 0)
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
    assert newest(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signals_leave_a_checkpoint_and_nothing_else(tmp_path: Path, number: signal.Signals) -> None:
    with fake_stage(tmp_path, "1") as stage:
        until_saved(stage, tmp_path)
        family = psutil.Process(stage.pid).children(recursive=True)
        assert len(family) == 2, "resource tracker and collector"
        memory = memory_of(stage.pid)
        assert memory
        stage.send_signal(number)
        text, _ = stage.communicate(timeout=PATIENCE_S)
        assert stage.returncode == 130, text
        assert "Traceback" not in text
        wait_for(lambda: not any(map(is_alive, family)), "the children to end")
    saved = newest(tmp_path)
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
    assert not list(tmp_path.glob("*.tmp"))
    assert not any(path.exists() for path in memory)
