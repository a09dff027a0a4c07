"""The learner's collectors on the nodes of a Ray cluster: a host on each, permissions to hosts, their blocks in order.

The credit is that of `rulka.runtime.collectors`: a block may be begun while fewer environment steps have been given out
than the learner allows, and a collector has at most `SLOTS_PER_COLLECTOR` blocks between permission and release,
wherever they are. So what lies in Ray's memory is bounded for each host and in all.

A permission is a call of `Host.permit`, and the answers to `Host.work` bring the blocks. A host that ends or does not
answer for too long is started again on its node as another incarnation; what an earlier one still answers is not
listened to. One whose node is gone waits for another node, and the run goes on with the others.
"""

from __future__ import annotations

import logging
import pickle
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from torch import Tensor

from rulka.buffers.experience import ExperienceBlock
from rulka.cluster.ray_cluster import ActorLostError, Node, RayCluster
from rulka.cluster.settings import ClusterError
from rulka.params import RuntimeParams
from rulka.processes import REBUILDING_WINDOW_S, STOP_GRACE_S, RestartBudget
from rulka.provenance import code_version
from rulka.runtime.collectors import SLOTS_PER_COLLECTOR, Delivery, Permission, PermittedCollectors
from rulka.runtime.host import Host, HostFailed, HostSpec, Place, Report, contract_of, part_of_run
from rulka.runtime.messages import InferenceTimes
from rulka.runtime.other_half import OtherHalfProcess
from rulka.runtime.shared_memory import note_memory, remove_left_memory
from rulka.runtime.specs import RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, SILENCE_LIMIT_S, WorkerCrashError
from rulka.runtime.weights import NO_VERSION, checksum, fill, layout_of, views
from rulka.schedule import Moment

MAX_RESENT = 3
"""How often in a row a host may get a version that is wrong."""
VERSIONS_UNDER_WAY = 3
"""The newest, the one that a host takes just now, and one that it has not let go of."""
NODE_LIMIT_S = 300.0
"""How long a run without any host waits for a node."""
LOOK_S = 5.0
"""How often is looked for nodes."""
GRACE_S = 4.0 * STOP_GRACE_S
"""How long a host may take to end when it is asked to: it ends its collectors before."""

_LOGGER = logging.getLogger(__name__)


class ClusterTooSmallError(ClusterError):
    """The nodes have less than the run needs; the message holds both."""


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


@dataclass(frozen=True)
class HostShare:
    """Part of a run that one host has, whichever node it is on.

    Attributes:
        number: of the host.
        first_collector: its first one's number in all of the run.
        num_collectors: one CPU each.
        policy_workers: of central inference, which take turns with the collectors and so no CPU.
    """

    number: int
    first_collector: int
    num_collectors: int
    policy_workers: int


@dataclass(eq=False)
class _Host:
    """One host as the learner sees it.

    Attributes:
        share: what it has of the run; whoever takes its place has the same.
        node: where it is, or was last.
        budget: how often it may still be started again.
        incarnation: how often there was one before.
        state: `starting` until it has collectors, then `working`; `away` has no node, `ended` is not started again.
        actor: of Ray.
        waiting: what becomes of the answers to its calls, by reference.
        heard_s: when it last answered, or was started, on the monotonic clock.
        asked_s: when it was last told to work.
        is_at_work: that call has not been answered.
        activity: the method that was called last.
        under_way: permissions whose blocks have not come.
        num_held: permissions whose blocks have not been released.
        num_given: permissions that it has ever had.
        sent: version that was sent last and not answered; `NO_VERSION` for none.
        loaded: version that it has.
        num_resent: how often in a row a version was wrong.
        latest: what it last said of itself.
        cpu_s: time that its earlier incarnations had on processors.
        num_inner: how often those have started processes again.
    """

    share: HostShare
    node: Node
    budget: RestartBudget = field(default_factory=lambda: RestartBudget(window_s=REBUILDING_WINDOW_S))
    incarnation: int = 0
    state: Literal["starting", "working", "away", "ended"] = "starting"
    actor: Any = None
    waiting: dict[Any, Callable[[Any], None]] = field(default_factory=dict)
    heard_s: float = 0.0
    asked_s: float = 0.0
    is_at_work: bool = False
    activity: str = ""
    under_way: deque[Permission] = field(default_factory=deque)
    num_held: int = 0
    num_given: int = 0
    sent: int = NO_VERSION
    loaded: int = NO_VERSION
    num_resent: int = 0
    latest: Report = field(default_factory=Report)
    cpu_s: float = 0.0
    num_inner: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"host {self.share.number} on node {self.node.name}"

    @property
    def is_started(self) -> bool:
        """True if there is an actor, which should answer."""
        return self.state in ("starting", "working")

    @property
    def has_room(self) -> bool:
        """True if it may fill another block."""
        return self.state == "working" and self.num_held < SLOTS_PER_COLLECTOR * self.share.num_collectors

    @property
    def load(self) -> tuple[float, float]:
        """How many blocks each of its collectors has under way, and has ever had."""
        return len(self.under_way) / self.share.num_collectors, self.num_given / self.share.num_collectors


