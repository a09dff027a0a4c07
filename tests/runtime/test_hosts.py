"""Hosts on several nodes and what happens when they die, with hosts of this process instead of Ray's.

Real nodes: `test_ray_cluster.py`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts_here import ClusterHere, nodes, serial, until_all_work
from runtime_fakes import BLOCK_STEPS, FakeLearner, fake_run

from rulka.buffers.experience import ExperienceBlock
from rulka.errors import UserError
from rulka.params import read_params
from rulka.runtime import connect as connecting
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.collectors import SLOTS_PER_COLLECTOR, Collectors
from rulka.runtime.connect import connect, train_run
from rulka.runtime.host import HostSpec, Place
from rulka.runtime.hosts import (
    ClusterTooSmallError,
    HostCollectors,
    HostRefusedError,
    HostsLostError,
    Limits,
    check_stores,
    deal,
)
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import WorkerCrashError
from tests.waiting import PATIENCE_S

NUM_BLOCKS = 40


class Unique(FakeLearner):
    """Remembers what it was given by what no two blocks have in common, and how many lay there at once."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.blocks: list[tuple[float, float, int]] = []

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        super().insert(block, collector, version)
        self.blocks.append((float(block.floats[0, 0, 2]), float(block.floats[0, 0, 0]), collector))
        assert not block.image.flags.writeable, "it is read where it came"


