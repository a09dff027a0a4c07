"""Hosts as Ray's actors, on a pretended cluster of two nodes on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_main import PATIENCE, patiently
from runtime_fakes import BLOCK_STEPS, OVER_S, FakeLearner, fake_run, is_alive

from rulka.cluster.local import HOST, pretended_cluster
from rulka.cluster.ray_cluster import ActorLostError
from rulka.cluster.settings import CLUSTER_VARIABLE
from rulka.runtime import connect as connecting
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import SLOTS_PER_COLLECTOR
from rulka.runtime.connect import connect
from rulka.runtime.host import Place
from rulka.runtime.hosts import HostCollectors, Limits
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.shared_memory import LIST_FILE, MEMORY_FOLDER
from rulka.runtime.stop import StopSignals
from tests.waiting import PATIENCE_S, wait_for

STORE_MB = 100
NUM_BLOCKS = 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two CPUs each; their processes import the fakes by name."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in (PATIENCE | {"PYTHONPATH": str(Path(__file__).parent)}).items():
            patch.setenv(name, value)
        made = patiently(
            lambda: stack.enter_context(pretended_cluster(nodes=2, cpus=2, object_store_mb=STORE_MB)),
        )
        patch.setenv(CLUSTER_VARIABLE, made.address)
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are looked for every other moment, and no host counts as lost that is only slow."""
    limits = Limits(silence_s=PATIENCE_S, look_s=0.5)

    def collectors(*arguments: Any, **named: Any) -> HostCollectors:
        return HostCollectors(*arguments, **named, limits=limits)

    monkeypatch.setattr(connecting, "HostCollectors", collectors)


class Watch:
    """What a test sees of a training: processes of hosts, blocks under way; and what it does beside it."""

    def __init__(self, loop: LearnerLoop) -> None:
        self.loop = loop
        self.learner: FakeLearner = loop._learner  # type: ignore[assignment]
        self.collectors: HostCollectors = loop._collectors  # type: ignore[assignment]
        self.pids: dict[Place, int] = {}
        self.most_held = 0
        self.failures: list[BaseException] = []
        self.in_main: list[Callable[[], object]] = []
        self._asked: dict[Any, Place] = {}
        cluster, hear = self.collectors._cluster, self.collectors._hear

        def note(timeout_s: float) -> None:
            while self.in_main:
                self.in_main.pop(0)()
            for host in self.collectors.hosts:
                place = Place(host.share.number, host.incarnation)
                if host.state == "working" and place not in self._asked.values():
                    self._asked[cluster.call(host.actor, "pid")] = place
            hear(timeout_s)
            for reference in cluster.wait(list(self._asked), 0.0):
                with suppress(ActorLostError):
                    self.pids[self._asked[reference]] = cluster.get(reference)
            self.most_held = max(self.most_held, sum(host.num_held for host in self.collectors.hosts))

        self.collectors._hear = note  # type: ignore[method-assign]

    def blocks_of(self, collector: int, since: int = 0) -> int:
        return self.learner.collectors[since:].count(collector)

    def beside(self, act: Callable[[], object]) -> None:
        """Does something beside the run, and ends that if it fails."""

        def run() -> None:
            try:
                act()
            except BaseException as error:
                self.failures.append(error)
                self.loop.state.seconds = OVER_S

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


