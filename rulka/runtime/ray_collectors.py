"""Collectors on the nodes of a Ray cluster: each is a Ray actor, and each call of it fills a block.

Permissions and their order are those of `rulka.runtime.collectors`: a permission is a call of `RemoteCollector.fill`
with the newest weights, and Ray returns the block. An actor takes one CPU, on any node that has one free. One that dies
or hangs is restarted, and late answers of its predecessor are ignored. While no node has room for it, it waits, and the
run continues with the others.
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

from rulka.agents.shared.quantisation import check_acting_precision
from rulka.buffers.experience import ExperienceBlock, new_block
from rulka.contracts.schedule import Moment
from rulka.machine.device import CPU
from rulka.machine.errors import UserError
from rulka.machine.precision import ActingPrecision
from rulka.machine.processes import REBUILDING_WINDOW_S, STOP_GRACE_S, RestartBudget
from rulka.runtime.cluster import ActorFailedError, ActorLostError, Node, RayCluster
from rulka.runtime.collectors import PermittedCollectors, collector_spec
from rulka.runtime.messages import BlockFilled, Fill
from rulka.runtime.policy_process import PolicyProcess
from rulka.runtime.shared import NO_VERSION, WeightsLayout, checksum, fill, layout_of, views
from rulka.runtime.specs import CollectorSpec, RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, SILENCE_LIMIT_S, WorkerCrashError
from rulka.stages.provenance import code_version

NODE_LIMIT_S = 300.0
"""Timeout of a run without any collector, waiting for a node."""

_LOGGER = logging.getLogger(__name__)


# On a node --------------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """Specification from which a node builds a collector; picklable."""

    collector: CollectorSpec
    layout: WeightsLayout
    acting_precision: ActingPrecision | None


class Heartbeat(NamedTuple):
    """Sign of life.

    Attributes:
        silent_s: time since its last step; 0 while it is idle.
        cpu_s: CPU time of its process.
    """

    silent_s: float
    cpu_s: float


class RemoteCollector:
    """A collector in its own process; the learner calls its methods one at a time, `heartbeat` concurrently."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._ended_s = time.monotonic()

    def code(self) -> tuple[str, dict[str, str]]:
        """Returns node and process, for messages, and the code and package versions there (`code_version`)."""
        return f"{socket.gethostname()} (process {os.getpid()})", code_version()

    def build(self, pickled: bytes) -> None:
        """Builds cars and actor.

        Args:
            pickled: an `Order`, pickled because other code might not be able to read it.

        Raises:
            UserError: if this node cannot act in the precision asked for.
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
            slot: number of the block's slot at the learner.
            moment: see `rulka.runtime.messages.Fill`.
            version: of the weights to act with.
            crc: of version and bytes, see `rulka.runtime.shared.checksum`.
            content: bytes of these weights.

        Returns:
            A summary, and the arrays of the block by name.

        Raises:
            RuntimeError: if the checksum does not match.
        """
        waited_s = time.monotonic() - self._ended_s
        self._step()
        began_s = time.monotonic()
        if version != self._actor.version:
            if checksum(version, content) != crc:
                raise RuntimeError(f"version {version} came wrong: its checksum is another one")
            self._content[:] = content
            self._actor.load(version, self._tensors)
        loading_s = time.monotonic() - began_s
        filled = self._collector.fill(self._block, moment, self._step)
        spent = replace(filled.spent, waiting_s=waited_s, loading_s=loading_s)
        self._rest()
        return replace(filled, slot=slot, spent=spent), {
            name: getattr(self._block, name) for name in self._block.spec.layout()
        }

    def heartbeat(self) -> Heartbeat:
        """Reports on itself while other calls run."""
        began_s = self._began_s
        return Heartbeat(0.0 if began_s is None else time.monotonic() - began_s, time.process_time())

    def close(self) -> None:
        """Closes its environment."""
        self._collector.close()

    def _step(self) -> None:
        self._began_s = time.monotonic()

    def _rest(self) -> None:
        self._began_s, self._ended_s = None, time.monotonic()


