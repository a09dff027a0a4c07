"""Collectors on the nodes of a Ray cluster: each is an actor of Ray's, a call of which fills a block.

Permissions and their order are those of `rulka.runtime.collectors`: a permission is a call of `RemoteCollector.fill`
with the newest weights, and its answer is the block, which Ray brings. An actor takes one CPU, on whichever node Ray
finds one. One that ends or stands still is started again; what an earlier one still answers is not listened to. While
no node has room for it, it waits for one, and the run goes on with the others.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.agents.precision import ActingPrecision
from rulka.agents.quantisation import check_acting_precision
from rulka.buffers.experience import ExperienceBlock, new_block
from rulka.cluster import ActorFailedError, ActorLostError, ClusterError, Node, RayCluster
from rulka.device import CPU
from rulka.errors import UserError
from rulka.processes import REBUILDING_WINDOW_S, STOP_GRACE_S, RestartBudget
from rulka.provenance import code_version
from rulka.runtime.collectors import PermittedCollectors, collector_spec
from rulka.runtime.messages import BlockFilled, Fill
from rulka.runtime.other_half import OtherHalfProcess
from rulka.runtime.shared import NO_VERSION, WeightsError, WeightsLayout, checksum, fill, layout_of, views
from rulka.runtime.specs import CollectorSpec, RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, SILENCE_LIMIT_S, WorkerCrashError
from rulka.schedule import Moment

NODE_LIMIT_S = 300.0
"""How long a run without any collector waits for a node."""

_LOGGER = logging.getLogger(__name__)


class ClusterTooSmallError(ClusterError):
    """The nodes have less than the run needs; the message holds both."""


class CollectorRefusedError(ClusterError):
    """A collector is not of the learner's version, or cannot be built where it is; it would be the same next time."""


class CollectorsLostError(ClusterError):
    """No node has room for a collector, and none has come."""


# On a node --------------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """What a collector on a node is built from; picklable."""

    collector: CollectorSpec
    layout: WeightsLayout
    acting_precision: ActingPrecision | None


class Sign(NamedTuple):
    """Sign of life.

    Attributes:
        silent_s: how long ago it last took a step; 0 where it has nothing to do.
        cpu_s: CPU time of its process.
    """

    silent_s: float
    cpu_s: float