def _memory_of_hosts(collectors: HostCollectors) -> set[Path]:
    """The shared memory that hosts of a run have noted."""
    lists = Path(tempfile.gettempdir()).glob(f"rulka-hosts-*/{collectors._name}-*/{LIST_FILE}")
    return {MEMORY_FOLDER / name.lstrip("/") for noted in lists for name in json.loads(noted.read_bytes())}


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
        cars={"step_s": 0.002},
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)
        hosts = watch.collectors.hosts

        def age() -> None:
            if hosts[1].incarnation == 0:
                hosts[1].heard_s -= 2.0 * PATIENCE_S

        def has_successor() -> bool:
            """Whether host 1 counts as lost; its last word is made so old, but for what it has still to be heard of."""
            watch.in_main.append(age)
            return hosts[1].incarnation == 1

        def harm() -> None:
            wait_for(lambda: watch.blocks_of(0) > 3 and watch.blocks_of(2) > 3, "blocks of both nodes")
            os.kill(watch.pids[Place(0, 0)], signal.SIGKILL)
            wait_for(lambda: Place(0, 1) in watch.pids, "a successor of the host that was killed")
            since = len(watch.learner.collectors)
            wait_for(lambda: watch.blocks_of(0, since) > 3, "its blocks")
            stalled = psutil.Process(watch.pids[Place(1, 0)])
            stalled.suspend()
            wait_for(has_successor, "a successor of the one that stalls")
            wait_for(lambda: not is_alive(stalled), "the end of the one that stalled")
            since = len(watch.learner.collectors)
            wait_for(lambda: watch.blocks_of(2, since) > 3, "blocks of its successor")
            totals.append(watch.end_after(20))

        watch.beside(harm)
        outcome = loop.run()
        watch.check(3)
        assert outcome.ended_by == "max_env_steps"
        assert [outcome.state.env_steps] == totals, "not a block more or less"
        assert watch.collectors.num_restarts >= 2
        assert f"said nothing for {PATIENCE_S:.0f} s after it was asked to" in caplog.text


@pytest.mark.slow
def test_a_node_is_removed_and_comes_back(
    tmp_path: Path, cluster: Any, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    spec = fake_run(tmp_path, cluster="ray", num_collectors=3, max_env_steps=10**9, cars={"step_s": 0.002})
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)

        def change() -> None:
            wait_for(lambda: watch.blocks_of(0) > 3 and watch.blocks_of(2) > 3, "blocks of both nodes")
            (second,) = cluster.worker_nodes
            cluster.remove_node(second)
            wait_for(lambda: watch.collectors.hosts[1].state == "away", "the loss of the node")
            since = len(watch.learner.collectors)
            wait_for(lambda: watch.blocks_of(0, since) > 6, "blocks of the node that is left")
            since = len(watch.learner.collectors)
            node = {"num_cpus": 2, "object_store_memory": STORE_MB << 20, "node_ip_address": HOST}
            # Ray starts nodes in main threads alone.
            watch.in_main.append(lambda: patiently(lambda: cluster.add_node(**node)))
            wait_for(lambda: watch.blocks_of(2, since) > 3, "blocks of the new node")
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
        max_env_steps=NUM_BLOCKS * BLOCK_STEPS,
    )
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch, memory = Watch(loop), set[Path]()
        count = watch.learner.insert
        under_way = 2 * 2 * SLOTS_PER_COLLECTOR * spec.block.num_bytes + 8 * watch.collectors._layout.num_bytes
        tenth = NUM_BLOCKS * spec.block.num_bytes // 10

        def note(*arguments: Any) -> None:
            """Looks now and then; nothing is permitted meanwhile, and Ray takes its time to say what is free."""
            count(*arguments)
            if len(watch.learner.seen) % 50 == 0:
                # Blocks on both nodes and a few versions, and little of what there would be if nothing were freed.
                wait_for(lambda: _store_bytes() < min(under_way, tenth), "all else to be freed")
                memory.update(_memory_of_hosts(watch.collectors))

        watch.learner.insert = note  # type: ignore[method-assign]
        loop.run()
        watch.check(2)
        processes = [psutil.Process(pid) for pid in watch.pids.values() if psutil.pid_exists(pid)]
    wait_for(lambda: not any(map(is_alive, processes)), "all hosts to end")
    assert memory
    assert not any(path.exists() for path in memory)


@pytest.mark.slow
def test_without_the_learners_node_its_process_is_ended_and_its_checkpoint_is_there(tmp_path: Path) -> None:
    """Ray does that, as `kill -9` would; what it says goes to no user."""
    main = Path(__file__).parent / "ray_main.py"
    environment = os.environ | PATIENCE | {"PYTHONPATH": str(main.parent)}
    stage = subprocess.run(
        [sys.executable, main, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
        env=environment,
    )
    assert stage.returncode != 0
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None, stage.stderr
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0, stage.stderr
