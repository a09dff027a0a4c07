"""Sources of experience: collectors in this process, or in processes of their own.

Both give out permission block by block: while fewer environment steps were given out than the learner allows, the
collector with the fewest blocks under way may fill another. So the limiter needs no lock and no shared counter, and a
collector that is waiting blocks in the system until it is told to go on.

The learner gets blocks in the order in which they were given out. A limit on how far ahead collectors may be is
therefore also a limit on how old experience can be, however much slower one collector is than the others.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from torch import Tensor

from rulka.agents.spec import Actor
from rulka.buffers.experience import ExperienceBlock, new_block
from rulka.runtime.central import CentralInference, InferenceClient, MakeClient, request_bytes
from rulka.runtime.collector import LocalActor
from rulka.runtime.messages import BlockFilled, Fill, Stop
from rulka.runtime.other_half import OtherHalfProcess
from rulka.runtime.shared import (
    SharedBlocks,
    SharedWeights,
    WeightsLayout,
    check_room,
    check_written,
    layout_of,
    memory_bytes,
)
from rulka.runtime.specs import CollectorSpec, RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, SILENCE_LIMIT_S, MakeWork, Supervisor, Work
from rulka.schedule import Moment

SLOTS_PER_COLLECTOR = 3
"""One being filled, one waiting to be filled, one being read."""


@dataclass(frozen=True)
class Delivery:
    """A filled block; it has to be given back with `release`, and must not be used after that.

    Attributes:
        collector: who filled it.
        block: the experience; in process mode its arrays are shared memory.
        facts: version of the weights, races, time shares.
    """

    collector: int
    block: ExperienceBlock
    facts: BlockFilled


class Collectors(ABC):
    """All collectors of a run."""

    _weight_bytes = 0

    @property
    def num_restarts(self) -> int:
        """How often a process was started again."""
        return 0

    @property
    def num_under_way(self) -> int:
        """Blocks that were given out and have not been handed to the learner."""
        return 0

    @property
    def cpu_seconds_elsewhere(self) -> float:
        """CPU time of processes on other nodes, which this process has not started."""
        return 0.0

    @abstractmethod
    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Gives weights to all collectors; they take them at the beginning of their next block."""

    @abstractmethod
    def collect(
        self, num_allowed_env_steps: int, timeout_s: float, budget_share: float = 0.0, env_steps_elsewhere: int = 0
    ) -> list[Delivery]:
        """Gives out permission for blocks and returns those that have been filled, in the order of permissions.

        Args:
            num_allowed_env_steps: a block may be begun while fewer environment steps have been given out.
            timeout_s: how long to wait for a block; 0 takes only what is there.
            budget_share: how much of the run's budget is used, for the schedules of blocks that are begun now.
            env_steps_elsewhere: those taken by the collectors of other learners, for the same.
        """

    @abstractmethod
    def release(self, delivery: Delivery) -> None:
        """Gives a block back, to be filled again."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all collectors and gives back what they held; may be called again."""

    def take_weight_bytes(self) -> int:
        """Returns how many bytes of weights were moved to collectors since the last call."""
        taken, self._weight_bytes = self._weight_bytes, 0
        return taken

    def state_dict(self) -> dict[str, Any] | None:
        """Returns all that the next blocks depend on; None if races begin anew when the run resumes.

        Processes fill blocks while a checkpoint is written, so theirs do.
        """
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        raise NotImplementedError


