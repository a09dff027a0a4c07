"""Collectors on several nodes and what happens when they die, with actors of this process instead of Ray's.

Nodes are only named, and each actor has a thread. What a test wants to go wrong it does to the cluster: nodes that go,
collectors that die, fall silent, are cut off and come back, answers that are changed. Real nodes: `test_ray_cluster`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_any
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_run import run_spec
from runtime_fakes import BLOCK_STEPS, FakeLearner, fake_run
from test_exact_resume import small_params

from rulka.agents.params import ALGORITHM_NAMES
from rulka.buffers.experience import ExperienceBlock
from rulka.cluster import ActorFailedError, ActorLostError, ClusterError, Node
from rulka.errors import UserError
from rulka.runtime import connect as connecting
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.connect import connect, train_run
from rulka.runtime.ray_collectors import (
    ClusterTooSmallError,
    CollectorRefusedError,
    CollectorsLostError,
    Limits,
    RayCollectors,
    RemoteCollector,
    check_size,
)
from rulka.runtime.specs import RunSpec
from rulka.runtime.stop import StopSignals
from rulka.runtime.supervisor import WorkerCrashError
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).parents[2]
STORE_BYTES = 1 << 30


def nodes(*num_cpus: int) -> list[Node]:
    """Nodes with so many CPUs; this process is on the first."""
    return [Node(f"n{k}", f"node-{k}", count, STORE_BYTES, k == 0) for k, count in enumerate(num_cpus)]


def until_all_work(collectors: RayCollectors) -> None:
    """Waits until every collector is built: from then on each gets its share of the permissions."""

    def all_work() -> bool:
        collectors.collect(0, 0.05)
        return all(remote.state == "working" for remote in collectors.remotes)

    wait_for(all_work, "all collectors to work")


@dataclass(eq=False)
class Actor:
    """A collector that answers one call after the other, and the answers that its calls will have."""

    number: int
    kind: type
    node: Node | None = None
    remote: RemoteCollector | None = None
    is_cut_off: bool = False
    lost_by: ActorLostError | None = None
    answers: list[Future[Any]] = field(default_factory=list)
    unheard: list[tuple[Future[Any], Any]] = field(default_factory=list)
    early: list[tuple[Future[Any], str, tuple[Any, ...]]] = field(default_factory=list)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    beside: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def stop(self) -> None:
        """Ends it, after the call that it answers now."""
        self.thread.shutdown(cancel_futures=True)
        self.beside.shutdown(cancel_futures=True)


class ClusterHere:
    """See `rulka.cluster.RayCluster`.

    Attributes:
        there: nodes that are there.
        actors: all that were ever started, in the order of their starts; a collector is number `k` of its place.
        kind: class of those that are started from now on.
        change: changes an answer, of an actor and to a method, as it is read.
    """

    def __init__(self, there: Sequence[Node], kind: type = RemoteCollector) -> None:
        self.there = list(there)
        self.actors: list[Actor] = []
        self.taken_cpus = 0
        self.change: Callable[[Actor, str, Any], Any] = lambda _actor, _method, answer: answer
        self.num_put = 0
        self.is_closed = False
        self.kind = kind
        self._calls: dict[Future[Any], tuple[Actor, str]] = {}

    # What the learner does ------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return list(self.there)

    def num_free_cpus(self) -> int:
        return sum(node.num_cpus for node in self.there) - self.taken_cpus

    def start(self, kind: type) -> Actor:
        assert kind is RemoteCollector
        actor = Actor(len(self.actors), self.kind)
        self.actors.append(actor)
        self._place(actor)
        return actor

    def _place(self, actor: Actor) -> None:
        """Puts an actor on the node that has most room, if any has; until then its calls wait."""
        taken = [other.node for other in self.living() if other.node is not None]
        free = [(node.num_cpus - taken.count(node), -k) for k, node in enumerate(self.there)]
        if free and max(free)[0] > 0:
            actor.node, actor.remote = self.there[-max(free)[1]], actor.kind()
            for answer, method, given in actor.early:
                actor.thread.submit(self._answer, actor, answer, method, given)

    def call(self, actor: Actor, method: str, *arguments: Any, is_beside: bool = False) -> Future[Any]:
        answer: Future[Any] = Future()
        actor.answers.append(answer)
        self._calls[answer] = actor, method
        if actor.lost_by is not None:
            answer.set_exception(actor.lost_by)
        elif actor.remote is None:
            actor.early.append((answer, method, arguments))
        else:
            thread = actor.beside if is_beside else actor.thread
            thread.submit(self._answer, actor, answer, method, arguments)
        return answer

    def _answer(self, actor: Actor, answer: Future[Any], method: str, given: tuple[Any, ...]) -> None:
        try:
            said = getattr(actor.remote, method)(*given)
        except UserError as error:
            answer.set_exception(error)
            return
        except Exception as error:
            answer.set_exception(ActorFailedError(f"{type(error).__name__}: {error}"))
            return
        if method == "code":
            assert actor.node is not None
            said = actor.node.name, said[1]
        if method == "fill":
            said = said[0], {name: array.copy() for name, array in said[1].items()}
            for array in said[1].values():
                array.flags.writeable = False  # as Ray's
        if actor.is_cut_off:
            actor.unheard.append((answer, said))
            return
        with suppress(InvalidStateError):  # it was killed just now
            answer.set_result(said)

    def put(self, content: np.ndarray) -> np.ndarray:
        self.num_put += 1
        content = content.copy()
        content.flags.writeable = False
        return content

    def wait(self, references: Sequence[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        if not references:
            time.sleep(timeout_s)
            return []
        wait_for_any(references, timeout_s, FIRST_COMPLETED)
        return [reference for reference in references if reference.done()]

    def get(self, reference: Future[Any]) -> Any:
        return self.change(*self._calls[reference], reference.result(0.0))

    def end(self, actor: Actor) -> None:
        actor.lost_by = actor.lost_by or ActorLostError("it was ended")
        if not actor.is_cut_off:
            actor.stop()

    def close(self) -> None:
        for actor in self.actors:
            actor.lost_by = actor.lost_by or ActorLostError("the cluster is closed")
            actor.stop()
        self.is_closed = True

    # What a test does -----------------------------------------------------------------------------------------------

    def living(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.lost_by is None]

    def kill(self, actor: Actor, reason: str = "it was killed") -> None:
        """Kills a collector: what it would have said is lost."""
        actor.lost_by = ActorLostError(reason)
        for answer in actor.answers:
            with suppress(InvalidStateError):
                answer.set_exception(actor.lost_by)

    def cut_off(self, actor: Actor) -> None:
        """Lets a collector work on, while nothing comes from it any more."""
        actor.is_cut_off = True

    def bring_back(self, actor: Actor) -> int:
        """Lets everything be heard that a collector has said while it was cut off; returns how many blocks."""
        actor.thread.shutdown()
        for answer, said in actor.unheard:
            answer.set_result(said)
        return sum(self._calls[answer][1] == "fill" for answer, _ in actor.unheard)

    def remove(self, key: str) -> None:
        """Takes a node away, with all that is on it."""
        self.there = [node for node in self.there if node.key != key]
        for actor in self.living():
            if actor.node is not None and actor.node.key == key:
                self.kill(actor, "its node is gone")

    def add(self, node: Node) -> None:
        """Adds a node, and gives it those that wait for one."""
        self.there.append(node)
        for actor in self.living():
            if actor.node is None:
                self._place(actor)


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
    """A learner and its collectors, without the loop."""

    def __init__(self, folder: Path, cluster: ClusterHere, **train: Any) -> None:
        self.learner, self.cluster = Unique(), cluster
        spec = fake_run(folder, cluster="ray", **({"num_collectors": 4} | train))
        limits = Limits(silence_s=PATIENCE_S)
        self.collectors = RayCollectors(spec, self.learner.network.state_dict(), 0, 0, cluster, limits=limits)
        self.most_under_way = 0

    def start(self) -> None:
        self.collectors.start()
        self._publish()

    def gather(self) -> None:
        """Waits for all collectors, so that none of them comes when the others have done all the work."""
        until_all_work(self.collectors)

    def actor(self, index: int) -> Actor:
        return self.collectors.remotes[index].actor

    def until_lost(self, index: int) -> None:
        """Lets the last sign of a collector be so long ago that it counts as lost, unless it gives one now."""

        def is_made_again() -> bool:
            if not self.collectors.num_restarts:  # what it had said before is heard first
                self.collectors.remotes[index].heard_s -= 2.0 * PATIENCE_S
            return self.collectors.num_restarts == 1

        self.until(is_made_again)

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

    def make(*num_cpus: int, kind: type = RemoteCollector, **train: Any) -> Run:
        run = Run(tmp_path, ClusterHere(nodes(*num_cpus), kind), **train)
        runs.append(run)
        run.start()
        return run

    yield make
    for run in runs:
        run.collectors.stop()
        assert run.cluster.is_closed
        assert not run.cluster.living()


# How it goes ----------------------------------------------------------------------------------------------------------


def test_blocks_of_two_nodes_come_intact_in_order_and_fresh(begin: Begin) -> None:
    run = begin(2, 2)
    run.gather()
    run.learn(NUM_BLOCKS)
    run.until(lambda: run.collectors.cpu_seconds_elsewhere > 0.0)
    run.check()
    assert set(run.learner.collectors) == {0, 1, 2, 3}
    assert len(run.cluster.actors) == 4
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
    run = begin(1, 1, num_collectors=2)
    run.gather()
    run.learn(10)
    run.cluster.kill(run.actor(1))
    # Its successor has its number, and a seed of its own.
    run.until(lambda: len({block[0] for block in run.learner.blocks if block[2] == 1}) == 2)
    run.learn(NUM_BLOCKS)
    run.check()
    assert "collector 1 on node-1 is gone: it was killed; starting it again" in caplog.text
    assert run.collectors.num_restarts == 1


def test_one_that_is_cut_off_and_comes_back_is_not_heard(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(2, num_collectors=2)
    run.gather()
    run.learn(10)
    actor = run.actor(0)
    run.cluster.cut_off(actor)
    run.until(lambda: any(run.cluster._calls[answer][1] == "fill" for answer, _ in actor.unheard))
    run.until_lost(0)
    assert f"collector 0 on node-0 took no step for {PATIENCE_S:.0f} s while working" in caplog.text
    assert run.cluster.bring_back(actor), "blocks that nobody waits for"
    run.learn(NUM_BLOCKS)
    run.check()


hangs, goes_on = threading.Event(), threading.Event()


class Stalled(RemoteCollector):
    """Stands still in its fifth block, if it is the first one to do so."""

    num_blocks = 0
    is_stalled = False

    def fill(self, *arguments: Any) -> Any:
        self.num_blocks += 1
        if self.num_blocks == 5 and not hangs.is_set():
            self._step()
            self.is_stalled = True
            hangs.set()
            goes_on.wait(PATIENCE_S)
        return super().fill(*arguments)


def test_one_that_stands_still_is_made_again(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    """Its process lives and answers when it is asked how it is: that it has taken no step for long."""
    hangs.clear()
    goes_on.clear()
    run = begin(1, 1, num_collectors=2, kind=Stalled)
    end = run.cluster.end

    def let_go_and_end(actor: Actor) -> None:
        goes_on.set()
        end(actor)

    run.cluster.end = let_go_and_end  # type: ignore[method-assign]
    run.until(hangs.is_set)
    (stalled,) = [each for each in run.cluster.actors if each.remote.is_stalled]
    stalled.remote._began_s -= 2.0 * PATIENCE_S
    run.until(lambda: run.collectors.num_restarts == 1)
    assert f"took no step for {PATIENCE_S:.0f} s while working; starting it again" in caplog.text
    run.learn(NUM_BLOCKS)
    run.check()
    assert run.collectors.num_restarts == 1


def test_weights_that_come_damaged_are_never_driven_with(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(1, 1, num_collectors=2)
    run.gather()
    put = run.cluster.put

    def spoil(content: Any) -> Any:
        damaged = content.copy()
        if run.cluster.num_put == 3:
            damaged[1000] ^= 1
        return put(damaged)

    run.cluster.put = spoil  # type: ignore[method-assign]
    run.until(lambda: "came wrong: its checksum is another one" in caplog.text)
    run._publish()  # both may wait for another version, and the learner for one of their blocks
    run.learn(NUM_BLOCKS)
    run.check()
    assert run.collectors.num_restarts > 0


class Slow(RemoteCollector):
    def _step(self) -> None:
        super()._step()
        time.sleep(0.2)


def test_one_that_is_slow_and_takes_steps_is_left_alone(begin: Begin) -> None:
    """A block may take longer than the limit; what counts is the last step."""
    run = begin(1, num_collectors=1, kind=Slow)
    run.gather()
    run.collectors._limits = Limits(silence_s=2.5)
    run.learn(1)
    assert run.collectors.num_restarts == 0


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
        (Unable, CollectorRefusedError, "is refused: this processor cannot do that", "Take another one."),
        (
            Stranger,
            CollectorRefusedError,
            "is refused: it is of another version: code 0123456789abcdef, and the learner's is [0-9a-f]{16}",
            "Install the same version of Rulka on every node",
        ),
    ],
)
def test_what_would_come_again_ends_the_run_with_its_words(
    begin: Begin, kind: type, error: type[Exception], words: str, hint: str
) -> None:
    run = begin(1, num_collectors=1, kind=kind)
    with pytest.raises(error, match=f"collector 0 on node-0 {words}") as raised:
        run.learn(1)
    assert hint in getattr(raised.value, "hint", "")


def test_a_node_of_another_version_that_comes_later_does_not_end_the_run(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(1, 1, num_collectors=2)
    run.gather()
    run.learn(10)
    run.cluster.kind = Stranger
    run.cluster.remove("n1")
    run.cluster.add(nodes(1, 1, 1)[2])
    run.until(lambda: "collector 1 on node-2 is refused" in caplog.text)
    assert "the run goes on without it. Install the same version" in caplog.text
    run.learn(10)
    run.check()


def test_a_lost_node_lets_the_run_go_on_and_one_that_comes_is_taken(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    run = begin(1, 2, num_collectors=3)
    run.gather()
    run.learn(10)
    (left,) = [each.number for each in run.cluster.actors if each.node.key == "n0"]
    run.cluster.remove("n1")
    run.until(lambda: caplog.text.count("its node is gone; starting it again where there is room") == 2)
    before = len(run.learner.collectors)
    run.learn(NUM_BLOCKS)
    assert set(run.learner.collectors[before + 8 :]) == {left}
    without_cpus, large_enough = nodes(0, 0, 0, 2)[2:]
    run.cluster.add(without_cpus)
    run.cluster.add(large_enough)
    run.until(lambda: set(run.learner.collectors[before + 8 :]) == {0, 1, 2})
    run.check()
    assert [each.node.key for each in run.cluster.actors[3:]] == ["n3", "n3"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> ClusterHere:
    """Two nodes, on which runs find their collectors."""
    cluster = ClusterHere(nodes(2, 1))
    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", lambda _address: cluster)
    return cluster


def test_without_any_node_the_run_waits_and_then_ends_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: ClusterHere
) -> None:
    limits = Limits(silence_s=PATIENCE_S, node_s=2.0)

    def collectors(*arguments: Any, **named: Any) -> RayCollectors:
        return RayCollectors(*arguments, **named, limits=limits)

    num_blocks = 0

    def remove_all(_actor: Actor, method: str, answer: Any) -> Any:
        nonlocal num_blocks
        num_blocks += method == "fill"
        if num_blocks == 5:
            here.remove("n0")
            here.remove("n1")
        return answer

    monkeypatch.setattr(connecting, "RayCollectors", collectors)
    here.change = remove_all
    spec = fake_run(tmp_path, num_collectors=2, cluster="ray", max_env_steps=10**9)
    with pytest.raises(CollectorsLostError, match="no node is left to collect on, and none has come for 2 s"):
        train_run(spec)
    saved = Checkpoints(tmp_path).load_newest()
    assert saved is not None
    assert saved["run"]["env_steps"] == saved["learner"]["num_env_steps"] > 0
    assert here.is_closed


def test_a_cluster_is_joined_before_the_learner_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of IQN imports torchrl, and with it Ray, which then knows nothing of a cluster on loopback."""

    def nobody_answers(_address: str) -> None:
        raise ClusterError("nobody answers")

    def too_early(_spec: RunSpec) -> None:
        pytest.fail("the learner is built")

    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", nobody_answers)
    monkeypatch.setattr(RunSpec, "make_learner", too_early)
    with pytest.raises(ClusterError, match="nobody answers"):
        train_run(fake_run(tmp_path, num_collectors=1, cluster="ray"))


