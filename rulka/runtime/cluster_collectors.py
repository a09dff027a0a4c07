"""The learner's collectors on the nodes of a cluster: permissions to hosts, their blocks in the order of these.

The credit is that of `rulka.runtime.collectors`: a block may be begun while fewer environment steps have been given out
than the learner allows, and a collector has at most `SLOTS_PER_COLLECTOR` blocks between permission and release,
wherever they are. So what lies in Ray's memory is bounded for each host and in all. A block is freed when the learner
has taken it in, a version of the weights when there is a newer one.
"""

from __future__ import annotations

import logging
import pickle
import uuid
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from rulka.buffers.experience import ExperienceBlock
from rulka.cluster.post import Letter, Post
from rulka.runtime.collectors import SLOTS_PER_COLLECTOR, Delivery
from rulka.runtime.host import HostSpec, contract_of, part_of_run
from rulka.runtime.host_messages import Allow, Build, Built, Filled, Loaded, NewWeights, WrongWeights
from rulka.runtime.host_plan import HostShare, check_stores, deal
from rulka.runtime.host_supervisor import HostSupervisor, Limits
from rulka.runtime.messages import BlockFilled, InferenceTimes
from rulka.runtime.other_half import OtherHalfProcess
from rulka.runtime.shared_memory import note_memory, remove_left_memory
from rulka.runtime.specs import RunSpec
from rulka.runtime.supervisor import WorkerCrashError
from rulka.runtime.weights import NO_VERSION, checksum, fill, layout_of, views
from rulka.schedule import Moment

MAX_RESENT = 3
"""How often in a row a host may get a version that is wrong."""
VERSIONS_UNDER_WAY = 3
"""The newest, the one that a host takes just now, and one that it has not let go of."""

_LOGGER = logging.getLogger(__name__)