# At the learner ---------------------------------------------------------------------------------------------------


class Limits(NamedTuple):
    """Timeouts.

    Attributes:
        silence_s: a collector that takes no step for this long counts as lost.
        node_s: a run without a collector waits this long for a node.
    """

    silence_s: float = SILENCE_LIMIT_S
    node_s: float = NODE_LIMIT_S


@dataclass(eq=False)
class Remote:
    """One collector as the learner sees it.

    Attributes:
        index: of the collector; its replacement keeps it.
        budget: limit on its restarts.
        name: for messages.
        state: `placing` until a node has it, then `building` and `working`; `ended` is not restarted.
        actor: of Ray.
        waiting: names of the methods that have not been answered, by reference.
        heard_s: time of its last heartbeat, on the monotonic clock.
        asked_s: time of the last request for one.
        num_starts: number of starts.
        version: last version sent to it.
        cpu_s: CPU time that it last reported.
        ended_cpu_s: CPU time of its predecessors.
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
        policy_process: PolicyProcess | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Checks that the cluster is large enough.

        Args:
            spec: see `PermittedCollectors`.
            tensors: weights as published, for their names, shapes and dtypes.
            env_steps: see `PermittedCollectors`.
            num_starts: see `PermittedCollectors`.
            cluster: with the nodes; `stop` closes it.
            policy_process: see `PermittedCollectors`; its process is here.
            limits: timeouts.

        Raises:
            UserError: if the cluster is too small for the run.
        """
        super().__init__(spec, env_steps, num_starts, policy_process)
        self._cluster, self._limits = cluster, limits or Limits()
        self._layout, self._code = layout_of(tensors), code_version()
        block_bytes = spec.train.blocks_ahead * (spec.block.num_bytes + self._layout.num_bytes)
        check_size(spec.train.num_collectors, cluster.nodes(), cluster.num_free_cpus(), block_bytes)
        self.remotes = [Remote(index) for index in range(spec.train.num_collectors)]
        self._newest: tuple[int, int, Any] | None = None
        self._had_one_s = time.monotonic()
        # Blocks are read in place from Ray's object store, which is read-only; nothing here writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def start(self) -> None:
        """Starts the collectors; the caller must call `stop`, even after an error."""
        super().start()
        for remote in self.remotes:
            self._launch(remote)

    @property
    def num_restarts(self) -> int:
        """Number of restarts of collectors and of the policy process."""
        return super().num_restarts + sum(max(0, remote.num_starts - 1) for remote in self.remotes)

    @property
    def cpu_seconds_elsewhere(self) -> float:
        """CPU time of the collectors, as far as they have reported it."""
        return sum(remote.ended_cpu_s + remote.cpu_s for remote in self.remotes)

    @property
    def version(self) -> int:
        """Version of the weights published last, or `NO_VERSION`."""
        return NO_VERSION if self._newest is None else self._newest[0]

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Puts the weights into the object store once, for all nodes; blocks permitted from now on use them."""
        content = np.empty(self._layout.num_bytes, np.uint8)
        fill(views(content, self._layout), tensors)
        self._newest = version, checksum(version, content), self._cluster.put(content)

    def stop(self) -> None:
        """Ends the collectors, after closing their environments, and leaves the cluster; idempotent."""
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
        remote.waiting[self._cluster.call(remote.actor, method, *arguments, is_beside=method == "heartbeat")] = method

    def _poll(self, timeout_s: float) -> None:
        """Waits for an answer, takes all that are there, and restarts lost collectors.

        Raises:
            UserError: if a collector is refused at its first start.
            WorkerCrashError: if one is lost too often, or no collector is left and no node comes in time.
        """
        for remote in self.remotes:
            is_due = time.monotonic() - remote.asked_s >= HEARTBEAT_S
            if remote.state in ("building", "working") and is_due and "heartbeat" not in remote.waiting.values():
                remote.asked_s = time.monotonic()
                self._call(remote, "heartbeat")
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
        remote.heard_s = time.monotonic() - (answer.silent_s if method == "heartbeat" else 0.0)
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
        """Restarts collectors that hang; gives up if there has been none for too long."""
        now_s = time.monotonic()
        for remote in self.remotes:
            if remote.state in ("building", "working"):
                self._had_one_s = now_s
                if now_s - remote.heard_s > self._limits.silence_s:
                    self._lose(remote, f"took no step for {self._limits.silence_s:.0f} s while {remote.state}")
        if now_s - self._had_one_s > self._limits.node_s:
            message = f"no node is left to collect on, and none has come for {self._limits.node_s:.0f} s"
            raise WorkerCrashError(message, hint="The run goes on from its checkpoint when there is a cluster.")

    def _refuse(self, remote: Remote, reason: str, hint: str) -> None:
        """Ends the run if this was the collector's first start; the place of a refused replacement stays empty."""
        message = f"{remote.name} is refused: {reason}"
        self._end(remote)
        if remote.num_starts == 1:
            raise UserError(message, hint=hint)
        _LOGGER.warning("%s; the run goes on without it. %s", message, hint)

    def _lose(self, remote: Remote, reason: str) -> None:
        self._end(remote)
        if not remote.budget.take():
            raise WorkerCrashError(f"{remote.name} was lost {remote.budget.span}; the last time it {reason}")
        _LOGGER.warning("%s %s; starting it again where there is room", remote.name, reason)
        self._launch(remote)

    def _end(self, remote: Remote) -> None:
        """Ends a collector, revokes its unfilled permissions, and drops its pending answers."""
        if remote.state != "ended":
            self._cluster.end(remote.actor)
        remote.waiting.clear()
        remote.state = "ended"
        remote.ended_cpu_s, remote.cpu_s = remote.ended_cpu_s + remote.cpu_s, 0.0
        self._take_back(remote.index)


