"""Central inference: policy workers choose the actions of collectors, in batches of whoever asks.

For actors on a GPU, and for games, where each collector drives one car. A collector writes what its cars see into its
*request slot* (shared memory: a block of one decision) and sends a `Request`; the actions are written into the slot,
and a `Response` says so. Whatever has been asked for by the time that the last batch is done becomes the next batch:
nobody waits for anybody. A collector may have several slots, each for a group of its cars: one group is stepped while
another is decided for. All its slots are at one policy worker; there can be several of these.

Weights are taken over between batches, so they may become newer in the middle of a block; the block then counts as made
by the oldest. A slot and both ends of its pipe belong to the learner's process, so that either side can die and be
replaced: a request without a response is sent again, and a response to an old one is recognised by its number.
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
from rulka.runtime.messages import Heartbeat, InferenceTimes, Request, Response, Stop
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
        slot: shape of a request slot, a block of one decision.
        slot_names: of the shared memory of the slots that this process serves.
        weights_name: of the shared memory with the weights.
        weights_layout: of the weights.
        requests: ends of the pipes, by slot.
    """

    make_actor: MakeActor
    seed: int
    device: torch.device
    slot: BlockSpec
    slot_names: tuple[str, ...]
    weights_name: str
    weights_layout: WeightsLayout
    requests: tuple[Connection, ...]


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
        self._connection, self._requests = connection, spec.requests
        connection.send(Heartbeat("building its network"))
        self._memory = [SharedBlocks.attach(name, spec.slot, 1) for name in spec.slot_names]
        self._slots = [memory[0] for memory in self._memory]
        self._weights = SharedWeights.attach(spec.weights_name, spec.weights_layout)
        self._actor = spec.make_actor(spec.seed, spec.device)
        # Reused for every batch: the actor has decided, and so copied it, before the next one is joined.
        rows = spec.slot.num_cars * len(self._slots)
        self._image = staging((rows, *spec.slot.image_shape), torch.uint8, spec.device)
        self._floats = staging((rows, spec.slot.num_floats), torch.float32, spec.device)
        self._version = NO_VERSION
        self._times, self._beat_s = InferenceTimes(), time.monotonic()

    def run(self) -> None:
        """Responds until told to stop."""
        while True:
            started_s = time.monotonic()
            ready = wait([self._connection, *self._requests], HEARTBEAT_S)
            self._times.waiting_s += time.monotonic() - started_s
            if self._connection in ready and isinstance(self._connection.recv(), Stop):
                break
            requests = {index: _newest(end) for index, end in enumerate(self._requests) if end in ready}
            if requests:
                self.respond(requests)
            self._beat_when_due()
        self.close()

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._slots.clear()
        for memory in self._memory:
            memory.close()
        self._weights.close()

    def respond(self, requests: Mapping[int, Request]) -> None:
        """Decides for the cars in some slots, by their numbers, and tells each asker."""
        started_s = time.monotonic()
        if self._weights.version != self._version:
            weights = self._weights.read()
            self._actor.load_network(weights.tensors)
            self._version = weights.version
        loaded_s = time.monotonic()
        slots = [self._slots[index] for index in requests]
        self._actor.set_moment(max(request.moment for request in requests.values()))
        image, floats = _join(slots, "image", self._image), _join(slots, "floats", self._floats)
        decision = self._actor.act(image, floats, explore=True)
        _write(slots, decision)
        for index, request in requests.items():
            self._requests[index].send(Response(request.number, self._version))
        self._times.loading_s += loaded_s - started_s
        self._times.acting_s += time.monotonic() - loaded_s
        self._times.num_batches += 1
        self._times.num_decisions += len(decision.action)

    def _beat_when_due(self) -> None:
        if time.monotonic() - self._beat_s < HEARTBEAT_S:
            return
        self._connection.send(self._times)
        self._times, self._beat_s = InferenceTimes(), time.monotonic()


def _newest(end: Connection) -> Request:
    """Takes all requests of a collector and returns the last; it waits for no response to an earlier one."""
    request: Request = end.recv()
    while end.poll():
        request = end.recv()
    return request


def _join(slots: Sequence[ExperienceBlock], name: str, memory: Tensor) -> Tensor:
    """Writes what the cars of some slots see into the first rows of [cars of all slots, ...] and returns these."""
    seen = [getattr(slot, name)[0] for slot in slots]
    joined = memory[: sum(map(len, seen))]
    np.concatenate(seen, out=joined.numpy())
    return joined


def _write(slots: Sequence[ExperienceBlock], decision: Decision) -> None:
    start = 0
    for slot in slots:
        cars = slice(start, start + slot.spec.num_cars)
        slot.action[0], slot.log_prob[0] = decision.action[cars], decision.log_prob[cars]
        slot.is_greedy[0] = decision.is_greedy[cars]
        start = cars.stop
