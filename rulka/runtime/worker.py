"""The process of one collector: waits for permission, fills a block, says so.

It builds its own environment and network, ignores Ctrl-C (its parent ends it), and dies with its parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from rulka.runtime.collector import Collector
from rulka.runtime.messages import BlockFilled, CollectorTimes, Failed, Fill, Heartbeat, Stop, ToCollector
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.specs import CollectorSpec
from rulka.runtime.weights import NO_VERSION, SharedWeights, WeightsLayout

HEARTBEAT_S = 1.0
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


@dataclass(frozen=True)
class WorkerSpec:
    """All that the process needs; picklable.

    Attributes:
        collector: what to build.
        blocks_name: of the shared memory with its slots.
        num_slots: how many there are.
        weights_name: of the shared memory with the weights.
        weights_layout: of the weights.
        parent_pid: process without which this one shall not go on.
    """

    collector: CollectorSpec
    blocks_name: str
    num_slots: int
    weights_name: str
    weights_layout: WeightsLayout
    parent_pid: int


def run_worker(spec: WorkerSpec, connection: Connection) -> None:
    """Is the whole work of a collector process.

    Args:
        spec: what to build and where its memory is.
        connection: to the learner; when it breaks, the learner is gone and this process ends.
    """
    tie_to_parent(spec.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    code = 0
    try:
        worker = _Worker(spec, connection)
        worker.run()
    except (EOFError, ConnectionError):  # the learner is gone
        code = 1
    except Exception:
        with suppress(ConnectionError):
            connection.send(Failed(traceback.format_exc()))
        code = 1
    os._exit(code)  # there is nothing to tidy up, and views into shared memory would complain if one tried


def tie_to_parent(parent_pid: int) -> None:
    """Lets the system kill this process when its parent dies, where it can; ends it if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(0)


class _Worker:
    """The loop of the process, with its connection and shared memory."""

    def __init__(self, spec: WorkerSpec, connection: Connection) -> None:
        self._connection, self._parent_pid = connection, spec.parent_pid
        self._beat_s = time.monotonic()
        self._beat("building its environment and network")
        part = spec.collector
        self._blocks = SharedBlocks.attach(spec.blocks_name, part.block, spec.num_slots)
        self._weights = SharedWeights.attach(spec.weights_name, spec.weights_layout)
        environment = part.make_cars(part.block.num_cars, start_anywhere=part.start_anywhere)
        actor = part.make_actor(part.seed)
        self._collector = Collector(part.index, environment, actor, part.block, part.seed)
        self._collector.version = NO_VERSION

    def run(self) -> None:
        """Fills blocks until told to stop."""
        while True:
            started_s = time.monotonic()
            message = self._receive()
            if isinstance(message, Stop):
                break
            permitted_s = time.monotonic()
            self._take_weights()
            loaded_s = time.monotonic()
            races = self._collector.fill(self._blocks[message.slot], message.env_steps, self._beat_when_due)
            filled = BlockFilled(
                slot=message.slot,
                version=self._collector.version,
                races=races,
                cars=self._collector.cars.copy(),
                spent=CollectorTimes(
                    waiting_s=permitted_s - started_s,
                    loading_s=loaded_s - permitted_s,
                    acting_s=self._collector.acting_s,
                    simulating_s=self._collector.simulating_s,
                ),
            )
            self._connection.send(filled)
        self._collector.close()

    def _receive(self) -> Fill | Stop:
        """Waits for the next message, with a sign of life every `HEARTBEAT_S`; blocks in the system, never spins."""
        while not self._connection.poll(HEARTBEAT_S):
            self._beat("waiting for permission to fill a block")
            if os.getppid() != self._parent_pid:
                raise EOFError
        message: ToCollector = self._connection.recv()
        return message

    def _take_weights(self) -> None:
        if self._weights.version != self._collector.version:
            weights = self._weights.read()
            self._collector.load_weights(weights.version, weights.tensors)

    def _beat_when_due(self) -> None:
        if time.monotonic() - self._beat_s > HEARTBEAT_S:
            self._beat("filling a block")

    def _beat(self, activity: str) -> None:
        self._beat_s = time.monotonic()
        self._connection.send(Heartbeat(activity))
