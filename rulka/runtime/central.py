"""The learner's side of central inference: its policy workers, and what lies between them and the collectors."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import cast

import numpy as np

from rulka.buffers.experience import BlockSpec
from rulka.runtime.acting import InferencePlace
from rulka.runtime.inference import InferenceSpec, run_inference
from rulka.runtime.messages import InferenceTimes
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.specs import RunSpec
from rulka.runtime.supervisor import Supervisor
from rulka.runtime.weights import SharedWeights

REQUESTS_PER_START = 1 << 32
"""More than one process of a collector ever asks."""
DRAIN_BYTES = 1 << 16
_SEED_PURPOSE = 1 << 16
"""In the place of a collector's number, of which there are fewer."""


class CentralInference:
    """The processes that choose all collectors' actions, their request slots and their pipes to them.

    Each collector has a *place* for each of its groups of cars, and all its places at one of the policy workers.
    """

    def __init__(self, spec: RunSpec, weights: SharedWeights, num_starts: int, silence_limit_s: float) -> None:
        """Reserves the memory; `start` starts the processes, and `stop` frees everything again.

        Args:
            spec: of the run.
            weights: to act with.
            num_starts: how often the run was started before.
            silence_limit_s: see `Supervisor`.
        """
        count = spec.train.num_collectors * spec.train.car_groups
        self._spec, self._weights, self._num_starts = spec, weights, num_starts
        self._slot_spec = _slot_spec(spec)
        self._slots = [SharedBlocks.create(self._slot_spec, 1) for _ in range(count)]
        context = multiprocessing.get_context("spawn")
        self._pipes = [cast(tuple[Connection, Connection], context.Pipe()) for _ in range(count)]
        self._times: list[InferenceTimes] = []
        self._supervisor = Supervisor("policy worker", run_inference, self._make_spec, self._forget, silence_limit_s)

    @property
    def num_restarts(self) -> int:
        """How often a process was started again."""
        return self._supervisor.num_restarts

    @property
    def pids(self) -> list[int]:
        """Process ids, by policy worker."""
        return self._supervisor.pids

    @property
    def memory_names(self) -> list[str]:
        """Names of the shared memory of the request slots."""
        return [slot.name for slot in self._slots]

    def start(self) -> None:
        """Starts the processes."""
        self._supervisor.start(self._spec.train.policy_workers)

    def places_of(self, collector: int, num_restarts: int) -> tuple[InferencePlace, ...]:
        """Returns a collector's places here; no two that ever stood there number a request alike."""
        first = num_restarts * REQUESTS_PER_START
        return tuple(
            InferencePlace(self._slots[place].name, self._slot_spec, self._pipes[place][0], first)
            for place in self._places(collector)
        )

    def forget_collector(self, collector: int) -> None:
        """Takes away the responses that a collector which is gone has not read, before its successor starts."""
        for place in self._places(collector):
            _drain(self._pipes[place][0])

    def _forget(self, worker: int) -> None:
        """Takes away the requests that a policy worker which is gone has not read; they are sent again."""
        for place in self._served_by(worker):
            _drain(self._pipes[place][1])

    def _served_by(self, worker: int) -> list[int]:
        train = self._spec.train
        served = range(worker, train.num_collectors, train.policy_workers)
        return [place for collector in served for place in self._places(collector)]

    def _places(self, collector: int) -> range:
        groups = self._spec.train.car_groups
        return range(collector * groups, (collector + 1) * groups)

    def look_after(self) -> None:
        """Hears what the processes say and starts those again that have died.

        Raises:
            WorkerCrashError: if one has died too often.
        """
        self._times += [facts for _, facts in self._supervisor.receive(0.0) if isinstance(facts, InferenceTimes)]
        self._supervisor.replace_dead()

    def take_times(self) -> list[InferenceTimes]:
        """Returns what the processes said of their time since the last call."""
        times, self._times = self._times, []
        return times

    def stop(self) -> None:
        """Ends the processes and removes the shared memory; may be called again."""
        try:
            self._supervisor.stop()
        finally:
            for slot in self._slots:
                slot.close()
            for ends in self._pipes:
                for end in ends:
                    end.close()
            self._slots, self._pipes = [], []

    def _make_spec(self, worker: int, num_restarts: int) -> InferenceSpec:
        train = self._spec.train
        number = self._spec.first_collector + worker  # workers of other learners have others: there are no more of them
        numbers = [train.seed, _SEED_PURPOSE + number, self._num_starts, num_restarts]
        places = self._served_by(worker)
        return InferenceSpec(
            make_actor=self._spec.collecting_actor,
            device=self._spec.device,
            seed=int(np.random.SeedSequence(numbers).generate_state(1)[0]),
            slot=self._slot_spec,
            slot_names=tuple(self._slots[place].name for place in places),
            weights_name=self._weights.name,
            weights_layout=self._weights.layout,
            requests=tuple(self._pipes[place][1] for place in places),
        )


def _drain(end: Connection) -> None:
    """Empties a pipe: what a reader that was killed has left of a message would pass for the next ones."""
    if sys.platform == "win32":  # there, messages are read whole
        return
    while end.poll() and os.read(end.fileno(), DRAIN_BYTES):
        pass


def _slot_spec(spec: RunSpec) -> BlockSpec:
    return replace(spec.block, num_steps=1, num_cars=spec.block.num_cars // spec.train.car_groups)


def request_bytes(spec: RunSpec) -> int:
    """Returns how much shared memory all request slots of a run take."""
    return spec.train.num_collectors * spec.train.car_groups * _slot_spec(spec).num_bytes
