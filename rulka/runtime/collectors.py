"""Sources of experience: collectors in this process, or in processes of their own.

Both permit blocks one by one, while fewer environment steps are permitted than the learner allows. So the limiter needs
no lock and no shared counter, and a waiting collector blocks in the operating system until its next permission. The
learner gets blocks in the order of their permissions. A limit on how far ahead collectors may run is therefore also a
limit on staleness, however much slower one collector is than the others.

With `train.order: free` the next block goes to the collector with the fewest under way, which loads the newest weights
when it begins. With `exact` collectors take turns, and a permission names the version of the weights. A block is then a
function of its permission and of its collector's state at its beginning, which is kept in a file: a collector that died
is rebuilt in that state and drives the block again. docs/reproducibility.md describes the consequences.
"""

from __future__ import annotations

import io
import shutil
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rulka.agents.shared.acting import NetworkActor
from rulka.buffers.experience import ExperienceBlock, new_block
from rulka.contracts.schedule import Moment
from rulka.runtime.central import CentralInference, InferenceClient, MakeClient, request_bytes
from rulka.runtime.collector import Collector, LocalActor
from rulka.runtime.messages import BlockFilled, Fill, Stop
from rulka.runtime.policy_process import PolicyProcess
from rulka.runtime.shared import (
    NO_VERSION,
    NUM_COPIES,
    SharedBlocks,
    SharedWeights,
    WeightsLayout,
    check_room,
    check_written,
    layout_of,
    memory_bytes,
)
from rulka.runtime.specs import CollectorSpec, RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, MakeWork, Supervisor, Work

STATES_FOLDER = "collectors"
"""In a run's folder, while it runs: the states in which its collectors begin their next blocks."""


@dataclass(frozen=True)
class Delivery:
    """A filled block; return it with `release`, and do not use it after that.

    Attributes:
        collector: index of the collector that filled it.
        block: the experience; in process mode its arrays are shared memory.
        facts: version of the weights, races, times.
    """

    collector: int
    block: ExperienceBlock
    facts: BlockFilled


class CollectLimits(NamedTuple):
    """Limits on one call of `Collectors.collect`.

    Attributes:
        allowed_env_steps: a block may be permitted while fewer environment steps have been permitted.
        timeout_s: how long to wait for a block; 0 takes only blocks that are ready.
        budget_share: used share of the run's budget, for the schedules of blocks permitted now.
        env_steps_elsewhere: environment steps of other learners' collectors, for the same schedules.
        most_blocks: most blocks to return; None for all that are ready.
    """

    allowed_env_steps: int
    timeout_s: float
    budget_share: float = 0.0
    env_steps_elsewhere: int = 0
    most_blocks: int | None = None


class Collectors(ABC):
    """All collectors of a run."""

    _weight_bytes = 0

    @property
    def num_restarts(self) -> int:
        """Number of process restarts."""
        return 0

    @property
    def num_under_way(self) -> int:
        """Blocks permitted and not yet delivered to the learner."""
        return 0

    @property
    def has_lost_states(self) -> bool:
        """True if, in exact order, a collector could not be restored to its old state."""
        return False

    @property
    def cpu_seconds_elsewhere(self) -> float:
        """CPU seconds of processes on other nodes, which are not children of this one."""
        return 0.0

    @property
    @abstractmethod
    def version(self) -> int:
        """Version of the weights published last, or `NO_VERSION`."""

    @abstractmethod
    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Publishes weights to all collectors, which load them when they begin a block permitted from now on."""

    def start(self) -> None:  # noqa: B027  one in this process has nothing to start
        """Starts the processes, if there are any; the caller must call `stop`, even after an error."""

    @abstractmethod
    def collect(self, limits: CollectLimits) -> list[Delivery]:
        """Permits blocks and returns the filled ones, in the order of their permissions."""

    def release(self, delivery: Delivery) -> None:  # noqa: B027  the next call of `collect` fills the only one again
        """Returns the slot of a block, to be filled again."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all collectors and frees their resources; idempotent."""

    def take_weight_bytes(self) -> int:
        """Returns the number of bytes of weights sent to collectors since the last call."""
        taken, self._weight_bytes = self._weight_bytes, 0
        return taken

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the state that the next blocks depend on; None if races restart when the run resumes.

        They do with collector processes in free order, because blocks are filled while a checkpoint is written.
        """
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`, before `start`."""
        raise NotImplementedError


