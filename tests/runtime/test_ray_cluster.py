"""Collectors as Ray's actors, on a pretended cluster of two nodes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from runtime_fakes import BLOCK_STEPS, FakeLearner, fake_run, fake_train, is_alive, newest, until_all_work

from benchmarks.ray_nodes import add_node, pretended_cluster
from rulka.runtime import connect as connecting
from rulka.runtime.cluster import CLUSTER_VARIABLE
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.ray_collectors import Limits, RayCollectors
from rulka.runtime.stop import StopSignals
from tests.waiting import PATIENCE_S, wait_for

STORE_MB = 100
NUM_BLOCKS = 400
BLOCKS_AHEAD = fake_train().blocks_ahead
ROOT = Path(__file__).parents[2]
PATIENCE = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_health_check_timeout_ms": "300000",
    "RAY_prestart_worker_first_driver": "false",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_worker_niceness": "0",
}
"""Environment of what starts Ray: how long its processes wait for one that is slow; one that is gone they miss soon."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two CPUs each; their processes import the fakes by name."""
    with pytest.MonkeyPatch.context() as patch:
        paths = os.pathsep.join((str(Path(__file__).parent), str(ROOT)))
        for name, value in (PATIENCE | {"PYTHONPATH": paths}).items():
            patch.setenv(name, value)
        with pretended_cluster(nodes=2, cpus=2, object_store_mb=STORE_MB) as made:
            patch.setenv(CLUSTER_VARIABLE, made.address)
            yield made


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No collector counts as lost that is only slow."""
    monkeypatch.setattr(connecting, "RayCollectors", partial(RayCollectors, limits=Limits(silence_s=PATIENCE_S)))


Step = Callable[[], object]
"""Whether a script goes on."""


class Watch:
    """What a test sees of a training; and what it does to it: a script, which yields what it waits for."""

    def __init__(self, loop: LearnerLoop, script: Callable[[Watch], Iterator[Step]] = lambda _watch: iter(())) -> None:
        self.loop = loop
        self.learner: FakeLearner = loop._learner  # type: ignore[assignment]
        self.collectors: RayCollectors = loop._collectors  # type: ignore[assignment]
        self.most_held = 0
        steps, poll = script(self), self.collectors._poll
        awaited: Step = lambda: True  # noqa: E731

        def note(timeout_s: float) -> None:
            nonlocal awaited
            if awaited():
                awaited = next(steps, lambda: False)
            poll(timeout_s)
            free = sum(map(len, self.collectors._free))
            self.most_held = max(self.most_held, BLOCKS_AHEAD * len(self.collectors.remotes) - free)

        self.collectors._poll = note  # type: ignore[method-assign]

    def process(self, index: int) -> psutil.Process:
        """The process of a collector that has spoken, which its name ends with."""
        return psutil.Process(int(self.collectors.remotes[index].name.rpartition(" ")[2].rstrip(")")))

    def blocks_of(self, *indices: int) -> Step:
        """Waits for further blocks of collectors."""
        since = len(self.learner.collectors)
        return lambda: all(self.learner.collectors[since:].count(index) > 3 for index in indices)

    def end_after(self, num_blocks: int) -> None:
        """Sets the budget of the run to so many blocks from now on."""
        self.total = self.loop.state.env_steps + num_blocks * BLOCK_STEPS
        self.loop.spec.train.__dict__["max_env_steps"] = self.total

    def run(self) -> None:
        """Runs to the end, with not a block more or less."""
        self.total = self.loop.spec.train.max_env_steps
        assert self.loop.run().state.env_steps == self.total
        assert self.total == self.learner.num_env_steps == len(self.learner.seen) * BLOCK_STEPS
        assert max(self.learner.staleness) <= self.learner.allowed_lag
        assert 0 < self.most_held <= BLOCKS_AHEAD * len(self.collectors.remotes)


def _store_bytes() -> int:
    """What lies in the memory of Ray's nodes here."""
    import ray

    resources = ray.available_resources()
    return int(ray.cluster_resources()["object_store_memory"] - resources["object_store_memory"])


@pytest.mark.slow
def test_a_training_has_exactly_its_samples_though_a_collector_is_killed_and_a_node_goes_and_comes_back(
    tmp_path: Path, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def harm(watch: Watch) -> Iterator[Step]:
        remotes = watch.collectors.remotes
        yield watch.blocks_of(0, 1, 2)
        os.kill(watch.process(0).pid, signal.SIGKILL)
        yield lambda: remotes[0].num_starts == 2
        yield watch.blocks_of(0, 1, 2)
        starts = [remote.num_starts for remote in remotes]
        (second,) = cluster.worker_nodes
        cluster.remove_node(second)
        yield lambda: [remote.num_starts for remote in remotes] != starts
        yield watch.blocks_of(*(k for k, remote in enumerate(remotes) if remote.num_starts == starts[k]))
        add_node(cluster, 2, STORE_MB)
        yield watch.blocks_of(0, 1, 2)
        watch.end_after(20)

    spec = fake_run(tmp_path, cluster="ray", num_collectors=3, max_env_steps=10**9, cars={"step_s": 0.002})
    with StopSignals() as stop, connect(spec, stop) as loop:
        Watch(loop, harm).run()
    assert "starting it again where there is room" in caplog.text


@pytest.mark.slow
def test_nothing_accumulates_in_rays_memory_and_no_process_is_left(tmp_path: Path, cluster: Any) -> None:
    spec = fake_run(tmp_path, cluster="ray", num_collectors=2, max_env_steps=NUM_BLOCKS * BLOCK_STEPS)
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)
        count = watch.learner.insert
        each = spec.block.num_bytes + watch.collectors._layout.num_bytes
        until_all_work(watch.collectors)
        processes = [watch.process(index) for index in range(2)]

        def note(*arguments: Any) -> None:
            """Looks now and then; nothing is permitted meanwhile, and Ray takes its time to say what is free."""
            count(*arguments)
            if len(watch.learner.seen) % 50 == 0:
                # Blocks and versions on both nodes, and little of what there would be if nothing were freed.
                bound = min(2 * 2 * BLOCKS_AHEAD * each, NUM_BLOCKS * each // 10)
                wait_for(lambda: _store_bytes() < bound, "all else to be freed")

        watch.learner.insert = note  # type: ignore[method-assign]
        watch.run()
    wait_for(lambda: not any(map(is_alive, processes)), "all collectors to end")


@pytest.mark.slow
def test_without_the_learners_node_its_process_is_ended_and_its_checkpoint_is_there(tmp_path: Path) -> None:
    """Ray does that, as `kill -9` would; what it says goes to no user."""
    main = Path(__file__).parent / "ray_main.py"
    environment = os.environ | PATIENCE | {"PYTHONPATH": os.pathsep.join((str(main.parent), str(ROOT)))}
    command, limit_s = [sys.executable, main, tmp_path], 2.0 * PATIENCE_S
    stage = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s, env=environment)
    assert stage.returncode != 0
    saved = newest(tmp_path)
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0, stage.stderr