class RemoteCollector:
    """A collector in a process of its own: the learner calls its methods, one after the other, `sign` at any time."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._ended_s = time.monotonic()

    def code(self) -> tuple[str, dict[str, str]]:
        """Returns its node and process, for people, and the code and versions that run there: `rulka.provenance`."""
        return f"{socket.gethostname()} (process {os.getpid()})", code_version()

    def build(self, pickled: bytes) -> None:
        """Builds cars and actor.

        Args:
            pickled: an `Order`, which other code might not understand.

        Raises:
            UserError: if this node cannot act as it is to.
        """
        self._step()
        torch.set_num_threads(1)
        order: Order = pickle.loads(pickled)
        check_acting_precision(order.acting_precision, CPU)
        self._actor, self._collector = order.collector.build()
        self._block = new_block(order.collector.block)
        self._content = np.zeros(order.layout.num_bytes, np.uint8)
        self._tensors = views(self._content, order.layout)
        self._rest()

    def fill(
        self, slot: int, moment: Moment, version: int, crc: int, content: NDArray[np.uint8]
    ) -> tuple[BlockFilled, dict[str, NDArray]]:
        """Fills a block.

        Args:
            slot: its number, for the learner.
            moment: see `rulka.runtime.messages.Fill`.
            version: of the weights that act in it.
            crc: over number and bytes, see `rulka.runtime.shared.checksum`.
            content: these weights.

        Returns:
            How it went, and the arrays of the block by name.

        Raises:
            WeightsError: if the weights are not what they should be.
        """
        waited_s = time.monotonic() - self._ended_s
        self._step()
        began_s = time.monotonic()
        if version != self._actor.version:
            if checksum(version, content) != crc:
                message = f"version {version} came wrong: its checksum is another one"
                raise WeightsError(message)
            self._content[:] = content
            self._actor.load(version, self._tensors)
        loading_s = time.monotonic() - began_s
        filled = self._collector.fill(self._block, moment, self._step)
        spent = replace(filled.spent, waiting_s=waited_s, loading_s=loading_s)
        self._rest()
        return replace(filled, slot=slot, spent=spent), {
            name: getattr(self._block, name) for name in self._block.spec.layout()
        }

    def sign(self) -> Sign:
        """Says how it is, beside whatever it does."""
        began_s = self._began_s
        return Sign(0.0 if began_s is None else time.monotonic() - began_s, time.process_time())

    def close(self) -> None:
        """Closes its environment."""
        self._collector.close()

    def _step(self) -> None:
        self._began_s = time.monotonic()

    def _rest(self) -> None:
        self._began_s, self._ended_s = None, time.monotonic()


# At the learner ---------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """How long is waited.

    Attributes:
        silence_s: a collector that takes no step for so long counts as lost.
        node_s: a run without a collector waits so long for a node.
    """

    silence_s: float = SILENCE_LIMIT_S
    node_s: float = NODE_LIMIT_S


@dataclass(eq=False)
class Remote:
    """One collector as the learner sees it.

    Attributes:
        index: which one; whoever takes its place has the same.
        budget: how often it may still be started again.
        name: for people.
        state: `placing` until a node has it, then `building` and `working`; `ended` is not started again.
        actor: of Ray.
        waiting: names of the methods that have not been answered, by reference.
        heard_s: when it last showed a sign of life, on the monotonic clock.
        asked_s: when it was last asked for one.
        num_starts: how often it was started.
        version: that it was given last.
        cpu_s: CPU time that it has spoken of.
        ended_cpu_s: CPU time of those that were in its place before.
    """

    index: int
    budget: RestartBudget = field(default_factory=lambda: RestartBudget(window_s=REBUILDING_WINDOW_S))
    name: str = ""
    state: Literal["placing", "building", "working", "ended"] = "placing"
    actor: Any = None
    waiting: dict[Any, str] = field(default_factory=dict)
    heard_s: float = 0.0
    asked_s: float = 0.0
    num_starts: int = 0
    version: int | None = None
    cpu_s: float = 0.0
    ended_cpu_s: float = 0.0


class RayCollectors(PermittedCollectors):
    """Collectors on several nodes; see `rulka.runtime.collectors.Collectors`.

    Attributes:
        remotes: all of them.
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
        """Makes sure that the cluster is large enough.

        Args:
            spec: see `PermittedCollectors`.
            tensors: any version as it is published, of the right names, shapes and types.
            env_steps: see `PermittedCollectors`.
            num_starts: the same.
            cluster: with the nodes; it is closed at the end.
            other_half: see `PermittedCollectors`; its process is here.
            limits: how long to wait.

        Raises:
            ClusterTooSmallError: if the cluster has too little for the run.
        """
        super().__init__(spec, env_steps, num_starts, other_half)
        self._cluster, self._limits = cluster, limits or Limits()
        self._layout, self._code = layout_of(tensors), code_version()
        block_bytes = spec.train.blocks_ahead * (spec.block.num_bytes + self._layout.num_bytes)
        check_size(spec.train.num_collectors, cluster.nodes(), cluster.num_free_cpus(), block_bytes)
        self.remotes = [Remote(index) for index in range(spec.train.num_collectors)]
        self._newest: tuple[int, int, Any] | None = None
        self._had_one_s = time.monotonic()
        # Blocks are read where Ray has laid them, and that memory cannot be written; nobody does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def start(self) -> None:
        """Starts the collectors; whoever calls this has to call `stop`, whatever happens."""
        super().start()
        for remote in self.remotes:
            self._launch(remote)

    @property
    def num_restarts(self) -> int:
        """How often a collector, or the process of the other half, was started again."""
        return super().num_restarts + sum(max(0, remote.num_starts - 1) for remote in self.remotes)

    @property
    def cpu_seconds_elsewhere(self) -> float:
        """CPU time of the collectors, as far as they have said so."""
        return sum(remote.ended_cpu_s + remote.cpu_s for remote in self.remotes)

    @property
    def version(self) -> int:
        """Of the weights that were published last, or `NO_VERSION`."""
        return NO_VERSION if self._newest is None else self._newest[0]

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Lays a version where all nodes can take it, once; it acts in the blocks that are permitted from now on."""
        content = np.empty(self._layout.num_bytes, np.uint8)
        fill(views(content, self._layout), tensors)
        self._newest = version, checksum(version, content), self._cluster.put(content)

    def stop(self) -> None:
        """Ends the collectors, which first close their environments, and leaves the cluster; may be called again."""
        try:
            working = [remote for remote in self.remotes if remote.state == "working"]
            closing = [self._cluster.call(remote.actor, "close") for remote in working]
            give_up_s = time.monotonic() + STOP_GRACE_S
            while closing and time.monotonic() < give_up_s:
                closed = self._cluster.wait(closing, STOP_GRACE_S / 10.0)
                closing = [reference for reference in closing if reference not in closed]
            for remote in self.remotes:
                self._end(remote)
        finally:
            super().stop()
            self._newest = None
            self._cluster.close()

    def _is_there(self, index: int) -> bool:
        return self.remotes[index].state == "working" and self._newest is not None

    def _permit(self, index: int, fill: Fill) -> None:
        assert self._newest is not None, "or nobody could be permitted a block"
        remote, version = self.remotes[index], self._newest[0]
        if version != remote.version:
            remote.version, self._weight_bytes = version, self._weight_bytes + self._layout.num_bytes
        self._call(remote, "fill", fill.slot, fill.moment, *self._newest)

    def _launch(self, remote: Remote) -> None:
        remote.state, remote.name, remote.version = "placing", f"collector {remote.index}", None
        remote.num_starts += 1
        remote.actor = self._cluster.start(RemoteCollector)
        self._call(remote, "code")

    def _call(self, remote: Remote, method: str, *arguments: Any) -> None:
        remote.waiting[self._cluster.call(remote.actor, method, *arguments, is_beside=method == "sign")] = method

    def _hear(self, timeout_s: float) -> None:
        """Waits for an answer, takes all that are there, and starts collectors again that are lost.

        Raises:
            CollectorRefusedError: if a collector that the run begins with does not fit.
            CollectorsLostError: if there is none, and no node has come for too long.
            WorkerCrashError: if one is lost too often.
        """
        for remote in self.remotes:
            is_due = time.monotonic() - remote.asked_s >= HEARTBEAT_S
            if remote.state in ("building", "working") and is_due and "sign" not in remote.waiting.values():
                remote.asked_s = time.monotonic()
                self._call(remote, "sign")
        owners = {reference: remote for remote in self.remotes for reference in remote.waiting}
        for reference in self._cluster.wait(list(owners), timeout_s):
            remote = owners[reference]
            if (method := remote.waiting.pop(reference, None)) is None:  # it was ended just now
                continue
            try:
                self._answered(remote, method, self._cluster.get(reference))
            except ActorLostError as error:
                self._lose(remote, f"is gone: {error}")
            except ActorFailedError as error:
                self._lose(remote, f"ended by an error\n{error}")
            except UserError as error:
                self._refuse(remote, str(error), error.hint)
        self._look_after()

    def _answered(self, remote: Remote, method: str, answer: Any) -> None:
        remote.heard_s = time.monotonic() - (answer.silent_s if method == "sign" else 0.0)
        if method == "code":
            place, code = answer
            remote.name, remote.state = f"collector {remote.index} on {place}", "building"
            if wrong := _difference(code, self._code):
                self._refuse(remote, wrong, "Install the same version of Rulka on every node: docs/cluster.md.")
                return
            spec = collector_spec(self._spec, remote.index, self._num_starts, remote.num_starts - 1)
            order = Order(spec, self._layout, self._spec.train.acting_precision)
            self._call(remote, "build", pickle.dumps(order))
        elif method == "build":
            remote.state = "working"
        elif method == "fill":
            facts, arrays = answer
            self._take(remote.index, ExperienceBlock(self._spec.block, **arrays), facts)
        else:
            remote.cpu_s = answer.cpu_s

    def _look_after(self) -> None:
        """Starts collectors again that stand still; gives up when there has been none for too long."""
        now_s = time.monotonic()
        for remote in self.remotes:
            if remote.state in ("building", "working"):
                self._had_one_s = now_s
                if now_s - remote.heard_s > self._limits.silence_s:
                    self._lose(remote, f"took no step for {self._limits.silence_s:.0f} s while {remote.state}")
        if now_s - self._had_one_s > self._limits.node_s:
            message = f"no node is left to collect on, and none has come for {self._limits.node_s:.0f} s"
            raise CollectorsLostError(message, hint="The run goes on from its checkpoint when there is a cluster.")

    def _refuse(self, remote: Remote, reason: str, hint: str) -> None:
        """Ends the run that begins with such a collector; where one takes another's place, that stays empty."""
        message = f"{remote.name} is refused: {reason}"
        self._end(remote)
        if remote.num_starts == 1:
            raise CollectorRefusedError(message, hint=hint)
        _LOGGER.warning("%s; the run goes on without it. %s", message, hint)

    def _lose(self, remote: Remote, reason: str) -> None:
        self._end(remote)
        if not remote.budget.take():
            message = f"{remote.name} was lost {remote.budget.span}; the last time it {reason}"
            raise WorkerCrashError(message)
        _LOGGER.warning("%s %s; starting it again where there is room", remote.name, reason)
        self._launch(remote)

    def _end(self, remote: Remote) -> None:
        """Ends a collector and takes back what it was allowed to do and did not do; its answers are forgotten."""
        if remote.state != "ended":
            self._cluster.end(remote.actor)
        remote.waiting.clear()
        remote.state = "ended"
        remote.ended_cpu_s, remote.cpu_s = remote.ended_cpu_s + remote.cpu_s, 0.0
        self._take_back(remote.index)


