"""Collectors as Ray's actors, on a pretended cluster of two nodes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_main import PATIENCE
from runtime_fakes import BLOCK_STEPS, OVER_S, FakeLearner, fake_run, fake_train, is_alive

from benchmarks.ray_nodes import add_node, pretended_cluster
from rulka.cluster import CLUSTER_VARIABLE
from rulka.runtime import connect as connecting
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.connect import connect
from rulka.runtime.learner_loop import LearnerLoop
from rulka.runtime.ray_collectors import Limits, RayCollectors
from rulka.runtime.stop import StopSignals
from tests.waiting import PATIENCE_S, wait_for

STORE_MB = 100
NUM_BLOCKS = 400
BLOCKS_AHEAD = fake_train().blocks_ahead
ROOT = Path(__file__).parents[2]


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

    def collectors(*arguments: Any, **named: Any) -> RayCollectors:
        return RayCollectors(*arguments, **named, limits=Limits(silence_s=PATIENCE_S))

    monkeypatch.setattr(connecting, "RayCollectors", collectors)


class Watch:
    """What a test sees of a training: blocks under way; and what it does beside it."""

    def __init__(self, loop: LearnerLoop) -> None:
        self.loop = loop
        self.learner: FakeLearner = loop._learner  # type: ignore[assignment]
        self.collectors: RayCollectors = loop._collectors  # type: ignore[assignment]
        self.most_held = 0
        self.failures: list[BaseException] = []
        self.in_main: list[Callable[[], object]] = []
        hear = self.collectors._hear

        def note(timeout_s: float) -> None:
            while self.in_main:
                self.in_main.pop(0)()
            hear(timeout_s)
            free = sum(map(len, self.collectors._free))
            self.most_held = max(self.most_held, BLOCKS_AHEAD * len(self.collectors.remotes) - free)

        self.collectors._hear = note  # type: ignore[method-assign]

    def process(self, index: int) -> psutil.Process:
        """The process of a collector, which its name ends with."""
        wait_for(lambda: "process" in self.collectors.remotes[index].name, "a collector's first word")
        return psutil.Process(int(self.collectors.remotes[index].name.rpartition(" ")[2].rstrip(")")))

    def until_blocks_of(self, *indices: int) -> None:
        """Waits for further blocks of collectors."""
        since = len(self.learner.collectors)
        wait_for(lambda: all(self.learner.collectors[since:].count(index) > 3 for index in indices), "their blocks")

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

    def check(self) -> None:
        if self.failures:
            raise self.failures[0]
        assert self.loop.state.env_steps == self.learner.num_env_steps == len(self.learner.seen) * BLOCK_STEPS
        assert max(self.learner.staleness) <= self.learner.allowed_lag
        assert 0 < self.most_held <= BLOCKS_AHEAD * len(self.collectors.remotes)


def _store_bytes() -> int:
    """What lies in the memory of Ray's nodes here."""
    import ray

    resources = ray.available_resources()
    return int(ray.cluster_resources()["object_store_memory"] - resources["object_store_memory"])


@pytest.mark.slow
def test_a_training_has_exactly_its_samples_though_one_is_killed_and_another_stands_still(
    tmp_path: Path, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    totals: list[int] = []
    spec = fake_run(tmp_path, cluster="ray", num_collectors=3, max_env_steps=10**9, cars={"step_s": 0.002})
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)
        remotes = watch.collectors.remotes

        def age() -> None:
            if remotes[1].num_starts == 1:
                remotes[1].heard_s -= 2.0 * PATIENCE_S

        def has_successor() -> bool:
            """Whether collector 1 counts as lost; its last word is made so old, but for what is still to be heard."""
            watch.in_main.append(age)
            return remotes[1].num_starts == 2

        def harm() -> None:
            watch.until_blocks_of(0, 1, 2)
            os.kill(watch.process(0).pid, signal.SIGKILL)
            wait_for(lambda: remotes[0].num_starts == 2, "a successor of the one that was killed")
            watch.until_blocks_of(0)
            stalled = watch.process(1)
            stalled.suspend()
            wait_for(has_successor, "a successor of the one that stands still")
            wait_for(lambda: not is_alive(stalled), "the end of the one that stood still")
            watch.until_blocks_of(1)
            totals.append(watch.end_after(20))

        watch.beside(harm)
        outcome = loop.run()
        watch.check()
        assert outcome.ended_by == "max_env_steps"
        assert [outcome.state.env_steps] == totals, "not a block more or less"
        assert watch.collectors.num_restarts == 2
        assert f"took no step for {PATIENCE_S:.0f} s while working" in caplog.text


@pytest.mark.slow
def test_a_node_is_removed_and_comes_back(tmp_path: Path, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    spec = fake_run(tmp_path, cluster="ray", num_collectors=3, max_env_steps=10**9, cars={"step_s": 0.002})
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)

        def change() -> None:
            watch.until_blocks_of(0, 1, 2)
            (second,) = cluster.worker_nodes
            cluster.remove_node(second)
            wait_for(lambda: watch.collectors.num_restarts > 0, "the loss of the node")
            left = [remote.index for remote in watch.collectors.remotes if remote.num_starts == 1]
            watch.until_blocks_of(*left)
            # Ray starts nodes in main threads alone.
            watch.in_main.append(lambda: add_node(cluster, 2, STORE_MB))
            watch.until_blocks_of(0, 1, 2)
            watch.end_after(4)

        watch.beside(change)
        loop.run()
        watch.check()
        assert "starting it again where there is room" in caplog.text


@pytest.mark.slow
def test_nothing_accumulates_in_rays_memory_and_no_process_is_left(tmp_path: Path, cluster: Any) -> None:
    spec = fake_run(tmp_path, cluster="ray", num_collectors=2, max_env_steps=NUM_BLOCKS * BLOCK_STEPS)
    with StopSignals() as stop, connect(spec, stop) as loop:
        watch = Watch(loop)
        count = watch.learner.insert
        each = spec.block.num_bytes + watch.collectors._layout.num_bytes
        processes: list[psutil.Process] = []

        def note(*arguments: Any) -> None:
            """Looks now and then; nothing is permitted meanwhile, and Ray takes its time to say what is free."""
            count(*arguments)
            if len(watch.learner.seen) % 50 == 0:
                # Blocks and versions on both nodes, and little of what there would be if nothing were freed.
                bound = min(2 * 2 * BLOCKS_AHEAD * each, NUM_BLOCKS * each // 10)
                wait_for(lambda: _store_bytes() < bound, "all else to be freed")
                processes[:] = [watch.process(index) for index in range(2)]

        watch.learner.insert = note  # type: ignore[method-assign]
        loop.run()
        watch.check()
    assert len(processes) == 2
    wait_for(lambda: not any(map(is_alive, processes)), "all collectors to end")


@pytest.mark.slow
def test_without_the_learners_node_its_process_is_ended_and_its_checkpoint_is_there(tmp_path: Path) -> None:
    """Ray does that, as `kill -9` would; what it says goes to no user."""
    main = Path(__file__).parent / "ray_main.py"
    environment = os.environ | PATIENCE | {"PYTHONPATH": os.pathsep.join((str(main.parent), str(ROOT)))}
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
