"""Central inference: one process chooses the actions of all collectors, in batches of whoever asks.

For actors on a GPU, and for games, where each collector drives one car. A collector lays what its cars see on a *desk*
(shared memory: a block of one decision) and sends `Ask`; the answer is written on the desk, and `Answered` says so.
Whatever has been asked by the time that the last batch is done becomes the next batch: nobody waits for anybody.

Weights are taken over between batches, so they may become newer in the middle of a block; the block then counts as made
by the oldest. A desk and both ends of its pipe belong to the learner's process, so that either side can die and be
replaced: an answer that does not come is asked for again, and one to an old question is recognised by its number.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import numpy as np
import torch
from torch import Tensor

from rulka.agents.spec import Decision
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.device import staging
from rulka.runtime.messages import Answered, Ask, Heartbeat, InferenceTimes, Stop
from rulka.runtime.process import HEARTBEAT_S, work_for_learner
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.specs import MakeActor
from rulka.runtime.weights import NO_VERSION, SharedWeights, WeightsLayout


@dataclass(frozen=True)
class InferenceSpec:
    """All that the process needs; picklable.

    Attributes:
        make_actor: builds the actor.
        seed: of its exploration.
        device: where it computes.
        desk: shape of a desk, a block of one decision.
        desk_names: of the shared memory of each collector's.
        weights_name: of the shared memory with the weights.
        weights_layout: of the weights.
        questions: ends of the collectors' pipes.
    """

    make_actor: MakeActor
    seed: int
    device: torch.device
    desk: BlockSpec
    desk_names: tuple[str, ...]
    weights_name: str
    weights_layout: WeightsLayout
    questions: tuple[Connection, ...]


def run_inference(spec: InferenceSpec, connection: Connection) -> None:
    """Does the work of the process, to its end.

    Args:
        spec: what to build, and where its memory is.
        connection: to the learner; when it breaks, the learner is gone and this process ends.
    """
    work_for_learner(connection, lambda: Inference(spec, connection))


class Inference:
    """The loop of the process."""

    def __init__(self, spec: InferenceSpec, connection: Connection) -> None:
        self._connection, self._questions = connection, spec.questions
        connection.send(Heartbeat("building its network"))
        self._memory = [SharedBlocks.attach(name, spec.desk, 1) for name in spec.desk_names]
        self._desks = [memory[0] for memory in self._memory]
        self._weights = SharedWeights.attach(spec.weights_name, spec.weights_layout)
        self._actor = spec.make_actor(spec.seed, spec.device)
        # Reused for every batch: the actor has decided, and so copied it, before the next one is joined.
        rows = spec.desk.num_cars * len(self._desks)
        self._image = staging((rows, 1, spec.desk.height, spec.desk.width), torch.uint8, spec.device)
        self._floats = staging((rows, spec.desk.num_floats), torch.float32, spec.device)
        self._version = NO_VERSION
        self._times, self._beat_s = InferenceTimes(), time.monotonic()

    def run(self) -> None:
        """Answers until told to stop."""
        while True:
            started_s = time.monotonic()
            ready = wait([self._connection, *self._questions], HEARTBEAT_S)
            self._times.waiting_s += time.monotonic() - started_s
            if self._connection in ready and isinstance(self._connection.recv(), Stop):
                break
            asked = {index: _newest(end) for index, end in enumerate(self._questions) if end in ready}
            if asked:
                self.answer(asked)
            self._beat_when_due()
        self.close()

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._desks.clear()
        for memory in self._memory:
            memory.close()
        self._weights.close()

    def answer(self, asked: Mapping[int, Ask]) -> None:
        """Decides for the cars on the desks of some collectors, by their numbers, and says so to each."""
        started_s = time.monotonic()
        if self._weights.version != self._version:
            weights = self._weights.read()
            self._actor.load_network(weights.tensors)
            self._version = weights.version
        loaded_s = time.monotonic()
        desks = [self._desks[index] for index in asked]
        self._actor.set_env_steps(max(ask.env_steps for ask in asked.values()))
        image, floats = _join(desks, "image", self._image), _join(desks, "floats", self._floats)
        decision = self._actor.act(image, floats, explore=True)
        _write(desks, decision)
        for index, ask in asked.items():
            self._questions[index].send(Answered(ask.number, self._version))
        self._times.loading_s += loaded_s - started_s
        self._times.acting_s += time.monotonic() - loaded_s
        self._times.num_batches += 1
        self._times.num_decisions += len(decision.action)

    def _beat_when_due(self) -> None:
        if time.monotonic() - self._beat_s < HEARTBEAT_S:
            return
        self._connection.send(self._times)
        self._times, self._beat_s = InferenceTimes(), time.monotonic()


def _newest(end: Connection) -> Ask:
    """Takes all questions of a collector and returns the last; it waits for no answer to an earlier one."""
    ask: Ask = end.recv()
    while end.poll():
        ask = end.recv()
    return ask


def _join(desks: Sequence[ExperienceBlock], name: str, memory: Tensor) -> Tensor:
    """Writes what the cars of some desks see into the first rows of [cars of all desks, ...] and returns these."""
    seen = [getattr(desk, name)[0] for desk in desks]
    joined = memory[: sum(map(len, seen))]
    np.concatenate(seen, out=joined.numpy())
    return joined


def _write(desks: Sequence[ExperienceBlock], decision: Decision) -> None:
    start = 0
    for desk in desks:
        cars = slice(start, start + desk.spec.num_cars)
        desk.action[0], desk.log_prob[0] = decision.action[cars], decision.log_prob[cars]
        desk.value[0], desk.is_greedy[0] = decision.value[cars], decision.is_greedy[cars]
        start = cars.stop