def test_no_stage_imports_ray_before_it_knows_its_cluster() -> None:
    code = "import sys, tasks.train; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_whole_training_has_the_samples_that_it_would_have_had(tmp_path: Path, here: ClusterHere) -> None:
    """The loop, the rank and the budget: exactly as many environment steps as asked for, though one was killed."""
    num_blocks = 0

    def kill_once(actor: Actor, method: str, answer: Any) -> Any:
        nonlocal num_blocks
        if method == "fill" and actor.number == 1:
            num_blocks += 1
            if num_blocks == 5 and len(here.actors) == 3:
                here.kill(actor)
        return answer

    here.change = kill_once
    spec = fake_run(tmp_path, num_collectors=3, cluster="ray", max_env_steps=60 * BLOCK_STEPS)
    with StopSignals() as stop, connect(spec, stop) as loop:
        until_all_work(loop._collectors)  # type: ignore[arg-type]
        outcome = loop.run()
    assert outcome.state.env_steps == 60 * BLOCK_STEPS
    assert len(here.actors) == 4


# What a cluster has to have -------------------------------------------------------------------------------------------


def test_too_little_is_said_at_once_with_what_is_there(tmp_path: Path) -> None:
    cluster = ClusterHere(nodes(2, 1))
    wanted = r"num_collectors 4 take a CPU each, and the cluster has 3: node-0 2, node-1 1"
    with pytest.raises(ClusterTooSmallError, match=wanted):
        Run(tmp_path, cluster)
    cluster.taken_cpus = 2
    with pytest.raises(ClusterTooSmallError, match="has 3, of which others have taken 2"):
        Run(tmp_path, cluster, num_collectors=2)
    assert cluster.actors == []
    one, other = (node._replace(store_bytes=100 << 20) for node in nodes(1, 2))
    check_size(2, [one, other], 3, 50 << 20)
    for count, there, name in ((2, one, "node-0"), (3, one._replace(store_bytes=1 << 30), "node-1")):
        with pytest.raises(ClusterTooSmallError, match=f"of node {name} has 100 MiB, .* may take 120 MiB"):
            check_size(count, [there, other], 3, 60 << 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_collectors": 0}, "num_collectors 0 has no processes that could be elsewhere"),
        ({"num_collectors": 2, "learners": 2}, "2 learners have their collectors beside them"),
        ({"num_collectors": 1, "environment": "game"}, "games run where the learner does"),
        ({"num_collectors": 1, "inference": "central"}, "central inference acts beside the learner"),
    ],
)
def test_what_collectors_elsewhere_cannot_do_is_refused_when_parameters_are_read(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fake_run(Path(), cluster="ray", **changes)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=[] if name == "iqn" else pytest.mark.slow) for name in ALGORITHM_NAMES],
)
@pytest.mark.filterwarnings("error:The given NumPy array")
def test_every_algorithm_learns_from_blocks_where_they_came(
    tmp_path: Path, track: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    cluster = ClusterHere(nodes(1, 1))
    monkeypatch.setattr(connecting, "find_cluster", lambda: "here")
    monkeypatch.setattr(connecting, "RayCluster", lambda _address: cluster)
    spec = run_spec(
        small_params(algorithm, {}, cluster="ray", order="free", num_collectors=2, checkpoint_s=60.0), track, tmp_path
    )
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
    assert cluster.is_closed
