"""A cluster in this process: nodes that are only named, and hosts with a thread each.

Blocks are filled by a collector of fakes in the thread of its host, weights are copied; what a test wants to go wrong
it does to the cluster: nodes that go, hosts that die, fall silent, are cut off and come back, calls that are spoilt.
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

from rulka.cluster.ray_cluster import ActorLostError, Node
from rulka.runtime.collectors import Collectors, SerialCollectors
from rulka.runtime.host import Host, HostFailed, HostSpec, Place, Report
from rulka.runtime.hosts import HostCollectors
from tests.waiting import PATIENCE_S, wait_for

STORE_BYTES = 1 << 30


def nodes(*num_cpus: int) -> list[Node]:
    """Nodes with so many CPUs; this process is on the first."""
    return [Node(f"n{k}", f"node-{k}", count, STORE_BYTES, k == 0) for k, count in enumerate(num_cpus)]


def serial(spec: HostSpec) -> Collectors:
    """Builds the collectors of a host without processes: one of them does what all should."""
    return SerialCollectors(spec.run, 0, spec.num_starts)


def until_all_work(collectors: HostCollectors) -> None:
    """Waits until every host has built its collectors: from then on each gets its share of the permissions."""

    def all_work() -> bool:
        collectors.collect(0, 0.05)
        return all(host.state == "working" for host in collectors.hosts)

    wait_for(all_work, "all hosts to work")


class HostHere(Host):
    """A host whose blocks come as Ray's: read-only."""

    def work(self) -> Report | HostFailed:
        report = super().work()
        if isinstance(report, Report):
            for array in [array for filled in report.filled for array in filled.arrays.values()]:
                array.flags.writeable = False
        return report


@dataclass(eq=False)
class Actor:
    """A host that answers one call after the other, and the answers that its calls will have."""

    host: HostHere
    place: Place
    node: Node
    is_cut_off: bool = False
    lost_by: ActorLostError | None = None
    answers: list[Future[Any]] = field(default_factory=list)
    unheard: list[tuple[Future[Any], Any]] = field(default_factory=list)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def stop(self) -> None:
        """Ends the host, after the call that it answers now."""
        self.thread.submit(self.host.stop).result(PATIENCE_S)


class ClusterHere:
    """See `rulka.cluster.ray_cluster.RayCluster`.

    Attributes:
        there: nodes that are there.
        started: every place that was ever started, with its node.
        actors: that are there.
        spoil: changes the arguments of a call, of a place and by a method.
        change: changes an answer, of a place and to a method, as it is read.
    """

    def __init__(self, there: Sequence[Node], make_collectors: Callable[[HostSpec], Collectors] = serial) -> None:
        self.there = list(there)
        self.started: list[tuple[Place, str]] = []
        self.actors: list[Actor] = []
        self.taken_cpus = 0
        self.spoil: Callable[[Place, str, tuple[Any, ...]], tuple[Any, ...]] = lambda _place, _method, given: given
        self.change: Callable[[Place, str, Any], Any] = lambda _place, _method, answer: answer
        self.num_put = 0
        self.is_closed = False
        self._make_collectors = make_collectors
        self._calls: dict[Future[Any], tuple[Place, str]] = {}
        self._cut_off: list[Actor] = []

    # What the learner does ------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        return list(self.there)

    def num_free_cpus(self) -> int:
        return sum(node.num_cpus for node in self.there) - self.taken_cpus

    def start(self, node: Node, num_cpus: int, kind: type, *arguments: Any) -> Actor:
        (place,) = arguments
        self.started.append((place, node.key))
        actor = Actor(HostHere(place, self._make_collectors), place, node)
        if node in self.there:
            self.actors.append(actor)
        else:
            actor.lost_by = ActorLostError("there is no such node", is_unplaced=True)
        return actor

    def call(self, actor: Actor, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        actor.answers.append(answer)
        self._calls[answer] = actor.place, method
        if actor.lost_by is not None:
            answer.set_exception(actor.lost_by)
            return answer
        given = self.spoil(actor.place, method, arguments)
        actor.thread.submit(self._answer, actor, answer, method, given)
        return answer

    def _answer(self, actor: Actor, answer: Future[Any], method: str, given: tuple[Any, ...]) -> None:
        said = getattr(actor.host, method)(*given)
        if actor.is_cut_off and (actor.unheard or (isinstance(said, Report) and said.filled)):
            actor.unheard.append((answer, said))
            return
        with suppress(InvalidStateError):  # it was killed just now
            answer.set_result(said)

    def put(self, content: np.ndarray) -> np.ndarray:
        self.num_put += 1
        return content.copy()

    def wait(self, references: Sequence[Future[Any]], timeout_s: float) -> list[Future[Any]]:
        if not references:
            time.sleep(timeout_s)
            return []
        wait_for_any(references, timeout_s, FIRST_COMPLETED)
        return [reference for reference in references if reference.done()]

    def get(self, reference: Future[Any]) -> Any:
        return self.change(*self._calls.pop(reference), reference.result(0.0))

    def end(self, actor: Actor) -> None:
        if actor.is_cut_off:
            self._cut_off.append(actor)
        elif actor in self.actors:
            actor.stop()
        if actor in self.actors:
            self.actors.remove(actor)

    def close(self) -> None:
        for actor in list(self.actors):
            self.end(actor)
        for actor in self._cut_off:
            actor.stop()
        self.is_closed = True

    # What a test does -----------------------------------------------------------------------------------------------

    def kill(self, number: int, reason: str = "it was killed") -> None:
        """Kills a host: what it would have said is lost."""
        actor = self.actor_of(number)
        self.actors.remove(actor)
        actor.lost_by = ActorLostError(reason)
        for answer in actor.answers:
            with suppress(InvalidStateError):
                answer.set_exception(actor.lost_by)
        actor.stop()

    def cut_off(self, number: int) -> None:
        """Lets a host work on, while nothing comes from it, from its next block on."""
        self.actor_of(number).is_cut_off = True

    def bring_back(self) -> int:
        """Lets everything be heard that hosts have said while they were cut off; returns how many blocks."""
        unheard = [said for actor in self._cut_off for said in actor.unheard]
        for answer, said in unheard:
            answer.set_result(said)
        return sum(len(said.filled) for _, said in unheard if isinstance(said, Report))

    def remove(self, key: str) -> None:
        """Takes a node away, with all that is on it."""
        self.there = [node for node in self.there if node.key != key]
        for actor in list(self.actors):
            if actor.node.key == key:
                self.kill(actor.place.number, "its node is gone")

    def actor_of(self, number: int) -> Actor:
        (actor,) = [actor for actor in self.actors if actor.place.number == number]
        return actor
