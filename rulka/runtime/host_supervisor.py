"""Starts, watches, re-creates and ends the hosts of a run; nothing else does, and Ray restarts nothing by itself.

A host that ends or is silent for too long is made again on its node as another incarnation, and what an earlier one
still says is not heard. One whose node is gone waits for another node; the run goes on with the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rulka.cluster.post import Gone, Letter, Node, Place, Post
from rulka.cluster.settings import ClusterError
from rulka.processes import STOP_GRACE_S, RestartBudget
from rulka.provenance import code_version
from rulka.runtime.host import make_host
from rulka.runtime.host_messages import Alive, Build, Built, HostFailed, Introduced, Stopped, ToHost
from rulka.runtime.host_plan import HostShare
from rulka.runtime.messages import InferenceTimes, Stop
from rulka.runtime.supervisor import MAX_RESTARTS, SILENCE_LIMIT_S, WorkerCrashError

HOST_RESTART_WINDOW_S = 600.0
"""Within it a host may be made again `MAX_RESTARTS` times: it takes longer than a collector does."""
NODE_LIMIT_S = 300.0
"""How long a run without any host waits for a node."""
LOOK_S = 5.0
"""How often is looked for nodes."""
GRACE_S = 4.0 * STOP_GRACE_S
"""How long a host may take to end when it is asked to: it ends its collectors before."""

_LOGGER = logging.getLogger(__name__)
State = Literal["starting", "building", "working", "away", "ended"]


class HostRefusedError(ClusterError):
    """A host does not fit the learner, or cannot be built; it would be the same the next time."""


class HostsLostError(ClusterError):
    """No node is left, and none has come."""


@dataclass(frozen=True)
class Limits:
    """How long is waited.

    Attributes:
        silence_s: a host that says nothing for so long counts as lost.
        node_s: a run without a host waits so long for a node.
        look_s: how often is looked for nodes.
        grace_s: how long hosts may take to end.
    """

    silence_s: float = SILENCE_LIMIT_S
    node_s: float = NODE_LIMIT_S
    look_s: float = LOOK_S
    grace_s: float = GRACE_S


@dataclass
class Host:
    """One host as the learner sees it.

    Attributes:
        share: what it has of the run; whoever takes its place has the same.
        node: where it is, or was last.
        incarnation: how often there was one before.
        state: `away` has no node, `ended` was asked to end and did.
        heard_s: when it last said something, on the monotonic clock.
        activity: what it last said it was doing.
        latest: what it last said of itself.
        cpu_s: time that its earlier incarnations had on processors.
        num_inner: how often those have started one of their processes again.
        budget: how often it may still be made again.
    """

    share: HostShare
    node: Node
    incarnation: int = 0
    state: State = "starting"
    heard_s: float = 0.0
    activity: str = "starting"
    latest: Alive = field(default_factory=lambda: Alive("", 0.0, 0))
    cpu_s: float = 0.0
    num_inner: int = 0
    budget: RestartBudget = field(default_factory=lambda: RestartBudget(MAX_RESTARTS, HOST_RESTART_WINDOW_S))

    @property
    def place(self) -> Place:
        """Which host, and how often there was one before."""
        return Place(self.share.number, self.incarnation)

    @property
    def name(self) -> str:
        """For people."""
        return f"host {self.share.number} on node {self.node.name}"


class HostSupervisor:
    """The hosts of a run.

    Attributes:
        hosts: all of them.
        num_dropped: letters of earlier incarnations that were not heard.
    """

    def __init__(
        self,
        post: Post,
        plan: Sequence[tuple[HostShare, Node]],
        make_order: Callable[[HostShare], Build],
        contract: Mapping[str, str],
        on_loss: Callable[[int], None],
        limits: Limits,
    ) -> None:
        """Prepares; `start` starts.

        Args:
            post: carries letters.
            plan: hosts and where they begin.
            make_order: returns what a host is to build, whenever there is a new one.
            contract: what its blocks and weights have to be.
            on_loss: told the number of a host that is gone, before there is another one.
            limits: how long to wait.
        """
        self._post, self._make_order, self._contract = post, make_order, contract
        self._on_loss, self._limits = on_loss, limits
        self._code = code_version()
        self.hosts = [Host(share, node) for share, node in plan]
        self.num_dropped = 0
        self._num_restarts = 0
        self._inference: list[InferenceTimes] = []
        self._refused: dict[str, str] = {}
        self._looked_s = self._had_host_s = time.monotonic()

    @property
    def num_restarts(self) -> int:
        """How often a host was made again, or a host has started one of its processes again."""
        return self._num_restarts + sum(host.num_inner + host.latest.num_restarts for host in self.hosts)

    @property
    def cpu_seconds(self) -> float:
        """Time that all hosts and their collectors had on processors, as far as they have said so."""
        return sum(host.cpu_s + host.latest.cpu_s for host in self.hosts)

    def take_inference_times(self) -> list[InferenceTimes]:
        """Returns what policy workers said of their time since the last call."""
        taken, self._inference = self._inference, []
        return taken

    def start(self) -> None:
        """Starts all hosts; whoever calls this has to call `stop`, whatever happens."""
        for host in self.hosts:
            self._launch(host)

    def tell(self, number: int, message: ToHost, parcel: Any = None) -> None:
        """Sends a letter to a host; one to a host that is just ending is lost, as `receive` will find out."""
        self._post.tell(self.hosts[number].place, message, parcel)

    def receive(self, timeout_s: float) -> list[Letter]:
        """Waits until something is heard or the time is over, and returns what hosts of now said of their work.

        Raises:
            HostRefusedError: if one of those that the run begins with does not fit.
            WorkerCrashError: if a host ended by an error of its own.
        """
        heard = self._post.hear(timeout_s)
        return [letter for letter in heard if self._is_of_now(letter) and self._concerns_work(letter)]

    def replace_lost(self) -> None:
        """Makes hosts again that are lost, where there is a node for them.

        Raises:
            WorkerCrashError: if one is lost too often.
            HostsLostError: if no node is left, and none has come for too long.
        """
        now_s = time.monotonic()
        for host in self.hosts:
            if host.state in ("starting", "building", "working") and now_s - host.heard_s > self._limits.silence_s:
                self._lose(host, f"said nothing for {self._limits.silence_s:.0f} s while {host.activity}")
        away = [host for host in self.hosts if host.state == "away"]
        if len(away) < len(self.hosts):
            self._had_host_s = now_s
        if not away:
            return
        if now_s - self._looked_s > self._limits.look_s:
            self._looked_s = now_s
            self._find_nodes(away)
        if now_s - self._had_host_s > self._limits.node_s:
            message = f"no node is left to collect on, and none has come for {self._limits.node_s:.0f} s"
            raise HostsLostError(message, hint="The run goes on from its checkpoint as soon as there is a cluster.")

    def stop(self) -> None:
        """Ends all hosts: asks, waits, then kills; may be called again."""
        asked = [host for host in self.hosts if host.state in ("starting", "building", "working")]
        for host in asked:
            self._post.tell(host.place, Stop())
        give_up_s = time.monotonic() + self._limits.grace_s
        while time.monotonic() < give_up_s and any(host.state not in ("ended", "away") for host in asked):
            for letter in self._post.hear(STOP_GRACE_S / 10.0):
                if self._is_of_now(letter) and isinstance(letter.message, Stopped | HostFailed | Gone):
                    self.hosts[letter.place.number].state = "ended"
        for host in asked:
            host.state = "ended"
            self._post.end(host.place)

    def _launch(self, host: Host) -> None:
        host.state, host.activity, host.heard_s = "starting", "starting", time.monotonic()
        self._post.start(host.place, host.node, host.share.num_collectors, make_host)

    def _is_of_now(self, letter: Letter) -> bool:
        """Whether a letter is of the host that is there now; of an earlier incarnation nothing counts any more."""
        host = self.hosts[letter.place.number]
        if letter.place == host.place and host.state not in ("away", "ended"):
            return True
        if letter.place != host.place:
            self.num_dropped += 1
            _LOGGER.warning("%s: an answer of its incarnation %d is too late", host.name, letter.place.incarnation)
        return False

    def _concerns_work(self, letter: Letter) -> bool:
        """Takes note of what a host says of itself; returns whether it is about weights or blocks."""
        host, message = self.hosts[letter.place.number], letter.message
        host.heard_s = time.monotonic()
        match message:
            case Gone():
                self._lose(host, f"is gone: {message.reason}", is_unplaced=message.is_unplaced)
            case Introduced():
                self._meet(host, message)
            case Built():
                self._accept(host, message)
                return host.state == "working"
            case Alive():
                host.activity, host.latest = message.activity, message
                self._inference += message.inference
            case HostFailed():
                self._end_by_error(host, message)
            case Stopped():
                self._lose(host, "ended by itself")
            case _:
                return True
        return False

    def _meet(self, host: Host, message: Introduced) -> None:
        wrong = _difference("code", message.code, self._code)
        if wrong:
            self._refuse(host, wrong, "Install the same version of Rulka on every node: docs/cluster.md.")
        else:
            host.state = "building"
            self._post.tell(host.place, self._make_order(host.share))

    def _accept(self, host: Host, message: Built) -> None:
        wrong = _difference("contract", message.contract, self._contract)
        if wrong:
            self._refuse(host, wrong, "Install the same version of Rulka on every node: docs/cluster.md.")
        else:
            host.state = "working"

    def _end_by_error(self, host: Host, message: HostFailed) -> None:
        if message.is_refusal:
            self._refuse(host, message.message, message.hint)
        else:
            host.state = "ended"
            self._post.end(host.place)
            error = f"{host.name} ended by an error\n{message.message}"
            raise WorkerCrashError(error)

    def _refuse(self, host: Host, reason: str, hint: str) -> None:
        """Ends the run that begins with such a node; one that comes later is left out."""
        message = f"{host.name} is refused: {reason}"
        if host.incarnation == 0:
            host.state = "ended"
            self._post.end(host.place)
            raise HostRefusedError(message, hint=hint)
        _LOGGER.warning("%s; the run goes on without this node. %s", message, hint)
        self._refused[host.node.key] = reason
        self._take_leave(host)
        host.state = "away"

    def _take_leave(self, host: Host) -> None:
        """Ends an incarnation: nothing that it says is heard any more."""
        self._post.end(host.place)
        host.cpu_s, host.num_inner = host.cpu_s + host.latest.cpu_s, host.num_inner + host.latest.num_restarts
        host.latest = Alive("", 0.0, 0)
        self._on_loss(host.share.number)

    def _lose(self, host: Host, reason: str, *, is_unplaced: bool = False) -> None:
        self._take_leave(host)
        there = {node.key: node for node in self._post.nodes()}
        if is_unplaced or host.node.key not in there:
            _LOGGER.warning("%s %s; it waits for a node, and the run goes on with the others", host.name, reason)
            host.state = "away"
            return
        if not host.budget.take():
            host.state = "ended"
            budget = host.budget
            message = (
                f"{host.name} was lost {budget.num_restarts + 1} times within {budget.window_s:.0f} s; "
                f"the last time it {reason}"
            )
            raise WorkerCrashError(message)
        _LOGGER.warning("%s %s; making it again", host.name, reason)
        self._make_again(host, there[host.node.key])

    def _make_again(self, host: Host, node: Node) -> None:
        host.node, host.incarnation = node, host.incarnation + 1
        self._num_restarts += 1
        self._launch(host)

    def _find_nodes(self, away: Sequence[Host]) -> None:
        """Makes hosts again on nodes that have none and are large enough."""
        taken = {host.node.key for host in self.hosts if host.state != "away"} | self._refused.keys()
        free = [node for node in self._post.nodes() if node.key not in taken]
        for host in away:
            node = next((node for node in free if node.num_cpus >= host.share.num_collectors), None)
            if node is not None:
                free.remove(node)
                _LOGGER.warning("host %d goes on at node %s", host.share.number, node.name)
                self._make_again(host, node)
        if len(away) == len(self.hosts) and all(host.state == "away" for host in away):
            left_s = self._limits.node_s - (time.monotonic() - self._had_host_s)
            _LOGGER.warning("no node is left to collect on: waiting for one, for %.0f s more", max(0.0, left_s))


def _difference(what: str, found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Returns in words what differs between a host's version or contract and the learner's, if anything does."""
    names = [name for name in dict.fromkeys((*expected, *found)) if found.get(name) != expected.get(name)]
    each = [f"{name} {found.get(name)}, and the learner's is {expected.get(name)}" for name in names]
    return f"it is of another {what}: {'; '.join(each)}" if each else ""