class SerialCollectors(Collectors):
    """One collector in this process, which drives while the learner waits; for either order."""

    def __init__(self, spec: RunSpec, env_steps: int, num_starts: int) -> None:
        """Builds the collector.

        Args:
            spec: of the run.
            env_steps: environment steps of the run before it was resumed.
            num_starts: number of earlier starts of the run.
        """
        self._env_steps = env_steps
        self._block = new_block(spec.block)
        self._actor, self._collector = collector_spec(spec, 0, num_starts, 0).build()

    @property
    def version(self) -> int:
        """Version of the weights published last, or `NO_VERSION`."""
        return self._actor.version

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights into the collector's actor."""
        self._weight_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._actor.load(version, tensors)

    def collect(self, limits: CollectLimits) -> list[Delivery]:
        """Fills one block if it is allowed; never waits."""
        if self._env_steps >= limits.allowed_env_steps or limits.most_blocks == 0:
            return []
        moment = Moment(self._env_steps + limits.env_steps_elsewhere, limits.budget_share)
        facts = self._collector.fill(self._block, moment)
        self._env_steps += self._block.spec.num_env_steps
        return [Delivery(0, self._block, facts)]

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the collector and the actor's RNG state."""
        return state_of(self._collector, self._actor)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes, bit for bit."""
        load_state(self._collector, self._actor, state)

    def stop(self) -> None:
        """Closes the environment."""
        self._collector.close()


def state_of(collector: Collector, policy: LocalActor) -> dict[str, Any] | None:
    """Returns the state that a collector's next block depends on, without weights; None if unavailable."""
    cars = collector.state_dict()
    return None if cars is None else {"collector": cars, "actor": policy.state_dict()}


def load_state(collector: Collector, policy: LocalActor, state: Mapping[str, Any]) -> None:
    """Restores collector and policy, bit for bit."""
    collector.load_state_dict(state["collector"])
    policy.load_state_dict(state["actor"])


@dataclass(eq=False)
class Permission:
    """Permission to fill one block.

    Attributes:
        to: index of the collector that may fill it.
        fill: the message to that collector.
        delivery: the filled block; None until it arrives.
    """

    to: int
    fill: Fill
    delivery: Delivery | None = None


class PermittedCollectors(Collectors):
    """Collectors outside of this process, which fill blocks by permission; blocks are delivered in that order.

    A collector has at most `train.blocks_ahead` blocks between permission and release, in whatever stage.
    """

    def __init__(self, spec: RunSpec, env_steps: int, num_starts: int, policy_process: PolicyProcess | None) -> None:
        """Prepares; `start` starts the processes, and `stop` ends them.

        Args:
            spec: of the run; `train.num_collectors` is at least 1.
            env_steps: environment steps of the run before it was resumed.
            num_starts: number of earlier starts of the run.
            policy_process: of the learner; its process starts and stops with these.
        """
        train = spec.train
        self._spec, self._env_steps, self._num_starts = spec, env_steps, num_starts
        self._beside: list[PolicyProcess | CentralInference] = [] if policy_process is None else [policy_process]
        self._given_out: deque[Permission] = deque()
        self._free = [set(range(train.blocks_ahead)) for _ in range(train.num_collectors)]
        self._unfilled: list[dict[int, Permission]] = [{} for _ in self._free]  # by slot, of each collector
        self._num_given = [0] * train.num_collectors

    @property
    def num_restarts(self) -> int:
        """Number of process restarts."""
        return sum(part.num_restarts for part in self._beside)

    @property
    def num_under_way(self) -> int:
        """Blocks permitted and not yet delivered to the learner."""
        return len(self._given_out)

    def start(self) -> None:
        """Starts the processes; the caller must call `stop`, even after an error."""
        for part in self._beside:
            part.start()

    def stop(self) -> None:
        """Ends the processes."""
        self._given_out.clear()
        for part in self._beside:
            part.stop()

    def collect(self, limits: CollectLimits) -> list[Delivery]:
        """Permits blocks, waits for the next one if it is not ready, and returns those that are next in order."""
        self._give_out(limits)
        is_there = bool(self._given_out) and self._given_out[0].delivery is not None
        self._poll(0.0 if is_there or limits.most_blocks == 0 else limits.timeout_s)
        deliveries: list[Delivery] = []
        while len(deliveries) != limits.most_blocks and self._given_out:
            if (delivery := self._given_out[0].delivery) is None:
                break
            self._given_out.popleft()
            deliveries.append(delivery)
        self._give_out(limits)
        return deliveries

    def release(self, delivery: Delivery) -> None:
        """Frees the slot of a block."""
        self._free[delivery.collector].add(delivery.facts.slot)

    def _give_out(self, limits: CollectLimits) -> None:
        """Permits blocks while slots are free."""
        is_exact = self._spec.train.order == "exact"
        while self._env_steps < limits.allowed_env_steps:
            able = [index for index, free in enumerate(self._free) if free and self._is_there(index)]
            next_index = sum(self._num_given) % len(self._free)
            if not able or (is_exact and next_index not in able):
                return
            index = next_index if is_exact else min(able, key=lambda k: (len(self._unfilled[k]), self._num_given[k]))
            moment = Moment(self._env_steps + limits.env_steps_elsewhere, limits.budget_share)
            self._num_given[index] += 1
            self._permit(index, self._note(index, moment, self.version if is_exact else None).fill)

    def _note(self, index: int, moment: Moment, version: int | None) -> Permission:
        """Records a permission and reserves a slot for it."""
        slot = min(self._free[index])
        self._free[index].remove(slot)
        self._unfilled[index][slot] = permission = Permission(index, Fill(slot, moment, version))
        self._given_out.append(permission)
        self._env_steps += self._spec.block.num_env_steps
        return permission

    def _is_there(self, index: int) -> bool:
        """True if the collector is ready for a permission."""
        del index
        return True

    @abstractmethod
    def _permit(self, index: int, fill: Fill) -> None:
        """Sends a collector its permission to fill a slot."""

    @abstractmethod
    def _poll(self, timeout_s: float) -> None:
        """Waits for messages, takes filled blocks, and replaces dead collectors."""

    def _take(self, index: int, block: ExperienceBlock, facts: BlockFilled) -> None:
        """Attaches a filled block to its permission."""
        self._unfilled[index].pop(facts.slot).delivery = Delivery(index, block, facts)

    def _take_back(self, index: int) -> list[int]:
        """Revokes a dead collector's unfilled permissions; returns their slots."""
        slots, self._unfilled[index] = list(self._unfilled[index]), {}
        unfilled = [each for each in self._given_out if each.to == index and each.delivery is None]
        for permission in unfilled:
            self._given_out.remove(permission)
        self._env_steps -= len(unfilled) * self._spec.block.num_env_steps
        self._free[index] |= set(slots)
        return slots