class SerialCollectors(Collectors):
    """One collector in this process: the same parts in a fixed order, so that runs repeat bit by bit."""

    def __init__(self, spec: RunSpec, env_steps: int, num_starts: int) -> None:
        """Builds the collector.

        Args:
            spec: of the run.
            env_steps: environment steps taken before, by a run that is being resumed.
            num_starts: how often the run was started before.
        """
        self._env_steps = env_steps
        self._block = new_block(spec.block)
        self._actor, self._collector = collector_spec(spec, 0, num_starts, 0).build()

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights into the collector's actor."""
        self._weight_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._actor.load(version, tensors)

    def collect(
        self, num_allowed_env_steps: int, timeout_s: float, budget_share: float = 0.0, env_steps_elsewhere: int = 0
    ) -> list[Delivery]:
        """Fills one block if it is allowed; never waits."""
        del timeout_s
        if self._env_steps >= num_allowed_env_steps:
            return []
        facts = self._collector.fill(self._block, Moment(self._env_steps + env_steps_elsewhere, budget_share))
        self._env_steps += self._block.spec.num_env_steps
        return [Delivery(0, self._block, facts)]

    def release(self, delivery: Delivery) -> None:
        """Does nothing: there is one block, and the next call of `collect` fills it."""

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the collector and the actor's RNG state."""
        collector = self._collector.state_dict()
        return None if collector is None else {"collector": collector, "actor": self._actor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes, bit for bit."""
        self._collector.load_state_dict(state["collector"])
        self._actor.load_state_dict(state["actor"])

    def stop(self) -> None:
        """Closes the environment."""
        self._collector.close()


@dataclass(eq=False)
class Permission:
    """For one block.

    Attributes:
        to: number of the collector that may fill it.
        delivery: the block, once it has come.
    """

    to: int
    delivery: Delivery | None = None


class PermittedCollectors(Collectors):
    """Collectors outside of this process: each fills a block by permission, and blocks come in that order.

    A collector has at most `SLOTS_PER_COLLECTOR` blocks between permission and release, wherever they are.
    """

    def __init__(self, spec: RunSpec, env_steps: int, num_starts: int, other_half: OtherHalfProcess | None) -> None:
        """Prepares; `start` starts the processes, and `stop` ends them.

        Args:
            spec: of the run; `train.num_collectors` is at least 1.
            env_steps: environment steps taken before, by a run that is being resumed.
            num_starts: how often the run was started before.
            other_half: of the learner, whose process begins and ends with these.
        """
        count = spec.train.num_collectors
        self._spec, self._env_steps, self._num_starts = spec, env_steps, num_starts
        self._beside: list[OtherHalfProcess | CentralInference] = [] if other_half is None else [other_half]
        self._given_out: deque[Permission] = deque()
        self._free = [set(range(SLOTS_PER_COLLECTOR)) for _ in range(count)]
        self._under_way: list[dict[int, Permission]] = [{} for _ in range(count)]
        self._num_given = [0] * count

    @property
    def num_restarts(self) -> int:
        """How often a process was started again."""
        return sum(part.num_restarts for part in self._beside)

    @property
    def num_under_way(self) -> int:
        """Blocks that were given out and have not been handed to the learner."""
        return len(self._given_out)

    def start(self) -> None:
        """Starts the processes; whoever calls this has to call `stop`, whatever happens."""
        for part in self._beside:
            part.start()

    def stop(self) -> None:
        """Ends the processes."""
        self._given_out.clear()
        for part in self._beside:
            part.stop()

    def collect(
        self, num_allowed_env_steps: int, timeout_s: float, budget_share: float = 0.0, env_steps_elsewhere: int = 0
    ) -> list[Delivery]:
        """Gives out blocks, waits for a filled one, and returns those whose turn it is."""
        self._give_out(num_allowed_env_steps, budget_share, env_steps_elsewhere)
        self._hear(timeout_s)
        deliveries = []
        while self._given_out and (delivery := self._given_out[0].delivery) is not None:
            self._given_out.popleft()
            deliveries.append(delivery)
        self._give_out(num_allowed_env_steps, budget_share, env_steps_elsewhere)
        return deliveries

    def release(self, delivery: Delivery) -> None:
        """Frees the slot of a block."""
        self._free[delivery.collector].add(delivery.facts.slot)

    def _give_out(self, num_allowed_env_steps: int, budget_share: float, env_steps_elsewhere: int) -> None:
        """Permits blocks, each to the collector that has the fewest to fill, as far as there are free slots."""
        while self._env_steps < num_allowed_env_steps:
            able = [index for index, free in enumerate(self._free) if free and self._is_there(index)]
            if not able:
                return
            index = min(able, key=lambda k: (len(self._under_way[k]), self._num_given[k]))
            slot = min(self._free[index])
            self._free[index].remove(slot)
            self._num_given[index] += 1
            self._under_way[index][slot] = permission = Permission(index)
            self._given_out.append(permission)
            self._permit(index, slot, Moment(self._env_steps + env_steps_elsewhere, budget_share))
            self._env_steps += self._spec.block.num_env_steps

    def _is_there(self, index: int) -> bool:
        """Whether a collector can be permitted a block."""
        del index
        return True

    @abstractmethod
    def _permit(self, index: int, slot: int, moment: Moment) -> None:
        """Tells a collector that it may fill a slot."""

    @abstractmethod
    def _hear(self, timeout_s: float) -> None:
        """Waits until something is heard, takes what was filled, and replaces whoever is gone."""

    def _take(self, index: int, block: ExperienceBlock, facts: BlockFilled) -> None:
        """Notes a filled block in its permission."""
        self._under_way[index].pop(facts.slot).delivery = Delivery(index, block, facts)

    def _take_back(self, index: int) -> list[int]:
        """Takes back what a collector that is gone was permitted and did not fill; returns the slots."""
        slots, self._under_way[index] = list(self._under_way[index]), {}
        unfilled = [each for each in self._given_out if each.to == index and each.delivery is None]
        for permission in unfilled:
            self._given_out.remove(permission)
        self._env_steps -= len(unfilled) * self._spec.block.num_env_steps
        self._free[index] |= set(slots)
        return slots


class SyncedActor(LocalActor):
    """An actor that takes over the newest published weights before each block."""

    def __init__(self, actor: Actor, weights: SharedWeights) -> None:
        super().__init__(actor)
        self._weights = weights

    def begin_block(self) -> None:
        """Loads the newest weights."""
        if self._weights.version != self.version:
            self.load(*self._weights.read())


class CollectorWork(Work):
    """The process of one collector: waits for permission, loads weights, fills a block, says so."""

    def __init__(
        self,
        part: CollectorSpec,
        blocks: SharedBlocks,
        weights: SharedWeights,
        inference: MakeClient | None,
        connection: Connection,
    ) -> None:
        """Builds the collector.

        Args:
            part: what to build.
            blocks: its slots.
            weights: that the learner publishes.
            inference: the way to central inference; None lets the process choose actions itself.
            connection: to the learner.
        """
        super().__init__(connection, "building its environment and network")
        self._blocks = blocks
        self._policy: SyncedActor | InferenceClient
        if inference is None:
            self._policy = SyncedActor(part.make_actor(part.seed), weights)
        else:
            self._policy = inference(self._wait_for_decision)
        self._collector = part.build_with(self._policy)

    def run(self) -> None:
        """Fills blocks until told to stop."""
        while True:
            started_s = time.monotonic()
            message = self._receive()
            if isinstance(message, Stop):
                break
            permitted_s = time.monotonic()
            self._policy.begin_block()
            loaded_s = time.monotonic()
            filled = self._collector.fill(self._blocks[message.slot], message.moment, self._step)
            waiting_s, loading_s = permitted_s - started_s, loaded_s - permitted_s
            spent = replace(filled.spent, waiting_s=waiting_s, loading_s=loading_s)
            self._connection.send(replace(filled, slot=message.slot, spent=spent))
        self._collector.close()

    def _receive(self) -> Fill | Stop:
        """Waits for the next message, with a heartbeat every `HEARTBEAT_S`; blocks in the system, never spins."""
        while not self._connection.poll(HEARTBEAT_S):
            self._beat("waiting for permission to fill a block")
        message: Fill | Stop = self._connection.recv()
        return message

    def _wait_for_decision(self) -> None:
        self._beat("waiting for a decision by central inference")

    def _step(self) -> None:
        self._beat_when_due("filling a block")


class CollectorProcesses(PermittedCollectors):
    """Collectors in processes of their own, with shared memory between them and the learner."""

    def __init__(
        self,
        spec: RunSpec,
        tensors: Mapping[str, Tensor],
        env_steps: int,
        num_starts: int,
        silence_limit_s: float = SILENCE_LIMIT_S,
        other_half: OtherHalfProcess | None = None,
    ) -> None:
        """Reserves the memory.

        Args:
            spec: see `PermittedCollectors`.
            tensors: any version as it is published, of the right names, shapes and types.
            env_steps: see `PermittedCollectors`.
            num_starts: the same.
            silence_limit_s: see `Supervisor`.
            other_half: see `PermittedCollectors`.

        Raises:
            SharedMemoryError: if there is too little shared memory.
        """
        super().__init__(spec, env_steps, num_starts, other_half)
        layout = layout_of(tensors)
        # The first learner looks before any other has begun.
        check_room(_shared_bytes(spec, layout) * (spec.num_ranks if spec.rank == 0 else 1))
        self._weights = SharedWeights(layout)
        self._blocks = [SharedBlocks(spec.block, SLOTS_PER_COLLECTOR) for _ in self._free]
        self._inference = None
        if spec.train.inference == "central":
            self._inference = CentralInference(spec, self._weights, num_starts, silence_limit_s)
            self._beside.append(self._inference)
        self._supervisor = Supervisor("collector", self._make_work, self._forget, silence_limit_s)

    def start(self) -> None:
        """Starts the processes; whoever calls this has to call `stop`, whatever happens."""
        super().start()
        self._supervisor.start(len(self._blocks))

    @property
    def num_restarts(self) -> int:
        """How often a process was started again."""
        return super().num_restarts + self._supervisor.num_restarts

    @property
    def pids(self) -> list[int]:
        """Process ids, by collector."""
        return self._supervisor.pids

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Writes weights into shared memory."""
        self._weight_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._weights.publish(version, tensors)

    def release(self, delivery: Delivery) -> None:
        """Poisons the slot, so that a half-filled block will be noticed, and frees it."""
        self._blocks[delivery.collector].poison(delivery.facts.slot)
        super().release(delivery)

    def stop(self) -> None:
        """Ends the processes, and lets go of the shared memory."""
        try:
            self._supervisor.stop()
        finally:
            super().stop()
            self._blocks.clear()

    def _permit(self, index: int, slot: int, moment: Moment) -> None:
        self._supervisor.send(index, Fill(slot, moment))

    def _hear(self, timeout_s: float) -> None:
        if self._inference is not None:
            self._inference.look_after()
        for index, facts in self._supervisor.receive(timeout_s):
            assert isinstance(facts, BlockFilled)
            block = self._blocks[index][facts.slot]
            check_written(block)
            self._take(index, block, facts)
        self._supervisor.replace_dead()  # after noting what they had finished

    def _forget(self, index: int) -> None:
        """Takes back what a collector was allowed to do and did not do before it died."""
        for slot in self._take_back(index):
            self._blocks[index].poison(slot)
        if self._inference is not None:
            self._inference.forget_collector(index)

    def _make_work(self, index: int, num_restarts: int) -> MakeWork:
        part = collector_spec(self._spec, index, self._num_starts, num_restarts)
        client = None if self._inference is None else self._inference.client_of(index, num_restarts)
        return partial(CollectorWork, part, self._blocks[index], self._weights, client)


def driven_block(spec: RunSpec, tensors: Mapping[str, Tensor]) -> ExperienceBlock:
    """Has the learner's own weights fill a block in this process, which nobody learns from.

    Args:
        spec: of a run.
        tensors: the weights.
    """
    actor, collector = replace(collector_spec(spec, 0, 0, 0), make_actor=spec.make_actor).build()
    actor.load(0, tensors)
    try:
        block = new_block(spec.block)
        collector.fill(block, Moment(0))
    finally:
        collector.close()
    return block


def _shared_bytes(spec: RunSpec, layout: WeightsLayout) -> int:
    """Returns how much shared memory a run takes: slots and weights, and with central inference request slots."""
    slots = SLOTS_PER_COLLECTOR * spec.block.num_bytes
    requests = request_bytes(spec) if spec.train.inference == "central" else 0
    return memory_bytes(layout) + spec.train.num_collectors * slots + requests


def collector_spec(spec: RunSpec, index: int, num_starts: int, num_restarts: int) -> CollectorSpec:
    """Returns the spec of one collector of a run, with a seed of its own.

    Args:
        spec: of the run.
        index: which collector of the learner's.
        num_starts: how often the run was started before.
        num_restarts: how often this collector was started again since.
    """
    index += spec.first_collector
    seed = int(np.random.SeedSequence([spec.train.seed, index, num_starts, num_restarts]).generate_state(1)[0])
    return CollectorSpec(index, seed, spec.cars_of(index), spec.collecting_actor, spec.block)
