"""Collectors on several nodes and what happens when they die, with actors of this process instead of Ray's.

Nodes are only named, and actors take their turns: whenever the learner waits, each answers one call. What a test wants
to go wrong it does to the cluster: nodes that go, collectors that die, fall silent, are cut off and come back. Real
nodes: `test_ray_cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_run import run_spec, small_params
from runtime_fakes import BLOCK_STEPS, FakeLearner, fake_run, newest, until_all_work

from rulka.agents.params import ALGORITHMS
from rulka.buffers.experience import ExperienceBlock
from rulka.machine.errors import UserError
from rulka.runtime import connect as connecting
from rulka.runtime.cluster import ActorFailedError, ActorLostError, Node
from rulka.runtime.collectors import CollectLimits
from rulka.runtime.connect import connect, train_run
from rulka.runtime.ray_collectors import Limits, RayCollectors, RemoteCollector, check_size
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import WorkerCrashError
from tests.waiting import PATIENCE_S

NUM_BLOCKS = 40


def nodes(*num_cpus: int) -> list[Node]:
    """Nodes with so many CPUs; this process is on the first."""
    return [Node(f"n{k}", f"node-{k}", count, 1 << 30, k == 0) for k, count in enumerate(num_cpus)]


@dataclass(eq=False)
class Actor:
    """A collector that answers one call after the other.

    Attributes:
        calls: those that it has not answered, each with the answer that it will have.
        unheard: what it has said since it was cut off; None while it is heard.
        is_still: it answers nothing but how it is.
    """

    number: int
    kind: type
    node: Node | None = None
    remote: RemoteCollector | None = None
    lost_by: ActorLostError | None = None
    calls: list[tuple[Future[Any], str, tuple[Any, ...]]] = field(default_factory=list)
    unheard: list[tuple[Future[Any], str, Any]] | None = None
    is_still: bool = False

    def answer(self, future: Future[Any], method: str, given: tuple[Any, ...]) -> None:
        try:
            said = getattr(self.remote, method)(*given)
        except UserError as error:
            future.set_exception(error)
            return
        except Exception as error:
            future.set_exception(ActorFailedError(f"{type(error).__name__}: {error}"))
            return
        if method == "code":
            said = self.node.name, said[1]
        if method == "fill":
            said = said[0], {name: array.copy() for name, array in said[1].items()}
            for array in said[1].values():
                array.flags.writeable = False  # as Ray's
        if self.unheard is None:
            future.set_result(said)
        else:
            self.unheard.append((future, method, said))


class ClusterHere:
    """See `rulka.runtime.cluster.RayCluster`.

    Attributes:
        there: nodes that are there.
        kind: class of the actors that are started from now on.
        actors: all that were ever started, in the order of their starts; a collector is number `k` of its place.
    """

    def __init__(self, there: Sequence[Node], kind: type = RemoteCollector) -> None:
        self.there, self.kind = list(there), kind
        self.actors: list[Actor] = []
        self.taken_cpus = self.num_put = 0
        self.is_closed = False

    # What the learner does ------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return list(self.there)

    def num_free_cpus(self) -> int:
        return sum(node.num_cpus for node in self.there) - self.taken_cpus

    def start(self, kind: type) -> Actor:
        assert kind is RemoteCollector
        self.actors.append(actor := Actor(len(self.actors), self.kind))
        return actor

    def call(self, actor: Actor, method: str, *arguments: Any, is_beside: bool = False) -> Future[Any]:
        future: Future[Any] = Future()
        if actor.lost_by is not None:
            future.set_exception(actor.lost_by)
        elif is_beside:
            actor.answer(future, method, arguments)
        else:
            actor.calls.append((future, method, arguments))
        return future

    def wait(self, references: Sequence[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        """Lets each living actor answer a call, on the node that has most room if it is on none."""
        for actor in self.living():
            if actor.remote is None:
                taken = [other.node for other in self.living()]
                node = max(self.there, key=lambda each: each.num_cpus - taken.count(each), default=None)
                if node is not None and node.num_cpus > taken.count(node):
                    actor.node, actor.remote = node, actor.kind()
            if actor.remote is not None and actor.calls and not actor.is_still:
                actor.answer(*actor.calls.pop(0))
        if not any(reference.done() for reference in references):
            time.sleep(min(timeout_s, 0.01))
        return [reference for reference in references if reference.done()]

    def put(self, content: np.ndarray) -> np.ndarray:
        self.num_put += 1
        content = content.copy()
        content.flags.writeable = False
        return content

    def get(self, reference: Future[Any]) -> Any:
        return reference.result(0.0)

    def end(self, actor: Actor) -> None:
        actor.lost_by = actor.lost_by or ActorLostError("it was ended")

    def close(self) -> None:
        for actor in self.actors:
            self.end(actor)
        self.is_closed = True

    # What a test does -----------------------------------------------------------------------------------------------

    def living(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.lost_by is None]

    def kill(self, actor: Actor, reason: str = "it was killed") -> None:
        """Kills a collector: what it would have said is lost."""
        actor.lost_by = ActorLostError(reason)
        for future, *_ in actor.calls:
            future.set_exception(actor.lost_by)

    def remove(self, key: str) -> None:
        """Takes a node away, with all that is on it."""
        self.there = [node for node in self.there if node.key != key]
        for actor in self.living():
            if actor.node is not None and actor.node.key == key:
                self.kill(actor, "its node is gone")


class Unique(FakeLearner):
    """Remembers what it was given by what no two blocks have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[float, float, int]] = []

    def insert(self, block: ExperienceBlock, collector: int, version: int) -> None:
        super().insert(block, collector, version)
        self.blocks.append((float(block.floats[0, 0, 2]), float(block.floats[0, 0, 0]), collector))
        assert not block.image.flags.writeable, "it is read where it came"