class SyncedActor(LocalActor):
    """An actor that loads published weights before each block."""

    def __init__(self, actor: NetworkActor, weights: SharedWeights) -> None:
        super().__init__(actor)
        self._weights = weights

    def begin_block(self, version: int | None) -> None:
        """Loads a version (None: the newest) unless it is loaded already."""
        if self.version != (self._weights.version if version is None else version):
            self.load(*self._weights.read(version))


class StateFiles:
    """States in which one collector begins its blocks, from the first block that the learner has not taken.

    The collector writes the state of the next block before it reports one as filled, so that every unfilled block has a
    complete state. The files serve the live run only; a checkpoint holds their `content`.
    """

    def __init__(self, folder: Path, index: int, num_kept: int) -> None:
        """Creates the folder.

        Args:
            folder: of the run.
            index: of the collector.
            num_kept: number of states needed at the same time.
        """
        self._folder, self._index, self._num_kept = folder / STATES_FOLDER, index, num_kept
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, block: int) -> Path:
        """Returns the state file of one of the collector's blocks, which are counted from 0."""
        return self._folder / f"{self._index}-{block % self._num_kept}.state"

    def write(self, block: int, state: Mapping[str, Any] | None) -> None:
        """Writes the state in which a block begins; does nothing for None."""
        if state is not None:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            self.put(block, buffer.getbuffer())

    def read(self, block: int) -> dict[str, Any] | None:
        """Returns the state of a block, or None if there is none."""
        return torch.load(self.path(block), weights_only=True) if self.path(block).exists() else None

    def put(self, block: int, content: bytes | memoryview) -> None:
        """Writes a file atomically, in case this process is killed."""
        path = self.path(block)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(content)
        temporary.replace(path)

    def content(self, block: int) -> Tensor | None:
        """Returns the bytes of a file, or None if there is none."""
        path = self.path(block)
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) if path.exists() else None


