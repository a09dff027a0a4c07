"""The process of one collector: waits for permission, fills a block, says so.

It builds its own environment and network, ignores Ctrl-C (its parent ends it), and dies with its parent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from rulka.agents.spec import Actor
from rulka.runtime.central import InferenceClient, MakeClient
from rulka.runtime.collector import CarGroup, Collector, LocalActor
from rulka.runtime.messages import Fill, Stop
from rulka.runtime.shared import SharedBlocks, SharedWeights
from rulka.runtime.specs import CollectorSpec
from rulka.runtime.supervisor import HEARTBEAT_S, Work


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
    """The loop of the process, with its connection and shared memory."""

    def __init__(
        self,
        part: CollectorSpec,
        blocks: SharedBlocks,
        weights: SharedWeights,
        inference: Sequence[MakeClient],
        connection: Connection,
    ) -> None:
        """Builds the collector.

        Args:
            part: what to build.
            blocks: its slots.
            weights: that the learner publishes.
            inference: the way to central inference of each group of cars; none lets the process choose actions itself.
            connection: to the learner.
        """
        super().__init__(connection, "building its environment and network")
        self._blocks = blocks
        self._policies: list[SyncedActor | InferenceClient]
        if inference:
            self._policies = [make(self._wait_for_decision) for make in inference]
        else:
            self._policies = [SyncedActor(part.make_actor(part.seed), weights)]
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
