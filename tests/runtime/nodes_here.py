"""A cluster in this process: nodes that are only named, and actors with a thread each.

Blocks are filled by collectors of fakes, weights are copied; what a test wants to go wrong it does to the cluster:
nodes that go, collectors that die, fall silent, are cut off and come back, answers that are changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_any
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rulka.cluster import ActorFailedError, ActorLostError, Node
from rulka.errors import UserError
from rulka.runtime.ray_collectors import RayCollectors, RemoteCollector
from tests.waiting import wait_for

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

    def start(self, node: Node | None, num_cpus: int, kind: type) -> Actor:
        assert (node, num_cpus, kind) == (None, 1, RemoteCollector)
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