class CollectorWork(Work):
    """The process of one collector: waits for permission, loads weights, fills a block, reports it."""

    def __init__(
        self,
        part: CollectorSpec,
        blocks: SharedBlocks,
        weights: SharedWeights,
        inference: MakeClient | None,
        states: tuple[StateFiles, int] | None,
        permitted: Sequence[Fill],
        connection: Connection,
    ) -> None:
        """Builds the collector.

        Args:
            part: spec of the collector.
            blocks: its slots.
            weights: published by the learner.
            inference: builds its client of central inference; None lets the process choose actions itself.
            states: files for the states of its blocks, and the number of its next block; None in free order.
            permitted: permissions that it starts with.
            connection: to the learner.
        """
        super().__init__(connection, "building its environment and network")
        self._blocks, self._states, self._permitted = blocks, states, deque(permitted)
        self._policy: SyncedActor | InferenceClient
        if inference is None:
            self._policy = SyncedActor(part.make_actor(part.seed), weights)
        else:
            self._policy = inference(partial(self._beat, "waiting for a decision by central inference"))
        self._collector = part.build_with(self._policy)

    def run(self) -> None:
        """Fills blocks until told to stop."""
        files, first = self._states or (None, 0)
        on_step = partial(self._beat_when_due, "filling a block")
        local = self._policy if isinstance(self._policy, LocalActor) else None
        if files and local and (state := files.read(first)) is not None:
            load_state(self._collector, local, state)
        for number in count(first + 1):
            started_s = time.monotonic()
            message = self._receive()
            if isinstance(message, Stop):
                break
            permitted_s = time.monotonic()
            self._policy.begin_block(message.version)
            loaded_s = time.monotonic()
            filled = self._collector.fill(self._blocks[message.slot], message.moment, on_step)
            if files and local:
                files.write(number, state_of(self._collector, local))
            waiting_s, loading_s = permitted_s - started_s, loaded_s - permitted_s
            spent = replace(filled.spent, waiting_s=waiting_s, loading_s=loading_s)
            self._connection.send(replace(filled, slot=message.slot, spent=spent))
        self._collector.close()

    def _receive(self) -> Fill | Stop:
        """Waits for the next message, with a heartbeat every `HEARTBEAT_S`; blocks in the system, never spins."""
        if self._permitted:
            return self._permitted.popleft()
        while not self._connection.poll(HEARTBEAT_S):
            self._beat("waiting for permission to fill a block")
        message: Fill | Stop = self._connection.recv()
        return message


