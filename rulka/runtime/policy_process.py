"""The half of a learner that learns in a separate process, as seen from both sides.

Permissions fix the update ratio of the two halves: the other half makes only permitted updates, and the learner waits
for it in `poll`, blocking in the operating system instead of watching a clock. Its process may die at any time: the
next one starts from the weights published last, and is shown the blocks that are still there again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np

from rulka.agents.pql.halves import LearnsInHalves
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.contracts.schedule import Moment
from rulka.runtime.messages import HalfUpdated, NewBlock, Permit, SlotRead, Stop, ToWorker
from rulka.runtime.shared import NO_VERSION, SharedBlocks, SharedWeights, check_room, layout_of, memory_bytes
from rulka.runtime.supervisor import HEARTBEAT_S, SILENCE_LIMIT_S, MakeWork, Supervisor, Work

if TYPE_CHECKING:  # it imports torchrl, which this side does without
    from rulka.agents.pql.learner import RemotePolicyHalf

NUM_SLOTS = 3
"""Blocks on their way to the other half."""


class HalfWork(Work):
    """The loop of the process: inserts blocks that it is shown, learns as far as permitted, publishes the result."""

    def __init__(
        self,
        make_half: Callable[[], RemotePolicyHalf],
        blocks: SharedBlocks,
        read: SharedWeights,
        written: SharedWeights,
        permit: Permit,
        connection: Connection,
    ) -> None:
        """Builds the half.

        Args:
            make_half: builds it.
            blocks: slots for the blocks that it is shown.
            read: weights of the learner's half.
            written: weights of this half.
            permit: the permission to start with.
            connection: to the learner.
        """
        super().__init__(connection, "building its networks")
        self._half = make_half()
        self._blocks, self._read, self._written = blocks, read, written
        self._version, self._permit = NO_VERSION, permit
        self._metrics: dict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Learns until told to stop."""
        while not self._has_to_stop(0.0 if self._may_learn() else HEARTBEAT_S):
            if self._may_learn():
                self._learn()
            else:
                self._beat("waiting for permission to learn")

    def _may_learn(self) -> bool:
        return self._half.num_updates < self._permit.num_updates and self._half.can_learn

    def _has_to_stop(self, timeout_s: float) -> bool:
        """Handles all pending messages, waiting for the first; returns True if told to stop."""
        while self._connection.poll(timeout_s):
            message: ToWorker = self._connection.recv()
            timeout_s = 0.0
            if isinstance(message, Stop):
                return True
            if isinstance(message, Permit):
                self._permit = message
            elif isinstance(message, NewBlock):
                self._half.insert(self._blocks[message.slot])
                self._connection.send(SlotRead(message.slot))
        return False

    def _learn(self) -> None:
        if self._read.version != self._version:
            self._version, tensors = self._read.read()
            self._half.load(tensors)
        for name, value in self._half.learn(self._permit.moment).items():
            self._metrics[name].append(value)
        if self._half.num_updates >= self._permit.num_updates:
            self._written.publish(self._half.num_updates, self._half.tensors())
            means = {name: float(np.mean(values)) for name, values in self._metrics.items()}
            self._metrics.clear()
            self._connection.send(HalfUpdated(self._half.num_updates, means))
        self._beat_when_due("learning")


class PolicyProcess:
    """The learner's side: the process of the other half, and the memory that the two share."""

    def __init__(
        self,
        learner: LearnsInHalves,
        block: BlockSpec,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        """Reserves the memory; `start` starts the process, and `stop` ends it.

        Args:
            learner: owner of the half; its `make_half` is called whenever the process starts.
            block: shape of the blocks that are shown.
            silence_limit_s: see `Supervisor`.

        Raises:
            UserError: if there is too little shared memory.
        """
        self._learner = learner
        own, theirs = layout_of(learner.own_tensors()), layout_of(learner.half_tensors())
        check_room(memory_bytes(own) + memory_bytes(theirs) + NUM_SLOTS * block.num_bytes)
        self._own, self._theirs = SharedWeights(own), SharedWeights(theirs)
        self._blocks = SharedBlocks(block, NUM_SLOTS)
        for slot in range(NUM_SLOTS):  # `send_blocks` writes only observations
            for name in block.layout():
                getattr(self._blocks[slot], name)[...] = 0
        self._free = set(range(NUM_SLOTS))
        self._next = 0
        self._permit = Permit(0, Moment(0))
        self._version = NO_VERSION
        self._supervisor = Supervisor("policy process", self._make_work, self._begin_anew, silence_limit_s)

    @property
    def num_restarts(self) -> int:
        """Number of restarts of the process."""
        return self._supervisor.num_restarts

    def start(self) -> None:
        """Starts the process; the caller must call `stop`, even after an error."""
        self._publish()
        self._supervisor.start(1)

    def send_blocks(self, numbers: range, copy: Callable[[int, ExperienceBlock], None]) -> None:
        """Copies blocks that it has not seen into free slots; see `rulka.agents.pql.halves.HalfHandle`."""
        self._next = max(self._next, numbers.start)
        while self._free and self._next < numbers.stop:
            slot = self._free.pop()
            copy(self._next, self._blocks[slot])
            self._supervisor.send(0, NewBlock(slot))
            self._next += 1

    def allow_updates(self, num_updates: int, moment: Moment) -> None:
        """Publishes the tensors of the learner's half, and permits the other one to learn on."""
        self._publish()
        self._permit = Permit(num_updates, moment)
        self._supervisor.send(0, self._permit)

    def poll(self, timeout_s: float) -> None:
        """Waits for messages, passes on what was learned, and restarts the process if it has died.

        Raises:
            WorkerCrashError: if it has crashed too often.
        """
        metrics: dict[str, float] | None = None
        for _, message in self._supervisor.receive(timeout_s):
            if isinstance(message, SlotRead):
                self._free.add(message.slot)
            elif isinstance(message, HalfUpdated):
                metrics = message.metrics
        if metrics is not None:
            self._take(metrics)
        self._supervisor.replace_dead()

    def stop(self) -> None:
        """Ends the process; idempotent."""
        self._supervisor.stop()

    def _publish(self) -> None:
        self._version += 1
        self._own.publish(self._version, self._learner.own_tensors())

    def _take(self, metrics: Mapping[str, float]) -> None:
        if self._theirs.version != NO_VERSION:
            num_updates, tensors = self._theirs.read()
            self._learner.take_half(num_updates, tensors, metrics)

    def _begin_anew(self, _index: int) -> None:
        """Takes a dead process's last published weights, and has its successor shown every block again."""
        self._take({})
        self._free, self._next = set(range(NUM_SLOTS)), 0

    def _make_work(self, _index: int, _num_starts: int) -> MakeWork:
        make_half = self._learner.make_half()
        assert make_half is not None, "there is another half, or nobody would have made this"
        return partial(HalfWork, make_half, self._blocks, self._own, self._theirs, self._permit)