class Run:
    """A learner and its hosts, without the loop."""

    def __init__(self, folder: Path, cluster: ClusterHere, **train: Any) -> None:
        self.learner, self.cluster = Unique(), cluster
        spec = fake_run(folder, cluster="ray", **({"num_collectors": 4} | train))
        limits = Limits(silence_s=PATIENCE_S, look_s=0.0)
        self.collectors = HostCollectors(spec, self.learner.network.state_dict(), 0, 0, cluster, limits=limits)
        self.most_under_way = 0

    def start(self) -> None:
        self.collectors.start()
        self._publish()

    def gather(self) -> None:
        """Waits for all hosts, so that none of them comes when the others have done all the work."""
        until_all_work(self.collectors)

    def has_been_silent(self, number: int) -> None:
        """Lets the last word of a host be so long ago that it counts as lost, unless it speaks now."""
        self.collectors.hosts[number].heard_s -= 2.0 * PATIENCE_S

    def _publish(self) -> None:
        self.collectors.publish(self.learner.version, self.learner.network.state_dict())

    def until(self, is_enough: Callable[[], bool]) -> None:
        """Learns until a condition holds."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_enough():
            assert time.monotonic() < give_up_s
            for delivery in self.collectors.collect(self.learner.num_allowed_env_steps(), 0.05):
                self.learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self.collectors.release(delivery)
            self.most_under_way = max(self.most_under_way, self.collectors.num_under_way)
            if self.learner.update() is not None:
                self._publish()

    def learn(self, num_blocks: int) -> None:
        """Learns from so many further blocks."""
        goal = len(self.learner.blocks) + num_blocks
        self.until(lambda: len(self.learner.blocks) >= goal)

    def check(self) -> None:
        """Nothing was learned twice, and the bounds held."""
        blocks = self.learner.blocks
        assert len(set(blocks)) == len(blocks), "nothing is learned twice"
        assert self.learner.num_env_steps == len(blocks) * BLOCK_STEPS
        assert self.most_under_way <= 4, "as many as the learner allows"
        assert max(self.learner.staleness) <= self.learner.allowed_lag


Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[Run] = []

    def make(*num_cpus: int, make_collectors: Callable[[HostSpec], Collectors] = serial, **train: Any) -> Run:
        run = Run(tmp_path, ClusterHere(nodes(*num_cpus), make_collectors), **train)
        runs.append(run)
        run.start()
        return run

    yield make
    for run in runs:
        run.collectors.stop()
        assert run.cluster.is_closed
        assert not run.cluster.actors
        folders = f"rulka-hosts-*/{run.collectors._name}-*"
        assert not list(Path(tempfile.gettempdir()).glob(folders))


# How it goes ----------------------------------------------------------------------------------------------------------


def test_blocks_of_two_nodes_come_intact_in_order_and_fresh(begin: Begin) -> None:
    run = begin(2, 2)
    run.gather()
    run.learn(NUM_BLOCKS)
    run.until(lambda: run.collectors.cpu_seconds_elsewhere > 0.0)
    run.check()
    assert set(run.learner.collectors) == {0, 2}, (
        "the first collectors of both hosts, by their number in all of the run"
    )
    assert [place for place, _ in run.cluster.started] == [Place(0, 0), Place(1, 0)]
    assert run.collectors.num_restarts == 0


def test_the_order_of_permission_is_the_order_of_learning(begin: Begin) -> None:
    """However slow one host is: its blocks are held back here until nothing else can go on."""
    run = begin(2, 2)
    run.gather()
    wait, call, slow = run.cluster.wait, run.cluster.call, list[Any]()
    moments: list[int] = []

    def note(actor: Any, method: str, *arguments: Any) -> Any:
        reference = call(actor, method, *arguments)
        if method == "permit":
            moments.append(arguments[0].env_steps)
        if method == "work" and actor.place.number == 0:
            slow.append(reference)
        return reference

    def wait_longer(references: Any, timeout_s: float) -> Any:
        others = [reference for reference in references if reference not in slow]
        return wait(others, timeout_s) or wait(references, 0.0)

    run.cluster.call, run.cluster.wait = note, wait_longer  # type: ignore[method-assign]
    run.learn(NUM_BLOCKS)
    run.check()
    assert moments == [number * BLOCK_STEPS for number in range(len(moments))]


def test_each_version_is_laid_once_for_all_hosts_and_its_bytes_are_counted(begin: Begin) -> None:
    run = begin(1, 1, num_collectors=2)
    run.gather()
    run.learn(NUM_BLOCKS)
    assert run.cluster.num_put == run.learner.version + 1
    size = run.collectors._layout.num_bytes
    moved = run.collectors.take_weight_bytes()
    assert moved % size == 0
    assert size <= moved <= 2 * size * run.cluster.num_put
    assert run.collectors.take_weight_bytes() == 0


def test_a_slow_learner_bounds_what_each_host_may_fill(begin: Begin) -> None:
    """Nothing is released: each collector has three blocks, wherever they are, and gets no fourth."""
    run = begin(1, 2, num_collectors=3)
    run.learner._ahead = 1000
    taken = []
    give_up_s = time.monotonic() + PATIENCE_S
    while len(taken) < 3 * SLOTS_PER_COLLECTOR:
        assert time.monotonic() < give_up_s
        taken += run.collectors.collect(10**9, 0.05)
    for _ in range(20):
        assert run.collectors.collect(10**9, 0.01) == []
    assert [host.num_held for host in run.collectors.hosts] == [3, 6]
    run.collectors.release(taken[0])
    while not (more := run.collectors.collect(10**9, 0.05)):
        assert time.monotonic() < give_up_s
    assert len(more) == 1


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_killed_host_is_made_again_and_its_credit_given_out_again(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(2, 2)
    run.gather()
    run.learn(10)
    run.cluster.kill(1)
    # Its successor has its numbers, and a seed of its own.
    run.until(lambda: len({block[0] for block in run.learner.blocks if block[2] == 2}) == 2)
    run.learn(NUM_BLOCKS)
    run.check()
    assert Place(1, 1) in [place for place, _ in run.cluster.started]
    assert "host 1 on node node-1 is gone: it was killed; starting it again" in caplog.text
    assert run.collectors.num_restarts == 1


def test_a_host_that_is_cut_off_and_comes_back_is_not_heard(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(2, 2)
    run.gather()
    run.learn(10)
    actor = run.cluster.actor_of(0)
    run.cluster.cut_off(0)
    run.until(lambda: bool(actor.unheard))
    run.has_been_silent(0)
    run.until(lambda: run.collectors.num_restarts == 1)
    assert f"host 0 on node node-0 said nothing for {PATIENCE_S:.0f} s after it was asked to" in caplog.text
    assert run.cluster.bring_back(), "blocks that nobody waits for"
    run.learn(NUM_BLOCKS)
    run.check()


class Stalled:
    """Collectors that stand still after a few blocks, as a host in which something hangs."""

    def __init__(self, spec: HostSpec, hangs: threading.Event, goes_on: threading.Event) -> None:
        self._serial, self._hangs, self._goes_on, self._num_blocks = serial(spec), hangs, goes_on, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._serial, name)

    def collect(self, *arguments: Any) -> Any:
        deliveries = self._serial.collect(*arguments)
        self._num_blocks += len(deliveries)
        if self._num_blocks == 5:
            self._hangs.set()
            self._goes_on.wait(PATIENCE_S)
        return deliveries


def test_a_host_that_stalls_is_made_again(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def make(spec: HostSpec) -> Any:
        return Stalled(spec, hangs, goes_on) if spec.run.first_collector and spec.num_starts == 0 else serial(spec)

    run = begin(1, 1, num_collectors=2, make_collectors=make)
    end = run.cluster.end

    def let_go_and_end(actor: Any) -> None:
        goes_on.set()
        end(actor)

    run.cluster.end = let_go_and_end  # type: ignore[method-assign]
    run.until(hangs.is_set)

    def is_made_again() -> bool:
        if not run.collectors.num_restarts:  # what it had said before is heard first
            run.has_been_silent(1)
        return run.collectors.num_restarts == 1

    run.until(is_made_again)
    assert f"host 1 on node node-1 said nothing for {PATIENCE_S:.0f} s after it was asked to" in caplog.text
    run.learn(NUM_BLOCKS)
    run.check()
    assert run.collectors.num_restarts == 1


def test_the_third_loss_within_minutes_ends_the_run(begin: Begin) -> None:
    run = begin(1, num_collectors=1)
    for _ in range(2):
        run.learn(5)
        run.cluster.kill(0)
        run.learn(5)
    run.cluster.kill(0)
    with pytest.raises(WorkerCrashError, match="host 0 on node node-0 was lost 3 times within 600 s; the last time it"):
        run.learn(5)


def test_wrong_weights_are_refused_and_asked_for_again(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(1, 1, num_collectors=2)
    num_sent = 0

    def spoil(place: Place, method: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal num_sent
        if method != "load" or place.number == 0:
            return given
        num_sent += 1
        version, crc, content = given
        if num_sent in (3, 4):
            content = content.copy()
            content[1000] ^= 1
        return version, crc, content[:-64] if num_sent == 7 else content

    run.cluster.spoil = spoil
    run.until(lambda: num_sent > 9)
    run.learn(NUM_BLOCKS)
    run.check()
    assert caplog.text.count("came to host 1 wrong: its checksum is another one; it is sent again") == 2
    size = run.collectors._layout.num_bytes
    assert f"came to host 1 wrong: {size - 64} bytes instead of {size}; it is sent again" in caplog.text


def test_weights_of_another_version_than_they_say_are_refused(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(1, num_collectors=1)
    run.cluster.spoil = lambda _place, method, given: (
        (given[0] + 7, *given[1:]) if method == "load" and given[0] >= 2 else given
    )
    with pytest.raises(
        WorkerCrashError, match=r"version \d+ came to host 0 wrong: its checksum is another one, 4 times"
    ):
        run.learn(NUM_BLOCKS)


def _lie(method: str, answer: Any, **changed: str) -> Any:
    return {**answer, **changed} if method == ("code" if "code" in changed else "build") else answer


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"code": "0123456789abcdef"}, "of another code: code 0123456789abcdef, and the learner's is [0-9a-f]{16}"),
        (
            {"observation": "a smell"},
            r"another contract: observation a smell, and the learner's is \(1, 6, 10\) pixels",
        ),
        ({"action": "a wink"}, "another contract: action a wink, and the learner's is indices of shape"),
        ({"weights": "none"}, r"another contract: weights none, and the learner's is 2 tensors in \d+ bytes"),
    ],
)
def test_a_host_of_another_version_or_contract_is_refused_with_both_named(
    begin: Begin, changed: dict[str, str], words: str
) -> None:
    run = begin(1, 1, num_collectors=2)
    run.cluster.change = lambda place, method, answer: _lie(method, answer, **changed) if place.number == 1 else answer
    with pytest.raises(HostRefusedError, match=f"host 1 on node node-1 is refused: it is {words}|{words}") as error:
        run.until(lambda: False)
    assert "Install the same version of Rulka on every node" in error.value.hint


def test_a_node_of_another_version_that_comes_later_is_left_out(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(1, 1, num_collectors=2)
    run.gather()
    run.learn(10)
    run.cluster.change = lambda place, method, answer: (
        _lie(method, answer, code="other") if place.incarnation else answer
    )
    run.cluster.remove("n1")
    run.cluster.there.append(nodes(1, 1, 1)[2])
    run.until(lambda: "the run goes on without this node" in caplog.text)
    run.learn(10)
    run.check()
    assert [key for _, key in run.cluster.started] == ["n0", "n1", "n2"], "and is not asked again"


def test_a_lost_node_lets_the_run_go_on_and_one_that_comes_is_taken(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(2, 2)
    run.gather()
    run.learn(10)
    run.cluster.remove("n1")
    run.until(lambda: "it waits for a node" in caplog.text)
    before = len(run.learner.collectors)
    run.learn(NUM_BLOCKS)
    assert set(run.learner.collectors[before + 8 :]) == {0}
    too_small, large_enough = nodes(0, 0, 1, 2)[2:]
    run.cluster.there += [too_small, large_enough]
    run.until(lambda: 2 in run.learner.collectors[before + 8 :])
    run.check()
    assert run.cluster.started[-1] == (Place(1, 1), "n3")
    assert "host 1 goes on at node node-3" in caplog.text


def test_without_any_node_the_run_waits_and_then_ends_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ClusterHere(nodes(1, 1))
    limits = Limits(silence_s=PATIENCE_S, node_s=2.0, look_s=0.2)
    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", lambda _address: cluster)

    def collectors(*arguments: Any, **named: Any) -> HostCollectors:
        return HostCollectors(*arguments, **named, limits=limits)

    num_blocks = 0

    def remove_all(_place: Place, method: str, answer: Any) -> Any:
        nonlocal num_blocks
        if method == "work":
            num_blocks += len(answer.filled)
            if num_blocks >= 5:
                cluster.remove("n0")
                cluster.remove("n1")
        return answer

    monkeypatch.setattr(connecting, "HostCollectors", collectors)
    cluster.change = remove_all
    spec = fake_run(tmp_path, num_collectors=2, cluster="ray", max_env_steps=10**9)
    with pytest.raises(HostsLostError, match="no node is left to collect on, and none has come for 2 s"):
        train_run(spec)
    assert "no node is left to collect on: waiting for one, for" in caplog.text
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
    assert cluster.is_closed


def test_an_error_of_a_host_ends_the_run_with_its_traceback(begin: Begin) -> None:
    def broken(spec: HostSpec) -> Collectors:
        message = "the collectors broke down"
        raise RuntimeError(message)

    run = begin(1, num_collectors=1, make_collectors=broken)
    with pytest.raises(WorkerCrashError, match=r"(?s)host 0 on node node-0 ended by an error.*collectors broke down"):
        run.learn(1)


def test_what_a_node_cannot_do_is_said_with_its_hint(begin: Begin) -> None:
    def full(spec: HostSpec) -> Collectors:
        message = "shared memory is too small"
        raise UserError(message, hint="Enlarge it.")

    run = begin(1, num_collectors=1, make_collectors=full)
    with pytest.raises(HostRefusedError, match="host 0 on node node-0 is refused: shared memory is too small") as error:
        run.learn(1)
    assert error.value.hint == "Enlarge it."


def test_a_whole_training_has_the_samples_that_it_would_have_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop, the rank and the budget: exactly as many environment steps as asked for, though a host was killed."""
    cluster = ClusterHere(nodes(2, 1))
    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", lambda _address: cluster)
    num_blocks = 0

    def kill_once(place: Place, method: str, answer: Any) -> Any:
        nonlocal num_blocks
        if place == Place(1, 0) and method == "work":
            num_blocks += len(answer.filled)
            if num_blocks >= 5:
                cluster.kill(1)
        return answer

    cluster.change = kill_once
    spec = fake_run(tmp_path, num_collectors=3, cluster="ray", max_env_steps=60 * BLOCK_STEPS)
    with StopSignals() as stop, connect(spec, stop) as loop:
        until_all_work(loop._collectors)
        outcome = loop.run()
    assert outcome.state.env_steps == 60 * BLOCK_STEPS
    assert Place(1, 1) in [place for place, _ in cluster.started]