class HostCollectors(PermittedCollectors):
    """Collectors of hosts on several nodes; see `rulka.runtime.collectors.Collectors`.

    Attributes:
        hosts: all of them.
    """

    def __init__(
        self,
        spec: RunSpec,
        tensors: Mapping[str, Tensor],
        env_steps: int,
        num_starts: int,
        cluster: RayCluster,
        other_half: OtherHalfProcess | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Deals the collectors to nodes; `start` starts the hosts.

        Args:
            spec: of the run; `train.num_collectors` is at least 1.
            tensors: any version as it is published, of the right names, shapes and types.
            env_steps: environment steps taken before, by a run that is being resumed.
            num_starts: how often the run was started before.
            cluster: with the nodes; it is closed at the end.
            other_half: of the learner, whose process, here, begins and ends with these.
            limits: how long to wait.

        Raises:
            ClusterTooSmallError: if the cluster has too little for the run.
        """
        super().__init__(spec, env_steps)
        self._num_starts, self._cluster = num_starts, cluster
        self._limits, self._half = limits or Limits(), other_half
        self._layout = layout_of(tensors)
        self._code, self._contract = code_version(), contract_of(spec.block, self._layout)
        self._name = f"{spec.folder.name}-{uuid.uuid4().hex[:8]}"
        nodes = cluster.nodes()
        plan = deal(spec.train, nodes, cluster.num_free_cpus())
        own = next(node for node in nodes if node.is_own)
        block_bytes = SLOTS_PER_COLLECTOR * spec.block.num_bytes
        check_stores(plan, own, block_bytes, VERSIONS_UNDER_WAY * self._layout.num_bytes)
        self.hosts = [_Host(share, node) for share, node in plan]
        self._host_of = [host for host in self.hosts for _ in range(host.share.num_collectors)]
        self._newest: tuple[int, int, Any] | None = None
        self._num_restarts = 0
        self._inference: list[InferenceTimes] = []
        self._refused: set[str] = set()
        self._looked_s = self._had_host_s = time.monotonic()
        remove_left_memory(spec.folder)
        if other_half is not None:
            note_memory(spec.folder, other_half.memory_names)
        # Blocks are read where Ray has laid them, and that memory cannot be written; nobody does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def start(self) -> None:
        """Starts the hosts; whoever calls this has to call `stop`, whatever happens."""
        if self._half is not None:
            self._half.start()
        for host in self.hosts:
            self._launch(host)

    @property
    def num_restarts(self) -> int:
        """How often a host, or a process of one, was started again."""
        inner = sum(host.num_inner + host.latest.num_restarts for host in self.hosts)
        return self._num_restarts + inner + (0 if self._half is None else self._half.num_restarts)

    @property
    def cpu_seconds_elsewhere(self) -> float:
        """Time that hosts and their collectors had on processors, as far as they have said so."""
        return sum(host.cpu_s + host.latest.cpu_s for host in self.hosts)

    def take_inference_times(self) -> list[InferenceTimes]:
        """Returns the policy workers' times since the last call."""
        taken, self._inference = self._inference, []
        return taken

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Lays a version where all hosts can take it, once."""
        content = np.empty(self._layout.num_bytes, np.uint8)
        fill(views(content, self._layout), tensors)
        self._newest = version, checksum(version, content.data), self._cluster.put(content)
        for host in self.hosts:
            self._send_weights(host)

    def release(self, delivery: Delivery) -> None:
        """Lets go of a block; its memory is free as soon as nobody has a view of it."""
        self._host_of[delivery.collector].num_held -= 1

    def stop(self) -> None:
        """Ends the hosts, asking them first, and leaves the cluster; may be called again."""
        try:
            asked = [host for host in self.hosts if host.is_started]
            waiting = [self._cluster.call(host.actor, "stop") for host in asked]
            give_up_s = time.monotonic() + self._limits.grace_s
            while waiting and time.monotonic() < give_up_s:
                ready = self._cluster.wait(waiting, STOP_GRACE_S / 10.0)
                waiting = [reference for reference in waiting if reference not in ready]
            for host in asked:
                self._end(host, "ended")
        finally:
            if self._half is not None:
                self._half.stop()
            self._newest = None
            self._given_out.clear()
            self._cluster.close()
            remove_left_memory(self._spec.folder)

    # A host's life ----------------------------------------------------------------------------------------------------

    def _launch(self, host: _Host) -> None:
        host.state, host.heard_s = "starting", time.monotonic()
        host.under_way.clear()
        host.sent, host.loaded, host.num_resent, host.is_at_work = NO_VERSION, NO_VERSION, 0, False
        place = Place(host.share.number, host.incarnation)
        host.actor = self._cluster.start(host.node, host.share.num_collectors, Host, place)
        self._call(host, partial(self._meet, host), "code")

    def _call(self, host: _Host, take: Callable[[Any], None], method: str, *arguments: Any) -> None:
        host.waiting[self._cluster.call(host.actor, method, *arguments)] = take
        host.activity = method

    def _meet(self, host: _Host, code: Mapping[str, str]) -> None:
        """Has a host of the learner's code build its collectors."""
        if wrong := _difference("code", code, self._code):
            self._refuse(host, wrong, "Install the same version of Rulka on every node: docs/cluster.md.")
            return
        share = host.share
        run = part_of_run(self._spec, share.first_collector, share.num_collectors, share.policy_workers)
        spec = HostSpec(run, self._layout, self._num_starts, self._name)
        self._call(host, partial(self._accept, host), "build", pickle.dumps(spec))

    def _accept(self, host: _Host, contract: Mapping[str, str]) -> None:
        if wrong := _difference("contract", contract, self._contract):
            self._refuse(host, wrong, "Install the same version of Rulka on every node: docs/cluster.md.")
            return
        host.state = "working"
        self._send_weights(host)

    def _hear(self, timeout_s: float) -> None:
        """Waits for an answer, takes all that are there, and starts hosts again that are lost.

        Raises:
            HostRefusedError: if a host that the run begins with does not fit.
            HostsLostError: if no node is left, and none has come for too long.
            WorkerCrashError: if a host ended by an error of its own, or is lost too often.
        """
        for host in self.hosts:
            is_due = host.under_way or time.monotonic() - host.asked_s > HEARTBEAT_S
            if host.state == "working" and is_due and not host.is_at_work:
                host.is_at_work, host.asked_s = True, time.monotonic()
                self._call(host, partial(self._take_report, host), "work")
        owners = {reference: host for host in self.hosts for reference in host.waiting}
        lost: dict[int, tuple[_Host, ActorLostError]] = {}
        for reference in self._cluster.wait(list(owners), timeout_s):
            host = owners[reference]
            take = host.waiting.pop(reference, None)
            if take is None:  # it was refused just now
                continue
            try:
                answer = self._cluster.get(reference)
            except ActorLostError as error:
                lost[host.share.number] = host, error
                continue
            host.heard_s = time.monotonic()
            if isinstance(answer, HostFailed):
                self._end_by_error(host, answer)
            else:
                take(answer)
        for host, error in lost.values():  # after what it had answered before
            if host.is_started:
                self._lose(host, f"is gone: {error}", is_unplaced=error.is_unplaced)
        self._look_after()

    def _take_report(self, host: _Host, report: Report) -> None:
        host.is_at_work, host.latest = False, replace(report, filled=())
        self._inference += report.inference
        for filled in report.filled:
            collector = host.share.first_collector + filled.collector
            delivery = Delivery(collector, self._block(filled.arrays), filled.facts)
            host.under_way.popleft().delivery = delivery

    def _look_after(self) -> None:
        """Starts hosts again that are lost, where there is a node for them."""
        now_s = time.monotonic()
        for host in self.hosts:
            if host.is_started and now_s - host.heard_s > self._limits.silence_s:
                self._lose(
                    host, f"said nothing for {self._limits.silence_s:.0f} s after it was asked to {host.activity}"
                )
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

    def _end_by_error(self, host: _Host, failure: HostFailed) -> None:
        if failure.is_refusal:
            self._refuse(host, failure.message, failure.hint)
            return
        self._end(host, "ended")
        message = f"{host.name} ended by an error\n{failure.message}"
        raise WorkerCrashError(message)

    def _refuse(self, host: _Host, reason: str, hint: str) -> None:
        """Ends the run that begins with such a node; one that comes later is left out."""
        message = f"{host.name} is refused: {reason}"
        self._end(host, "away")
        if host.incarnation == 0:
            raise HostRefusedError(message, hint=hint)
        _LOGGER.warning("%s; the run goes on without this node. %s", message, hint)
        self._refused.add(host.node.key)

    def _end(self, host: _Host, state: Literal["away", "ended"]) -> None:
        """Ends an incarnation and takes back what it was allowed to do and did not do; its answers are forgotten."""
        self._cluster.end(host.actor)
        host.waiting.clear()
        host.state = state
        host.cpu_s, host.num_inner = host.cpu_s + host.latest.cpu_s, host.num_inner + host.latest.num_restarts
        host.latest = Report()
        host.num_held -= self._take_back(host.share.number)

    def _lose(self, host: _Host, reason: str, *, is_unplaced: bool = False) -> None:
        self._end(host, "away")
        there = {node.key: node for node in self._cluster.nodes()}
        if is_unplaced or host.node.key not in there:
            _LOGGER.warning("%s %s; it waits for a node, and the run goes on with the others", host.name, reason)
            return
        if not host.budget.take():
            message = f"{host.name} was lost {host.budget.span}; the last time it {reason}"
            raise WorkerCrashError(message)
        _LOGGER.warning("%s %s; starting it again", host.name, reason)
        self._launch_again(host, there[host.node.key])

    def _launch_again(self, host: _Host, node: Node) -> None:
        host.node, host.incarnation = node, host.incarnation + 1
        self._num_restarts += 1
        self._launch(host)

    def _find_nodes(self, away: Sequence[_Host]) -> None:
        """Starts hosts again on nodes that have none and are large enough."""
        taken = {host.node.key for host in self.hosts if host.state != "away"} | self._refused
        free = [node for node in self._cluster.nodes() if node.key not in taken]
        for host in away:
            node = next((node for node in free if node.num_cpus >= host.share.num_collectors), None)
            if node is not None:
                free.remove(node)
                _LOGGER.warning("host %d goes on at node %s", host.share.number, node.name)
                self._launch_again(host, node)
        if all(host.state == "away" for host in self.hosts):
            left_s = self._limits.node_s - (time.monotonic() - self._had_host_s)
            _LOGGER.warning("no node is left to collect on: waiting for one, for %.0f s more", max(0.0, left_s))

    # Weights and blocks -----------------------------------------------------------------------------------------------

    def _send_weights(self, host: _Host) -> None:
        """Sends the newest version to a host that has taken the one before it."""
        if self._newest is None or host.state != "working" or host.sent != NO_VERSION:
            return
        version, crc, content = self._newest
        if version > host.loaded:
            host.sent = version
            self._call(host, partial(self._take_loaded, host), "load", version, crc, content)
            self._weight_bytes += self._layout.num_bytes

    def _take_loaded(self, host: _Host, wrong: str) -> None:
        version, host.sent = host.sent, NO_VERSION
        if not wrong:
            host.loaded, host.num_resent = version, 0
        else:
            host.num_resent += 1
            said = f"version {version} came to host {host.share.number} wrong: {wrong}"
            if host.num_resent > MAX_RESENT:
                error = f"{said}, {host.num_resent} times in a row"
                raise WorkerCrashError(error)
            _LOGGER.warning("%s; it is sent again", said)
        self._send_weights(host)

    def _permit(self, moment: Moment) -> Permission | None:
        able = [host for host in self.hosts if host.has_room]
        if not able or self._newest is None:
            return None
        host = min(able, key=lambda each: each.load)
        permission = Permission(host.share.number)
        host.under_way.append(permission)
        host.num_given, host.num_held = host.num_given + 1, host.num_held + 1
        self._call(host, _nothing, "permit", moment, self._newest[0])
        return permission

    def _block(self, arrays: Mapping[str, Any]) -> ExperienceBlock:
        """Lays a block over arrays that came; they are what was agreed, or nothing is learned from them."""
        spec = self._spec.block
        for name, (shape, dtype) in spec.layout().items():
            found = arrays[name]
            if found.shape != shape or found.dtype != dtype:
                message = f"{name!r} of a block that came is {found.dtype} {found.shape}, agreed was {shape}"
                raise WorkerCrashError(message)
        return ExperienceBlock(spec, **arrays)


def _nothing(answer: None) -> None:
    """Takes the answer to a permission."""


def _difference(what: str, found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Returns in words what differs between a host's version or contract and the learner's, if anything does."""
    names = [name for name in dict.fromkeys((*expected, *found)) if found.get(name) != expected.get(name)]
    each = [f"{name} {found.get(name)}, and the learner's is {expected.get(name)}" for name in names]
    return f"it is of another {what}: {'; '.join(each)}" if each else ""


def deal(train: RuntimeParams, nodes: Sequence[Node], num_free_cpus: int) -> list[tuple[HostShare, Node]]:
    """Deals the collectors one by one to the node that has the fewest of them and a CPU left, each node one host.

    Args:
        train: `num_collectors` are dealt, and where inference is central `policy_workers`, at least one a host.
        nodes: that there are.
        num_free_cpus: of all of them, that nobody has taken.

    Returns:
        The hosts with their nodes; a node without a collector has none.

    Raises:
        ClusterTooSmallError: if there are too few CPUs, or too few policy workers.
    """
    wanted, there = train.num_collectors, sum(node.num_cpus for node in nodes)
    if wanted > min(there, num_free_cpus):
        each = ", ".join(f"{node.name} {node.num_cpus}" for node in nodes)
        taken = f", of which others have taken {there - num_free_cpus}" if num_free_cpus < there else ""
        message = f"train.num_collectors {wanted} take a CPU each, and the cluster has {there}{taken}: {each}"
        raise ClusterTooSmallError(message, hint="Lower train.num_collectors, or add nodes: docs/cluster.md.")
    counts = [0] * len(nodes)
    for _ in range(wanted):
        able = [index for index, node in enumerate(nodes) if counts[index] < node.num_cpus]
        counts[min(able, key=lambda index: (counts[index], index))] += 1
    counts = [count for count in counts if count]  # nodes without CPUs can be anywhere among them
    used = [node for node in nodes if node.num_cpus]
    workers = _deal_workers(train, counts)
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    return [
        (HostShare(number, firsts[number], counts[number], workers[number]), used[number])
        for number in range(len(counts))
    ]


def _deal_workers(train: RuntimeParams, counts: Sequence[int]) -> list[int]:
    if train.inference == "local":
        return [1] * len(counts)
    if train.policy_workers < len(counts):
        message = f"train.policy_workers {train.policy_workers} are too few for {len(counts)} nodes with collectors"
        raise ClusterTooSmallError(message, hint="Each node needs one of its own: they act through shared memory.")
    workers = [1] * len(counts)
    for _ in range(train.policy_workers - len(counts)):
        able = [index for index, count in enumerate(counts) if workers[index] < count]
        workers[max(able, key=lambda index: (counts[index] / workers[index], -index))] += 1
    return workers


def check_stores(hosts: Sequence[tuple[HostShare, Node]], own: Node, block_bytes: int, weights_bytes: int) -> None:
    """Makes sure that blocks and weights on their way have room in the nodes' object stores, or Ray would use the disk.

    Args:
        hosts: with their nodes.
        own: the learner's node, where the blocks of all arrive.
        block_bytes: of all the blocks that one collector may have under way.
        weights_bytes: of the versions that may be under way.

    Raises:
        ClusterTooSmallError: naming the node and both figures.
    """
    needed: dict[Node, int] = {own: weights_bytes}
    for share, node in hosts:
        for where in {node, own}:
            needed[where] = needed.get(where, weights_bytes) + share.num_collectors * block_bytes
    for node, num_bytes in needed.items():
        if num_bytes > node.store_bytes:
            message = (
                f"the object store of node {node.name} has {node.store_bytes >> 20} MiB, and the blocks and weights on "
                f"their way may take {-(-num_bytes // (1 << 20))} MiB"
            )
            hint = "Start Ray there with a larger --object-store-memory, or lower train.block_steps."
            raise ClusterTooSmallError(message, hint=hint)
