"""The process of one collector: waits for permission, fills a block, says so.

It builds its own environment and network, ignores Ctrl-C (its parent ends it), and dies with its parent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import numpy as np

from rulka.agents.spec import Actor
from rulka.runtime.central import InferenceClient, InferencePlace
from rulka.runtime.collector import CarGroup, Collector, LocalActor
from rulka.runtime.messages import Fill, Heartbeat, Stop
from rulka.runtime.shared import SharedBlocks, SharedWeights
from rulka.runtime.specs import CollectorSpec
from rulka.runtime.supervisor import HEARTBEAT_S, work_for_learner


@dataclass(frozen=True)
class WorkerSpec:
    """All that the process needs; picklable.

    Attributes:
        collector: what to build.
        blocks: its slots.
        weights: that the learner publishes.
        inference: the way to central inference of each group of cars; None lets the process choose actions itself.
    """

    collector: CollectorSpec
    blocks: SharedBlocks
    weights: SharedWeights
    inference: tuple[InferencePlace, ...] | None = None


class SyncedActor(LocalActor):
    """An actor that takes over the newest published weights before each block."""

    def __init__(self, actor: Actor, weights: SharedWeights) -> None:
        super().__init__(actor)
        self._weights = weights

    def begin_block(self) -> None:
        """Loads the newest weights."""
        if self._weights.version != self.version:
            self.load(*self._weights.read())


def run_worker(spec: WorkerSpec, connection: Connection) -> None:
    """Does the work of a collector process, to its end.

    Args:
        spec: what to build and where its memory is.
        connection: to the learner; when it breaks, the learner is gone and this process ends.
    """
    work_for_learner(connection, lambda: _Worker(spec, connection))


class _Worker:
    """The loop of the process, with its connection and shared memory."""

    def __init__(self, spec: WorkerSpec, connection: Connection) -> None:
        self._connection = connection
        self._beat_s = time.monotonic()
        self._beat("building its environment and network")
        part = spec.collector
        self._blocks = spec.blocks
        self._policies: list[SyncedActor | InferenceClient]
        if spec.inference is None:
            actor = part.make_actor(part.seed)
            self._policies = [SyncedActor(actor, spec.weights)]
        else:
            self._policies = [InferenceClient(place, self._wait_for_decision) for place in spec.inference]
        size = part.block.num_cars // len(self._policies)
        seeds = np.random.SeedSequence(part.seed).generate_state(len(self._policies)).tolist()
        groups = [
            CarGroup(part.make_cars(size, at_line=False), policy, seed if len(seeds) > 1 else part.seed)
            for policy, seed in zip(self._policies, seeds, strict=True)
        ]
        self._collector = Collector(part.index, groups, part.block)

    def run(self) -> None:
        """Fills blocks until told to stop."""
        while True:
            started_s = time.monotonic()
            message = self._receive()
            if isinstance(message, Stop):
                break
            permitted_s = time.monotonic()
            for policy in self._policies:
                policy.begin_block()
            loaded_s = time.monotonic()
            filled = self._collector.fill(self._blocks[message.slot], message.moment, self._beat_when_due)
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

    def _beat_when_due(self) -> None:
        if time.monotonic() - self._beat_s > HEARTBEAT_S:
            self._beat("filling a block")

    def _beat(self, activity: str) -> None:
        self._beat_s = time.monotonic()
        self._connection.send(Heartbeat(activity))