# How collectors are dealt ---------------------------------------------------------------------------------------------


def _train(**changes: Any) -> Any:
    return fake_run(Path(), cluster="ray", **changes).train


@pytest.mark.parametrize(
    ("num_cpus", "wanted", "counts"),
    [((2, 2), 2, [1, 1]), ((4, 1, 4), 6, [3, 1, 2]), ((1, 8), 5, [1, 4]), ((0, 2), 2, [2]), ((4, 4, 4), 2, [1, 1])],
)
def test_collectors_are_dealt_evenly_as_far_as_there_are_cpus(
    num_cpus: tuple[int, ...], wanted: int, counts: list[int]
) -> None:
    plan = deal(_train(num_collectors=wanted), nodes(*num_cpus), sum(num_cpus))
    assert [share.num_collectors for share, _ in plan] == counts
    assert [share.first_collector for share, _ in plan] == [sum(counts[:k]) for k in range(len(counts))]
    assert all(node.num_cpus >= share.num_collectors for share, node in plan)


def test_every_host_has_policy_workers_of_its_own() -> None:
    plan = deal(_train(num_collectors=5, inference="central", policy_workers=3), nodes(1, 4), 5)
    assert [share.policy_workers for share, _ in plan] == [1, 2]
    with pytest.raises(ClusterTooSmallError, match="policy_workers 1 are too few for 2 nodes"):
        deal(_train(num_collectors=5, inference="central"), nodes(1, 4), 5)