class Run:
    """A learner and its collectors, without the loop."""

    def __init__(self, folder: Path, cluster: ClusterHere, num_collectors: int = 4) -> None:
        self.learner, self.cluster = Unique(), cluster
        spec = fake_run(folder, cluster="ray", num_collectors=num_collectors)
        limits = Limits(silence_s=PATIENCE_S)
        self.collectors = RayCollectors(spec, self.learner.network.state_dict(), 0, 0, cluster, limits=limits)
        self.most_under_way = 0

    def actor(self, index: int) -> Actor:
        return self.collectors.remotes[index].actor

    def publish(self) -> None:
        self.collectors.publish(self.learner.version, self.learner.network.state_dict())

    def until(self, is_enough: Callable[[], bool]) -> None:
        """Learns until a condition holds."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_enough():
            assert time.monotonic() < give_up_s
            for delivery in self.collectors.collect(CollectLimits(self.learner.num_allowed_env_steps(), 0.05)):
                self.learner.insert(delivery.block, delivery.collector, delivery.facts.version)
                self.collectors.release(delivery)
            self.most_under_way = max(self.most_under_way, self.collectors.num_under_way)
            if self.learner.update() is not None:
                self.publish()

    def learn(self, num_blocks: int = NUM_BLOCKS) -> None:
        """Learns from so many further blocks; nothing is learned twice, and the bounds hold."""
        blocks = self.learner.blocks
        goal = len(blocks) + num_blocks
        self.until(lambda: len(blocks) >= goal)
        assert len(set(blocks)) == len(blocks), "nothing is learned twice"
        assert self.learner.num_env_steps == len(blocks) * BLOCK_STEPS
        assert self.most_under_way <= 4, "as many as the learner allows"
        assert max(self.learner.staleness) <= self.learner.allowed_lag


Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Returns what starts a run on nodes with so many CPUs, all of whose collectors work."""
    runs: list[Run] = []

    def make(*num_cpus: int, kind: type = RemoteCollector, is_whole: bool = True) -> Run:
        runs.append(run := Run(tmp_path, ClusterHere(nodes(*num_cpus), kind), sum(num_cpus)))
        run.collectors.start()
        run.publish()
        if is_whole:
            until_all_work(run.collectors)
        return run

    yield make
    for run in runs:
        run.collectors.stop()
        assert run.cluster.is_closed
        assert not run.cluster.living()


# How it goes ----------------------------------------------------------------------------------------------------------


