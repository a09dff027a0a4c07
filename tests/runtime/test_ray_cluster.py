"""Hosts as Ray's actors, on a pretended cluster of two nodes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime_fakes import BLOCK_STEPS, FakeLearner, fake_run

from rulka.cluster.local import HOST, pretended_cluster
from rulka.cluster.post import Place
from rulka.cluster.settings import CLUSTER_VARIABLE
from rulka.runtime import rank
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.cluster_collectors import ClusterCollectors
from rulka.runtime.collectors import SLOTS_PER_COLLECTOR
from rulka.runtime.connect import connect
from rulka.runtime.host_messages import Built
from rulka.runtime.host_supervisor import Limits
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.stop import StopSignals

PATIENCE_S = 300.0
STORE_MB = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two CPUs each; their processes import the fakes by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        with pretended_cluster(nodes=2, cpus=2, object_store_mb=STORE_MB) as made:
            patch.setenv(CLUSTER_VARIABLE, made.address)
            yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence counts after seconds; it is longer than what one that lives needs between two letters."""
    limits = Limits(silence_s=PATIENCE_S, look_s=0.5)

    def collectors(*arguments: Any, **named: Any) -> ClusterCollectors:
        return ClusterCollectors(*arguments, **named, limits=limits)

    monkeypatch.setattr(rank, "ClusterCollectors", collectors)


