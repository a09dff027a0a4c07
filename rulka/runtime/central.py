"""The learner's side of central inference: its process, and what lies between it and the collectors."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import cast

import numpy as np

from rulka.runtime.acting import InferencePlace
from rulka.runtime.inference import InferenceSpec, run_inference
from rulka.runtime.messages import InferenceTimes
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.specs import RunSpec
from rulka.runtime.supervisor import Supervisor
from rulka.runtime.weights import SharedWeights

REQUESTS_PER_START = 1 << 32
"""More than one process of a collector ever asks."""
_SEED_PURPOSE = 1 << 16
"""In the place of a collector's number, of which there are fewer."""


class CentralInference:
    """The process that chooses all collectors' actions, their request slots and their pipes to it."""

    def __init__(self, spec: RunSpec, weights: SharedWeights, num_starts: int, silence_limit_s: float) -> None:
        """Reserves the memory; `start` starts the process, and `stop` frees everything again.

        Args:
            spec: of the run.
            weights: to act with.
            num_starts: how often the run was started before.
            silence_limit_s: see `Supervisor`.
        """
        count = spec.train.num_collectors
        self._spec, self._weights, self._num_starts = spec, weights, num_starts
        self._slot_spec = replace(spec.block, num_steps=1)
        self._slots = [SharedBlocks.create(self._slot_spec, 1) for _ in range(count)]
        context = multiprocessing.get_context("spawn")
        self._pipes = [cast(tuple[Connection, Connection], context.Pipe()) for _ in range(count)]
        self._times: list[InferenceTimes] = []
        self._supervisor = Supervisor("inference", run_inference, self._make_spec, lambda _: None, silence_limit_s)

    @property
    def num_restarts(self) -> int:
        """How often the process was started again."""
        return self._supervisor.num_restarts

    @property
    def pids(self) -> list[int]:
        """Its process id."""
        return self._supervisor.pids

    @property
    def memory_names(self) -> list[str]:
        """Names of the shared memory of the request slots."""
        return [slot.name for slot in self._slots]

    def start(self) -> None:
        """Starts the process."""
        self._supervisor.start(1)

    def place_of(self, collector: int, num_restarts: int) -> InferencePlace:
        """Returns a collector's place here; no two that ever stood there number a request alike."""
        return InferencePlace(self._slots[collector].name, self._pipes[collector][0], num_restarts * REQUESTS_PER_START)

    def look_after(self) -> None:
        """Hears what the process says and starts it again when it has died.

        Raises:
            WorkerCrashError: if it has died too often.
        """
        self._times += [facts for _, facts in self._supervisor.receive(0.0) if isinstance(facts, InferenceTimes)]
        self._supervisor.replace_dead()

    def take_times(self) -> list[InferenceTimes]:
        """Returns what the process said of its time since the last call."""
        times, self._times = self._times, []
        return times

    def stop(self) -> None:
        """Ends the process and removes the shared memory; may be called again."""
        try:
            self._supervisor.stop()
        finally:
            for slot in self._slots:
                slot.close()
            for ends in self._pipes:
                for end in ends:
                    end.close()
            self._slots, self._pipes = [], []

    def _make_spec(self, _: int, num_restarts: int) -> InferenceSpec:
        numbers = [self._spec.train.seed, _SEED_PURPOSE, self._num_starts, num_restarts]
        return InferenceSpec(
            make_actor=self._spec.make_actor,
            device=self._spec.device,
            seed=int(np.random.SeedSequence(numbers).generate_state(1)[0]),
            slot=self._slot_spec,
            slot_names=tuple(slot.name for slot in self._slots),
            weights_name=self._weights.name,
            weights_layout=self._weights.layout,
            requests=tuple(theirs for _, theirs in self._pipes),
        )