def test_blocks_of_two_nodes_come_intact_in_order_and_fresh(begin: Begin) -> None:
    run = begin(2, 2)
    run.learn()
    run.until(lambda: run.collectors.cpu_seconds_elsewhere > 0.0)
    assert set(run.learner.collectors) == {0, 1, 2, 3}
    assert run.collectors.num_restarts == 0
    assert run.cluster.num_put == run.learner.version + 1, "each version is laid once for all"
    size, moved = run.collectors._layout.num_bytes, run.collectors.take_weight_bytes()
    assert moved % size == 0
    assert size <= moved <= 4 * size * run.cluster.num_put
    assert run.collectors.take_weight_bytes() == 0


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_killed_collector_is_made_again_and_its_credit_given_out_again(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(1, 1)
    run.learn(10)
    run.cluster.kill(run.actor(1))
    # Its successor has its number, and a seed of its own.
    run.until(lambda: len({block[0] for block in run.learner.blocks if block[2] == 1}) == 2)
    run.learn()
    assert "collector 1 on node-1 is gone: it was killed; starting it again" in caplog.text
    assert run.collectors.num_restarts == 1


def test_one_that_is_cut_off_and_comes_back_is_not_heard(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(2)
    run.learn(10)
    actor = run.actor(0)
    actor.unheard = []
    run.until(lambda: any(method == "fill" for _, method, _ in actor.unheard))
    run.collectors.remotes[0].heard_s -= 2.0 * PATIENCE_S
    run.until(lambda: run.collectors.num_restarts == 1)
    assert f"collector 0 on node-0 took no step for {PATIENCE_S:.0f} s while working" in caplog.text
    for future, _, said in actor.unheard:  # blocks that nobody waits for
        future.set_result(said)
    run.learn()


def test_one_that_stands_still_is_made_again(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """Its process lives and answers when it is asked how it is: that it has taken no step for long.

    One that is slow and takes steps is left alone: a block may take longer than the limit.
    """
    run = begin(1, 1)
    run.learn(10)
    still, remote = run.actor(0), run.collectors.remotes[0]
    still.is_still = True
    still.remote._step()
    remote.heard_s, remote.asked_s = remote.heard_s - 2.0 * PATIENCE_S, 0.0
    run.collectors.collect(CollectLimits(0, 0.0))
    assert run.collectors.num_restarts == 0
    still.remote._began_s -= 2.0 * PATIENCE_S
    remote.asked_s = 0.0
    run.until(lambda: run.collectors.num_restarts == 1)
    assert f"took no step for {PATIENCE_S:.0f} s while working; starting it again" in caplog.text
    run.learn()
    assert run.collectors.num_restarts == 1


def test_weights_that_come_damaged_are_never_driven_with(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(1, 1)
    put = run.cluster.put

    def spoil(content: Any) -> Any:
        damaged = content.copy()
        if run.cluster.num_put == 3:
            damaged[1000] ^= 1
        return put(damaged)

    run.cluster.put = spoil  # type: ignore[method-assign]
    run.until(lambda: "came wrong: its checksum is another one" in caplog.text)
    run.publish()  # both may wait for another version, and the learner for one of their blocks
    run.learn()
    assert run.collectors.num_restarts > 0


class Broken(RemoteCollector):
    def build(self, pickled: bytes) -> None:
        message = "the collector broke down"
        raise RuntimeError(message)


class Unable(RemoteCollector):
    def build(self, pickled: bytes) -> None:
        message = "this processor cannot do that"
        raise UserError(message, hint="Take another one.")


class Stranger(RemoteCollector):
    def code(self) -> tuple[str, dict[str, str]]:
        return "", super().code()[1] | {"code": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("kind", "error", "words", "hint"),
    [
        (Broken, WorkerCrashError, r"was lost 3 times within 600 s; the last time it [\s\S]*collector broke down", ""),
        (Unable, UserError, "is refused: this processor cannot do that", "Take another one."),
        (
            Stranger,
            UserError,
            "is refused: it is of another version: code 0123456789abcdef, and the learner's is [0-9a-f]{16}",
            "Install the same version of Rulka on every node",
        ),
    ],
)
def test_what_would_come_again_ends_the_run_with_its_words(
    begin: Begin, kind: type, error: type[Exception], words: str, hint: str
) -> None:
    run = begin(1, kind=kind, is_whole=False)
    with pytest.raises(error, match=f"collector 0 on node-0 {words}") as raised:
        run.learn(1)
    assert hint in getattr(raised.value, "hint", "")


def test_a_node_of_another_version_that_comes_later_does_not_end_the_run(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(1, 1)
    run.learn(10)
    run.cluster.kind = Stranger
    run.cluster.remove("n1")
    run.cluster.there.append(nodes(1, 1, 1)[2])
    run.until(lambda: "collector 1 on node-2 is refused" in caplog.text)
    assert "the run goes on without it. Install the same version" in caplog.text
    run.learn(10)


def test_a_lost_node_lets_the_run_go_on_and_one_that_comes_is_taken(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(1, 2)
    run.learn(10)
    (left,) = [each.number for each in run.cluster.actors if each.node.key == "n0"]
    run.cluster.remove("n1")
    run.until(lambda: caplog.text.count("its node is gone; starting it again where there is room") == 2)
    before = len(run.learner.collectors)
    run.learn()
    assert set(run.learner.collectors[before + 8 :]) == {left}
    run.cluster.there += nodes(0, 0, 0, 2)[2:]  # one without CPUs, and one that is large enough
    run.until(lambda: set(run.learner.collectors[before + 8 :]) == {0, 1, 2})
    run.learn(10)
    assert [each.node.key for each in run.cluster.actors[3:]] == ["n3", "n3"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> ClusterHere:
    """Two nodes, on which runs find their collectors."""
    cluster = ClusterHere(nodes(1, 1))
    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", lambda _address: cluster)
    return cluster


def test_without_any_node_the_run_waits_and_then_ends_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: ClusterHere
) -> None:
    insert = FakeLearner.insert

    def insert_and_remove(learner: FakeLearner, *given: Any) -> None:
        insert(learner, *given)
        if len(learner.seen) == 5:
            here.remove("n0")
            here.remove("n1")

    monkeypatch.setattr(FakeLearner, "insert", insert_and_remove)
    limits = Limits(silence_s=PATIENCE_S, node_s=2.0)
    monkeypatch.setattr(connecting, "RayCollectors", partial(RayCollectors, limits=limits))
    with pytest.raises(WorkerCrashError, match="no node is left to collect on, and none has come for 2 s"):
        train_run(fake_run(tmp_path, num_collectors=2, cluster="ray", max_env_steps=10**9))
    saved = newest(tmp_path)
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
    assert here.is_closed


def test_a_cluster_is_joined_before_the_learner_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of IQN imports torchrl, and with it Ray, which then knows nothing of a cluster on loopback."""

    def nobody_answers(_address: str) -> None:
        raise UserError("nobody answers")

    def too_early(_spec: RunSpec) -> None:
        pytest.fail("the learner is built")

    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", nobody_answers)
    monkeypatch.setattr(RunSpec, "make_learner", too_early)
    with pytest.raises(UserError, match="nobody answers"):
        train_run(fake_run(tmp_path, num_collectors=1, cluster="ray"))


# What a cluster has to have -------------------------------------------------------------------------------------------


def test_too_little_is_said_at_once_with_what_is_there(tmp_path: Path) -> None:
    cluster = ClusterHere(nodes(2, 1))
    wanted = r"num_collectors 4 take a CPU each, and the cluster has 3: node-0 2, node-1 1"
    with pytest.raises(UserError, match=wanted):
        Run(tmp_path, cluster)
    cluster.taken_cpus = 2
    with pytest.raises(UserError, match="has 3, of which others have taken 2"):
        Run(tmp_path, cluster, 2)
    assert cluster.actors == []
    one, other = (node._replace(store_bytes=100 << 20) for node in nodes(1, 2))
    check_size(2, [one, other], 3, 50 << 20)
    for count, there, name in ((2, one, "node-0"), (3, one._replace(store_bytes=1 << 30), "node-1")):
        with pytest.raises(UserError, match=f"of node {name} has 100 MiB, .* may take 120 MiB"):
            check_size(count, [there, other], 3, 60 << 20)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=[] if name == "iqn" else pytest.mark.slow) for name in ALGORITHMS],
)
@pytest.mark.filterwarnings("error:The given NumPy array")
def test_every_algorithm_learns_from_blocks_where_they_came(
    tmp_path: Path, track: Path, here: ClusterHere, algorithm: str
) -> None:
    train = {"cluster": "ray", "order": "free", "num_collectors": 2, "checkpoint_s": 60.0}
    spec = run_spec(small_params(algorithm, {}, **train), track, tmp_path)
    with StopSignals() as stop, connect(spec, stop) as loop:
        heard: set[int] = set()
        insert = loop._learner.insert

        def note(block: Any, collector: int, version: int) -> None:
            heard.add(collector)
            insert(block, collector, version)

        loop._learner.insert = note  # type: ignore[method-assign]
        until_all_work(loop._collectors)
        outcome = loop.run()
    assert outcome.state.env_steps == spec.train.max_env_steps
    assert outcome.state.gradient_steps > 0
    assert heard == {0, 1}
    assert here.is_closed