@dataclass
class _Credit:
    """What a host was given and has to give back.

    Attributes:
        next_number: of its next permission; never given twice, whichever incarnation gets it.
        under_way: permissions whose blocks have not come.
        filled: blocks that came before their turn, by permission.
        held: permissions whose blocks have not been released.
        num_given: how many it has had.
        sent: version that was sent last and not answered; `NO_VERSION` for none.
        loaded: version that it has.
        num_resent: how often in a row a version was wrong.
    """

    next_number: int = 0
    under_way: set[int] = field(default_factory=set)
    filled: dict[int, tuple[Filled, ExperienceBlock]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    num_given: int = 0
    sent: int = NO_VERSION
    loaded: int = NO_VERSION
    num_resent: int = 0
    is_working: bool = False


class ClusterCollectors:
    """Collectors of hosts on several nodes; see `rulka.runtime.collectors.Collectors`."""

    def __init__(
        self,
        spec: RunSpec,
        tensors: Mapping[str, Tensor],
        env_steps: int,
        num_starts: int,
        post: Post,
        other_half: OtherHalfProcess | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Deals the collectors to nodes; `start` starts the hosts.

        Args:
            spec: of the run; `train.num_collectors` is at least 1.
            tensors: any version as it is published, of the right names, shapes and types.
            env_steps: environment steps taken before, by a run that is being resumed.
            num_starts: how often the run was started before.
            post: to the nodes; it is closed at the end.
            other_half: of the learner, whose process, here, begins and ends with these.
            limits: how long to wait.

        Raises:
            ClusterTooSmallError: if the cluster has too little for the run.
        """
        self._spec, self._num_starts, self._env_steps, self._post = spec, num_starts, env_steps, post
        self._layout = layout_of(tensors)
        self._name = f"{spec.folder.name}-{uuid.uuid4().hex[:8]}"
        nodes = post.nodes()
        plan = deal(spec.train, nodes, post.num_free_cpus())
        own = next(node for node in nodes if node.is_own)
        block_bytes = SLOTS_PER_COLLECTOR * spec.block.num_bytes
        check_stores(plan, own, block_bytes, VERSIONS_UNDER_WAY * self._layout.num_bytes)
        self._shares = [share for share, _ in plan]
        self._credits = [_Credit() for _ in plan]
        self._host_of = [share.number for share in self._shares for _ in range(share.num_collectors)]
        self._given_out: deque[tuple[int, int]] = deque()
        self._newest: tuple[NewWeights, Any] | None = None
        self._weight_bytes = 0
        self._half = other_half
        remove_left_memory(spec.folder)
        if other_half is not None:
            note_memory(spec.folder, other_half.memory_names)
        self._supervisor = HostSupervisor(
            post, plan, self._order, contract_of(spec.block, self._layout), self._forget, limits or Limits()
        )
        # Blocks are read where Ray has laid them, and that memory cannot be written; nobody does.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    def start(self) -> None:
        """Starts the hosts; whoever calls this has to call `stop`, whatever happens."""
        if self._half is not None:
            self._half.start()
        self._supervisor.start()

    @property
    def num_restarts(self) -> int:
        """How often a host, or a process of one, was started again."""
        return self._supervisor.num_restarts + (0 if self._half is None else self._half.num_restarts)

    @property
    def num_under_way(self) -> int:
        """Blocks that were given out and have not been handed to the learner."""
        return len(self._given_out)

    @property
    def cpu_seconds_elsewhere(self) -> float:
        """Time that hosts and their collectors had on processors."""
        return self._supervisor.cpu_seconds

    def take_weight_bytes(self) -> int:
        """Returns how many bytes of weights went to hosts since the last call."""
        taken, self._weight_bytes = self._weight_bytes, 0
        return taken

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Lays a version where all hosts can take it, once."""
        content = np.empty(self._layout.num_bytes, np.uint8)
        fill(views(content, self._layout), tensors)
        self._newest = NewWeights(version, checksum(version, content.data)), self._post.share(content)
        for host in range(len(self._credits)):
            self._send_weights(host)

    def collect(
        self, num_allowed_env_steps: int, timeout_s: float, budget_share: float = 0.0, env_steps_elsewhere: int = 0
    ) -> list[Delivery]:
        """Gives out blocks, waits for a filled one, and returns those whose turn it is."""
        self._give_out(num_allowed_env_steps, budget_share, env_steps_elsewhere)
        for letter in self._supervisor.receive(timeout_s):
            self._take(letter)
        self._supervisor.replace_lost()  # after noting what they had finished
        deliveries = list(self._in_turn())
        self._give_out(num_allowed_env_steps, budget_share, env_steps_elsewhere)
        return deliveries

    def release(self, delivery: Delivery) -> None:
        """Lets go of a block; its memory is free as soon as nobody has a view of it."""
        self._credits[self._host_of[delivery.collector]].held.remove(delivery.facts.slot)

    def take_inference_times(self) -> list[InferenceTimes]:
        """Returns what policy workers said of their time since the last call."""
        return self._supervisor.take_inference_times()

    def state_dict(self) -> dict[str, Any] | None:
        """Returns nothing: hosts fill blocks while a checkpoint is written, and begin new races afterwards."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Is never called: there is no state."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the hosts and leaves the cluster; may be called again."""
        try:
            self._supervisor.stop()
        finally:
            if self._half is not None:
                self._half.stop()
            self._newest = None
            for credit in self._credits:
                credit.filled.clear()
            self._post.close()
            remove_left_memory(self._spec.folder)

    def _order(self, share: HostShare) -> Build:
        run = part_of_run(self._spec, share.first_collector, share.num_collectors, share.policy_workers)
        first_number = self._credits[share.number].next_number
        return Build(pickle.dumps(HostSpec(run, self._layout, self._num_starts, first_number, self._name)))

    def _take(self, letter: Letter) -> None:
        host, credit, message = letter.place.number, self._credits[letter.place.number], letter.message
        match message:
            case Built():
                credit.is_working = True
                self._send_weights(host)
            case Loaded():
                credit.loaded, credit.sent, credit.num_resent = message.version, NO_VERSION, 0
                self._send_weights(host)
            case WrongWeights():
                self._send_again(host, message)
            case Filled() if message.number in credit.under_way:
                credit.under_way.remove(message.number)
                credit.filled[message.number] = message, self._block(letter.content)

    def _block(self, arrays: Mapping[str, Any]) -> ExperienceBlock:
        """Lays a block over arrays that came; they are what was agreed, or nothing is learned from them."""
        spec = self._spec.block
        for name, (shape, dtype) in spec.layout().items():
            found = arrays[name]
            if found.shape != shape or found.dtype != dtype:
                message = f"{name!r} of a block that came is {found.dtype} {found.shape}, agreed was {shape}"
                raise WorkerCrashError(message)
        return ExperienceBlock(spec, **arrays)

    def _send_weights(self, host: int) -> None:
        """Sends the newest version to a host that has taken the one before it."""
        credit = self._credits[host]
        if self._newest is None or not credit.is_working or credit.sent != NO_VERSION:
            return
        message, parcel = self._newest
        if message.version > credit.loaded:
            credit.sent = message.version
            self._supervisor.tell(host, message, parcel)
            self._weight_bytes += self._layout.num_bytes

    def _send_again(self, host: int, message: WrongWeights) -> None:
        credit = self._credits[host]
        credit.sent, credit.num_resent = NO_VERSION, credit.num_resent + 1
        said = f"version {message.version} came to host {host} wrong: {message.reason}"
        if credit.num_resent > MAX_RESENT:
            error = f"{said}, {credit.num_resent} times in a row"
            raise WorkerCrashError(error)
        _LOGGER.warning("%s; it is sent again", said)
        self._send_weights(host)

    def _give_out(self, num_allowed_env_steps: int, budget_share: float, env_steps_elsewhere: int) -> None:
        if self._newest is None:
            return
        while self._env_steps < num_allowed_env_steps:
            able = [share for share in self._shares if self._has_room(share)]
            if not able:
                return
            host = min(able, key=self._load_of).number
            credit = self._credits[host]
            number = credit.next_number
            credit.next_number, credit.num_given = number + 1, credit.num_given + 1
            credit.under_way.add(number)
            credit.held.add(number)
            self._given_out.append((host, number))
            moment = Moment(self._env_steps + env_steps_elsewhere, budget_share)
            self._supervisor.tell(host, Allow(number, moment, self._newest[0].version))
            self._env_steps += self._spec.block.num_env_steps

    def _has_room(self, share: HostShare) -> bool:
        credit = self._credits[share.number]
        return credit.is_working and len(credit.held) < SLOTS_PER_COLLECTOR * share.num_collectors

    def _load_of(self, share: HostShare) -> tuple[float, float]:
        """Returns how many blocks each of a host's collectors has under way, and has ever had."""
        credit = self._credits[share.number]
        return len(credit.under_way) / share.num_collectors, credit.num_given / share.num_collectors

    def _in_turn(self) -> Iterator[Delivery]:
        while self._given_out:
            host, number = self._given_out[0]
            if number not in self._credits[host].filled:
                return
            self._given_out.popleft()
            message, block = self._credits[host].filled.pop(number)
            collector = self._shares[host].first_collector + message.collector
            facts: BlockFilled = replace(message.facts, slot=number)
            yield Delivery(collector, block, facts)

    def _forget(self, host: int) -> None:
        """Takes back what a host was allowed to do and did not do before it was lost."""
        credit = self._credits[host]
        for number in credit.under_way:
            self._given_out.remove((host, number))
            credit.held.remove(number)
            self._env_steps -= self._spec.block.num_env_steps
        credit.under_way = set()
        credit.is_working, credit.sent, credit.loaded, credit.num_resent = False, NO_VERSION, NO_VERSION, 0
