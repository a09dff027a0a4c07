"""The process of the other half of a learner: takes what it is shown, learns as far as it may, says what it learned.

Like a collector it ignores Ctrl-C, beats while it works, and dies with its parent.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from rulka.agents.spec import Half
from rulka.buffers.experience import BlockSpec
from rulka.runtime.messages import Heartbeat, Permit, Seen, Show, Stop, Taught, ToWorker
from rulka.runtime.process import HEARTBEAT_S, work_for_learner
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.weights import NO_VERSION, SharedWeights, WeightsLayout


@dataclass(frozen=True)
class HalfSpec:
    """All that the process needs; picklable.

    Attributes:
        make_half: builds the half.
        block: shape of the blocks that it is shown.
        blocks_name: of the shared memory with their slots.
        num_slots: how many there are.
        read_name: of the shared memory with what the learner's half owns.
        read_layout: of that.
        written_name: of the shared memory with what this half owns.
        written_layout: of that.
        permit: how far it may learn.
    """

    make_half: Callable[[], Half]
    block: BlockSpec
    blocks_name: str
    num_slots: int
    read_name: str
    read_layout: WeightsLayout
    written_name: str
    written_layout: WeightsLayout
    permit: Permit


def run_half(spec: HalfSpec, connection: Connection) -> None:
    """Does the work of the process, to its end.

    Args:
        spec: what to build and where its memory is.
        connection: to the learner; when it breaks, the learner is gone and this process ends.
    """
    work_for_learner(connection, lambda: _Worker(spec, connection))


class _Worker:
    """The loop of the process, with its connection and shared memory."""

    def __init__(self, spec: HalfSpec, connection: Connection) -> None:
        self._connection = connection
        self._beat_s = time.monotonic()
        self._beat("building its networks")
        self._half = spec.make_half()
        self._blocks = SharedBlocks.attach(spec.blocks_name, spec.block, spec.num_slots)
        self._read = SharedWeights.attach(spec.read_name, spec.read_layout)
        self._written = SharedWeights.attach(spec.written_name, spec.written_layout)
        self._version, self._permit = NO_VERSION, spec.permit
        self._metrics: dict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Learns until told to stop."""
        while not self._has_to_stop(0.0 if self._may_learn() else HEARTBEAT_S):
            if self._may_learn():
                self._learn()
            else:
                self._beat("waiting for permission to learn")
        self._blocks.close()
        self._read.close()
        self._written.close()

    def _may_learn(self) -> bool:
        return self._half.num_updates < self._permit.num_updates and self._half.can_learn

    def _has_to_stop(self, timeout_s: float) -> bool:
        """Takes all messages that are there, waiting for the first; returns whether one says to end."""
        while self._connection.poll(timeout_s):
            message: ToWorker = self._connection.recv()
            timeout_s = 0.0
            if isinstance(message, Stop):
                return True
            if isinstance(message, Permit):
                self._permit = message
            elif isinstance(message, Show):
                self._half.insert(self._blocks[message.slot])
                self._connection.send(Seen(message.slot))
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
            self._connection.send(Taught(self._half.num_updates, means))
        if time.monotonic() - self._beat_s > HEARTBEAT_S:
            self._beat("learning")

    def _beat(self, activity: str) -> None:
        self._beat_s = time.monotonic()
        self._connection.send(Heartbeat(activity))