def test_too_few_cpus_are_said_at_once_with_what_is_there(tmp_path: Path) -> None:
    cluster = ClusterHere(nodes(2, 1))
    wanted = r"num_collectors 4 take a CPU each, and the cluster has 3: node-0 2, node-1 1"
    with pytest.raises(ClusterTooSmallError, match=wanted):
        Run(tmp_path, cluster)
    cluster.taken_cpus = 2
    with pytest.raises(ClusterTooSmallError, match="has 3, of which others have taken 2"):
        Run(tmp_path, cluster, num_collectors=2)
    assert cluster.started == []


def test_too_little_memory_for_blocks_is_said_with_both_figures() -> None:
    there = [node._replace(store_bytes=100 << 20) for node in nodes(1, 1)]
    plan = deal(_train(num_collectors=2), there, 2)
    check_stores(plan, there[0], 40 << 20, 10 << 20)
    with pytest.raises(ClusterTooSmallError, match=r"of node node-0 has 100 MiB, .* may take 130 MiB"):
        check_stores(plan, there[0], 60 << 20, 10 << 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_collectors": 0}, "num_collectors 0 has no processes that could be elsewhere"),
        ({"num_collectors": 2, "learners": 2}, "2 learners have their collectors beside them"),
        ({"num_collectors": 1, "environment": "game"}, "games are on the machine of the learner"),
    ],
)
def test_what_hosts_cannot_do_is_refused_when_parameters_are_read(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _train(**changes)


def test_nobody_asks_for_a_cluster_by_default() -> None:
    assert read_params().train.cluster == "none"