def _wait_for(condition: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain for {what}"
        time.sleep(0.05)


class Watch:
    """What a test sees of a training: processes of hosts, blocks under way; and what it does beside it."""

    def __init__(self, loop: LearnerLoop) -> None:
        self.loop = loop
        self.learner: FakeLearner = loop._learner  # type: ignore[assignment]
        self.collectors: ClusterCollectors = loop._collectors  # type: ignore[assignment]
        self.pids: dict[Place, int] = {}
        self.most_held = 0
        self.failures: list[BaseException] = []
        self.in_main: list[Callable[[], object]] = []
        post, hear = self.collectors._post, self.collectors._post.hear

        def note(timeout_s: float) -> Any:
            while self.in_main:
                self.in_main.pop(0)()
            heard = hear(timeout_s)
            for letter in heard:
                if isinstance(letter.message, Built):
                    self.pids[letter.place] = letter.message.pid
            self.most_held = max(self.most_held, sum(len(credit.held) for credit in self.collectors._credits))
            return heard

        post.hear = note  # type: ignore[method-assign]

    def blocks_of(self, collector: int, since: int = 0) -> int:
        return self.learner.collectors[since:].count(collector)

    def beside(self, act: Callable[[], object]) -> None:
        """Does something beside the run, and ends that if it fails."""

        def run() -> None:
            try:
                act()
            except BaseException as error:
                self.failures.append(error)
                self.loop.state.seconds = 1e9

        threading.Thread(target=run, daemon=True).start()

    def end_after(self, num_blocks: int) -> int:
        """Sets the budget of the run to so many blocks from now on, and returns it as environment steps."""
        total = self.loop.state.env_steps + num_blocks * BLOCK_STEPS
        self.loop.spec.train.__dict__["max_env_steps"] = total
        return total

    def check(self, num_collectors: int) -> None:
        if self.failures:
            raise self.failures[0]
        assert self.loop.state.env_steps == self.learner.num_env_steps == len(self.learner.seen) * BLOCK_STEPS
        assert max(self.learner.staleness) <= self.learner.allowed_lag
        assert self.most_held <= SLOTS_PER_COLLECTOR * num_collectors


def _store_bytes() -> int:
    """What lies in the memory of Ray's nodes here."""
    import ray

    resources = ray.available_resources()
    return int(ray.cluster_resources()["object_store_memory"] - resources["object_store_memory"])


@pytest.mark.slow
def test_a_training_has_exactly_its_samples_though_a_host_is_killed_and_another_stalls(
    tmp_path: Path, cluster: Any, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    totals: list[int] = []
    spec = fake_run(
        tmp_path,
        cluster="ray",
        num_collectors=3,
        max_env_steps=10**9,
        max_minutes=30.0,
        cars={"step_s": 0.002},
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)
        supervisor = watch.collectors._supervisor

        def harm() -> None:
            _wait_for(lambda: watch.blocks_of(0) > 3 and watch.blocks_of(2) > 3, "blocks of both nodes")
            os.kill(watch.pids[Place(0, 0)], signal.SIGKILL)
            _wait_for(lambda: Place(0, 1) in watch.pids, "a successor of the host that was killed")
            since = len(watch.learner.collectors)
            _wait_for(lambda: watch.blocks_of(0, since) > 3, "its blocks")
            stalled = psutil.Process(watch.pids[Place(1, 0)])
            stalled.suspend()
            supervisor._limits = Limits(silence_s=8.0, look_s=0.5)
            _wait_for(lambda: supervisor.hosts[1].incarnation == 1, "a successor of the one that stalls")
            supervisor._limits = Limits(silence_s=PATIENCE_S, look_s=0.5)
            _wait_for(lambda: not stalled.is_running(), "the end of the one that stalled")
            since = len(watch.learner.collectors)
            _wait_for(lambda: watch.blocks_of(2, since) > 3, "blocks of its successor")
            totals.append(watch.end_after(20))

        watch.beside(harm)
        outcome = loop.run()
        watch.check(3)
        assert outcome.ended_by == "max_env_steps"
        assert [outcome.state.env_steps] == totals, "not a block more or less"
        assert watch.collectors.num_restarts >= 2
        assert "said nothing for 8 s while" in caplog.text


@pytest.mark.slow
def test_a_node_is_removed_and_comes_back(
    tmp_path: Path, cluster: Any, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    spec = fake_run(
        tmp_path, cluster="ray", num_collectors=3, max_env_steps=10**9, max_minutes=60.0, cars={"step_s": 0.002}
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)

        def change() -> None:
            _wait_for(lambda: watch.blocks_of(0) > 3 and watch.blocks_of(2) > 3, "blocks of both nodes")
            (second,) = cluster.worker_nodes
            cluster.remove_node(second)
            _wait_for(lambda: watch.collectors._supervisor.hosts[1].state == "away", "the loss of the node")
            since = len(watch.learner.collectors)
            _wait_for(lambda: watch.blocks_of(0, since) > 6, "blocks of the node that is left")
            since = len(watch.learner.collectors)
            watch.in_main.append(
                lambda: cluster.add_node(num_cpus=2, object_store_memory=STORE_MB << 20, node_ip_address=HOST)
            )  # Ray starts nodes in main threads alone
            _wait_for(lambda: watch.blocks_of(2, since) > 3, "blocks of the new node")
            watch.end_after(4)

        watch.beside(change)
        loop.run()
        watch.check(3)
        assert "it waits for a node, and the run goes on with the others" in caplog.text


@pytest.mark.slow
def test_policy_workers_of_each_host_act_and_nothing_accumulates(tmp_path: Path, cluster: Any) -> None:
    spec = fake_run(
        tmp_path,
        cluster="ray",
        num_collectors=2,
        inference="central",
        policy_workers=2,
        learner={"is_central": True},
        max_env_steps=400 * BLOCK_STEPS,
    )
    before = {path.name for path in Path("/dev/shm").glob("psm_*")}
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch, stored = Watch(loop), []
        count = watch.learner.insert

        def note(*arguments: Any) -> None:
            count(*arguments)
            if len(watch.learner.seen) % 50 == 0:
                stored.append(_store_bytes())

        watch.learner.insert = note  # type: ignore[method-assign]
        loop.run()
        watch.check(2)
        pids = list(watch.pids.values())
    bound = 2 * 2 * SLOTS_PER_COLLECTOR * spec.block.num_bytes + 8 * watch.collectors._layout.num_bytes
    assert max(stored) <= bound, "blocks under way on both nodes, and a few versions"
    assert max(stored) * 10 < len(watch.learner.seen) * spec.block.num_bytes, "or nothing would have been freed"
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
    assert {path.name for path in Path("/dev/shm").glob("psm_*")} <= before


@pytest.mark.slow
def test_without_the_learners_node_its_process_is_ended_and_its_checkpoint_is_there(tmp_path: Path) -> None:
    """Ray does that, as `kill -9` would; what it says goes to no user."""
    main = Path(__file__).parent / "ray_main.py"
    environment = os.environ | {"PYTHONPATH": str(main.parent)}
    stage = subprocess.run(
        [sys.executable, main, tmp_path], capture_output=True, check=False, timeout=2 * PATIENCE_S, env=environment
    )
    assert stage.returncode != 0
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