def _difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Describes the differences between a collector's versions and the learner's; empty if there are none."""
    names = [name for name in dict.fromkeys((*expected, *found)) if found.get(name) != expected.get(name)]
    each = [f"{name} {found.get(name)}, and the learner's is {expected.get(name)}" for name in names]
    return f"it is of another version: {'; '.join(each)}" if each else ""


def check_size(num_collectors: int, nodes: Sequence[Node], num_free_cpus: int, collector_bytes: int) -> None:
    """Checks that a cluster has CPUs for collectors, and memory for their blocks, or Ray would spill them to disk.

    Args:
        num_collectors: each takes a CPU.
        nodes: of the cluster.
        num_free_cpus: unused CPUs of all nodes together.
        collector_bytes: of the blocks and weights that one collector may have under way. Those of all of them reach the
            learner's node; another node may have as many collectors as CPUs.

    Raises:
        UserError: with the available and the requested amount.
    """
    there = sum(node.num_cpus for node in nodes)
    if num_collectors > min(there, num_free_cpus):
        each = ", ".join(f"{node.name} {node.num_cpus}" for node in nodes)
        taken = f", of which others have taken {there - num_free_cpus}" if num_free_cpus < there else ""
        message = f"train.num_collectors {num_collectors} take a CPU each, and the cluster has {there}{taken}: {each}"
        raise UserError(message, hint="Lower train.num_collectors, or add nodes: docs/cluster.md.")
    for node in nodes:
        num_bytes = collector_bytes * (num_collectors if node.is_own else min(node.num_cpus, num_collectors))
        if num_bytes > node.store_bytes:
            message = (
                f"the object store of node {node.name} has {node.store_bytes >> 20} MiB, and the blocks and weights on "
                f"their way may take {-(-num_bytes // (1 << 20))} MiB"
            )
            hint = "Start Ray there with a larger --object-store-memory, or lower train.block_steps."
            raise UserError(message, hint=hint)