def _difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Returns in words what differs between a collector's version and the learner's, if anything does."""
    names = [name for name in dict.fromkeys((*expected, *found)) if found.get(name) != expected.get(name)]
    each = [f"{name} {found.get(name)}, and the learner's is {expected.get(name)}" for name in names]
    return f"it is of another version: {'; '.join(each)}" if each else ""


def check_size(num_collectors: int, nodes: Sequence[Node], num_free_cpus: int, collector_bytes: int) -> None:
    """Makes sure that a cluster has CPUs for collectors, and room for their blocks, or Ray would use the disk.

    Args:
        num_collectors: each takes a CPU.
        nodes: that there are.
        num_free_cpus: of all of them, that nobody has taken.
        collector_bytes: of the blocks and weights that a collector may have under way. Those of all come to the
            learner's node; another one may have as many collectors as CPUs.

    Raises:
        ClusterTooSmallError: with what is there, and what was asked for.
    """
    there = sum(node.num_cpus for node in nodes)
    if num_collectors > min(there, num_free_cpus):
        each = ", ".join(f"{node.name} {node.num_cpus}" for node in nodes)
        taken = f", of which others have taken {there - num_free_cpus}" if num_free_cpus < there else ""
        message = f"train.num_collectors {num_collectors} take a CPU each, and the cluster has {there}{taken}: {each}"
        raise ClusterTooSmallError(message, hint="Lower train.num_collectors, or add nodes: docs/cluster.md.")
    for node in nodes:
        num_bytes = collector_bytes * (num_collectors if node.is_own else min(node.num_cpus, num_collectors))
        if num_bytes > node.store_bytes:
            message = (
                f"the object store of node {node.name} has {node.store_bytes >> 20} MiB, and the blocks and weights on "
                f"their way may take {-(-num_bytes // (1 << 20))} MiB"
            )
            hint = "Start Ray there with a larger --object-store-memory, or lower train.block_steps."
            raise ClusterTooSmallError(message, hint=hint)