class CollectorProcesses(PermittedCollectors):
    """Collectors in separate processes on this machine, sharing memory with the learner."""

    def __init__(
        self,
        spec: RunSpec,
        tensors: Mapping[str, Tensor],
        env_steps: int,
        num_starts: int,
        policy_process: PolicyProcess | None = None,
    ) -> None:
        """Reserves the memory.

        Args:
            spec: see `PermittedCollectors`.
            tensors: weights as published, for their names, shapes and dtypes.
            env_steps: see `PermittedCollectors`.
            num_starts: see `PermittedCollectors`.
            policy_process: see `PermittedCollectors`.

        Raises:
            UserError: if there is too little shared memory.
        """
        super().__init__(spec, env_steps, num_starts, policy_process)
        train, layout = spec.train, layout_of(tensors)
        # The first learner checks for all of them, before any other starts.
        check_room(_shared_bytes(spec, layout) * (spec.num_ranks if spec.rank == 0 else 1))
        self._weights = SharedWeights(layout, _num_copies(spec))
        self._blocks = [SharedBlocks(spec.block, train.blocks_ahead) for _ in self._free]
        shutil.rmtree(spec.folder / STATES_FOLDER, ignore_errors=True)
        self._states: list[StateFiles] = []
        if train.order == "exact":
            self._states = [StateFiles(spec.folder, k, train.blocks_ahead + 1) for k in range(train.num_collectors)]
        self._has_lost_states, self._num_starts_before = False, num_starts
        self._inference = None
        if spec.train.inference == "central":
            self._inference = CentralInference(spec, self._weights, num_starts)
            self._beside.append(self._inference)
        self._supervisor = Supervisor("collector", self._make_work, self._forget)

    def start(self) -> None:
        """Starts the processes; the caller must call `stop`, even after an error."""
        super().start()
        self._supervisor.start(len(self._blocks))

    @property
    def num_restarts(self) -> int:
        """Number of process restarts."""
        return super().num_restarts + self._supervisor.num_restarts

    @property
    def pids(self) -> list[int]:
        """Process ids, by collector."""
        return self._supervisor.pids

    @property
    def has_lost_states(self) -> bool:
        """True if, in exact order, a collector could not be restored to its old state."""
        return self._has_lost_states

    @property
    def version(self) -> int:
        """Version of the weights published last, or `NO_VERSION`."""
        return self._weights.version

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Writes weights into shared memory."""
        self._weight_bytes += sum(tensor.nbytes for tensor in tensors.values())
        self._weights.publish(version, tensors, self._versions())

    def _versions(self) -> set[int]:
        """Returns the versions of the weights that blocks under way need."""
        return {each.fill.version for each in self._given_out if each.fill.version is not None}

    def state_dict(self) -> dict[str, Any] | None:
        """Returns the blocks under way, the states they begin in, and their weights; None in free order."""
        if not self._states:
            return None
        taken = [given - sum(each.to == k for each in self._given_out) for k, given in enumerate(self._num_given)]
        versions = sorted({*self._versions(), self.version} - {NO_VERSION})
        weights = {v: {k: each.clone() for k, each in self._weights.read(v).tensors.items()} for v in versions}
        return {
            "num_starts": self._num_starts_before,
            "num_given": self._num_given,
            "under_way": [(each.to, tuple(each.fill.moment), each.fill.version) for each in self._given_out],
            "states": [files.content(block) for files, block in zip(self._states, taken, strict=True)],
            "weights": weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes: blocks that were under way are driven again."""
        for version, tensors in sorted(state["weights"].items()):
            self._weights.publish(version, tensors, state["weights"])
        self._num_starts_before, self._num_given = state["num_starts"], list(state["num_given"])
        for index, moment, version in state["under_way"]:
            self._note(index, Moment(*moment), version)
        for index, content in enumerate(state["states"]):
            if content is not None:
                self._states[index].put(self._next_block(index), content.numpy().tobytes())

    def _next_block(self, index: int) -> int:
        """Returns the number of a collector's first unfilled block."""
        return self._num_given[index] - len(self._unfilled[index])

    def release(self, delivery: Delivery) -> None:
        """Poisons the slot, so that a half-filled block is noticed, and frees it."""
        self._blocks[delivery.collector].poison(delivery.facts.slot)
        super().release(delivery)

    def stop(self) -> None:
        """Ends the processes and frees the shared memory."""
        try:
            self._supervisor.stop()
        finally:
            super().stop()
            self._blocks.clear()
            shutil.rmtree(self._spec.folder / STATES_FOLDER, ignore_errors=True)

    def _permit(self, index: int, fill: Fill) -> None:
        self._supervisor.send(index, fill)

    def _poll(self, timeout_s: float) -> None:
        if self._inference is not None:
            self._inference.look_after()
        for index, facts in self._supervisor.receive(timeout_s):
            assert isinstance(facts, BlockFilled)
            block = self._blocks[index][facts.slot]
            check_written(block)
            self._take(index, block, facts)
        self._supervisor.replace_dead()  # after taking the blocks that they had finished

    def _forget(self, index: int) -> None:
        """Revokes a dead collector's permissions; in exact order its successor inherits them."""
        for slot in list(self._unfilled[index]) if self._states else self._take_back(index):
            self._blocks[index].poison(slot)
        if self._inference is not None:
            self._inference.forget_collector(index)

    def _make_work(self, index: int, num_restarts: int) -> MakeWork:
        client = None if self._inference is None else self._inference.client_of(index, num_restarts)
        num_starts, states = self._num_starts, None
        if self._states:
            states = files, block = self._states[index], self._next_block(index)
            if block == 0 or files.path(block).exists():  # it begins from the same seed, or resumes from its state
                num_starts, num_restarts = self._num_starts_before, 0
            else:
                self._has_lost_states = True
        part = collector_spec(self._spec, index, num_starts, num_restarts)
        permitted = [permission.fill for permission in self._unfilled[index].values()]
        return partial(CollectorWork, part, self._blocks[index], self._weights, client, states, permitted)


def driven_block(spec: RunSpec, tensors: Mapping[str, Tensor]) -> ExperienceBlock:
    """Fills one block in this process with the learner's own weights; nobody learns from it.

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
    """Returns the shared memory of a run in bytes: slots, weights, and any request slots."""
    train = spec.train
    requests = request_bytes(spec) if train.inference == "central" else 0
    slots = train.num_collectors * train.blocks_ahead * spec.block.num_bytes
    return memory_bytes(layout, _num_copies(spec)) + slots + requests


def _num_copies(spec: RunSpec) -> int:
    """Returns how many copies of the weights a run needs; in exact order each block under way may need its own."""
    train = spec.train
    return NUM_COPIES + (train.num_collectors * train.blocks_ahead if train.order == "exact" else 0)


def collector_spec(spec: RunSpec, index: int, num_starts: int, num_restarts: int) -> CollectorSpec:
    """Returns the spec of one collector of a run, with a seed of its own.

    Args:
        spec: of the run.
        index: of the collector, among the learner's.
        num_starts: number of earlier starts of the run.
        num_restarts: restarts of this collector since then.
    """
    index += spec.first_collector
    seed = int(np.random.SeedSequence([spec.train.seed, index, num_starts, num_restarts]).generate_state(1)[0])
    return CollectorSpec(index, seed, spec.cars_of(index), spec.collecting_actor, spec.block)
