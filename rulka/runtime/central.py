"""Central inference: one policy worker computes the actions of all collectors, in batches of pending requests.

For actors on a GPU, and for games, where each collector drives one car. A collector writes its cars' observations into
its *request slot* (shared memory: a block of one decision) and sends a `Request`. The worker writes the actions into
the slot and sends a `Response`. The requests that arrive during one batch form the next; no batch waits for more.

The worker loads new weights between batches, so they may change in the middle of a block; the block's version is then
the oldest. A slot and both ends of its pipe belong to the learner's process, so that either side can die and be
replaced: a request without a response is sent again, and a stale response is recognised by its number.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import cast

import numpy as np
import torch
from torch import Tensor

from rulka.agents.shared.acting import NetworkActor
from rulka.agents.shared.spec import Decision
from rulka.buffers.experience import ExperienceBlock
from rulka.contracts.schedule import Moment
from rulka.machine.device import staging
from rulka.runtime.messages import Request, Response, Stop
from rulka.runtime.shared import NO_VERSION, SharedBlocks, SharedWeights
from rulka.runtime.specs import RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, MakeWork, Supervisor, Work

REQUESTS_PER_START = 1 << 32
"""Request numbers reserved for each start of a collector; no process sends as many."""
DRAIN_BYTES = 1 << 16
_SEED_PURPOSE = 1 << 16
"""Stands for the collector index in a policy worker's seed; larger than any such index."""


# The collector's side ---------------------------------------------------------------------------------------------


class InferenceClient:
    """Requests every decision from central inference.

    Attributes:
        version: oldest version of the weights that acted in this block.
    """

    def __init__(
        self, slot: SharedBlocks, connection: Connection, first_request: int, on_wait: Callable[[], None]
    ) -> None:
        """Takes the slot and the pipe.

        Args:
            slot: request slot of this collector, a block of one decision.
            connection: for requests and responses.
            first_request: requests are numbered above this, which no predecessor in this slot has exceeded.
            on_wait: called about every `HEARTBEAT_S` while waiting; may raise to give up.
        """
        self._slot, self._connection, self._on_wait = slot[0], connection, on_wait
        self._number, self._moment = first_request, Moment(0)
        self.version = NO_VERSION

    def begin_block(self, _version: int | None) -> None:
        """Resets `version` for a new block, which always starts with the newest weights."""
        self.version = NO_VERSION

    def set_moment(self, moment: Moment) -> None:
        """Sets the run's progress, for schedules."""
        self._moment = moment

    def act(self, image: Tensor, floats: Tensor) -> Decision:
        """Requests actions and waits for them: image [N, L, H, W] uint8, floats [N, F] float32."""
        slot = self._slot
        slot.image[0], slot.floats[0] = image.numpy(), floats.numpy()
        self._number += 1
        self._connection.send(Request(self._number, self._moment))
        version = self._wait_for_response()
        self.version = version if self.version == NO_VERSION else min(version, self.version)
        action = slot.action[0].copy() if slot.spec.continuous else slot.action[0].astype(np.int64)
        return Decision(action, slot.log_prob[0].copy(), slot.is_greedy[0].copy())

    def _wait_for_response(self) -> int:
        """Returns the version of the weights that acted; repeats the request if necessary."""
        give_up_s = time.monotonic() + HEARTBEAT_S
        while True:
            if self._connection.poll(max(0.0, give_up_s - time.monotonic())):
                response: Response = self._connection.recv()
                if response.number == self._number:
                    return response.version
            else:  # the worker may have died after reading the request
                self._on_wait()
                self._connection.send(Request(self._number, self._moment))
                give_up_s = time.monotonic() + HEARTBEAT_S


MakeClient = Callable[[Callable[[], None]], InferenceClient]
"""Builds a client from `on_wait`, in the collector's process; picklable."""


# The policy worker -------------------------------------------------------------------------------------------------


class Inference(Work):
    """The policy worker's loop."""

    def __init__(
        self,
        make_actor: Callable[[], NetworkActor],
        device: torch.device,
        slots: Sequence[SharedBlocks],
        weights: SharedWeights,
        requests: Sequence[Connection],
        connection: Connection,
    ) -> None:
        """Builds the actor.

        Args:
            make_actor: builds the actor.
            device: of its network.
            slots: request slots of all collectors, each a block of one decision.
            weights: to act with.
            requests: the worker's pipe ends, by slot.
            connection: to the learner.
        """
        super().__init__(connection, "building its network")
        self._requests, self._weights = requests, weights
        self._slots = [memory[0] for memory in slots]
        self._actor = make_actor()
        # Reused for every batch: the actor has decided, and so copied its inputs, before the next batch is assembled.
        shape = self._slots[0].spec
        rows = shape.num_cars * len(self._slots)
        self._image = staging((rows, *shape.image_shape), torch.uint8, device)
        self._floats = staging((rows, shape.num_floats), torch.float32, device)
        self._version = NO_VERSION

    def run(self) -> None:
        """Serves requests until told to stop."""
        while True:
            ready = wait([self._connection, *self._requests], HEARTBEAT_S)
            if self._connection in ready and isinstance(self._connection.recv(), Stop):
                break
            requests = {index: _newest(end) for index, end in enumerate(self._requests) if end in ready}
            if requests:
                self.respond(requests)
            self._beat_when_due("responding")

    def respond(self, requests: Mapping[int, Request]) -> None:
        """Computes one batch of actions for these requests, by slot, and sends the responses."""
        if self._weights.version != self._version:
            weights = self._weights.read()
            self._actor.load_network(weights.tensors)
            self._version = weights.version
        slots = [self._slots[index] for index in requests]
        self._actor.set_moment(max(request.moment for request in requests.values()))
        image, floats = _join(slots, "image", self._image), _join(slots, "floats", self._floats)
        decision = self._actor.act(image, floats, explore=True)
        _write(slots, decision)
        for index, request in requests.items():
            self._requests[index].send(Response(request.number, self._version))


def _newest(end: Connection) -> Request:
    """Drains a collector's requests and returns the last; the collector no longer waits for earlier ones."""
    request: Request = end.recv()
    while end.poll():
        request = end.recv()
    return request


def _join(slots: Sequence[ExperienceBlock], name: str, memory: Tensor) -> Tensor:
    """Concatenates an observation array of some slots into the first rows of `memory`; returns these rows."""
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


# The learner's side ------------------------------------------------------------------------------------------------


class CentralInference:
    """The learner's side: the policy worker process, the request slots and the pipes."""

    def __init__(self, spec: RunSpec, weights: SharedWeights, num_starts: int) -> None:
        """Reserves the memory; `start` starts the process, and `stop` frees everything.

        Args:
            spec: of the run.
            weights: to act with.
            num_starts: number of earlier starts of the run.
        """
        count = spec.train.num_collectors
        self._spec, self._weights, self._num_starts = spec, weights, num_starts
        self._slots = [SharedBlocks(replace(spec.block, num_steps=1), 1) for _ in range(count)]
        context = multiprocessing.get_context("spawn")
        self._pipes = [cast(tuple[Connection, Connection], context.Pipe()) for _ in range(count)]
        self._supervisor = Supervisor("policy worker", self._make_work, self._forget)

    @property
    def num_restarts(self) -> int:
        """Number of restarts of the process."""
        return self._supervisor.num_restarts

    def start(self) -> None:
        """Starts the process."""
        self._supervisor.start(1)

    def client_of(self, collector: int, num_restarts: int) -> MakeClient:
        """Returns a collector's client factory; request numbers are unique across its restarts."""
        first = num_restarts * REQUESTS_PER_START
        return partial(InferenceClient, self._slots[collector], self._pipes[collector][0], first)

    def forget_collector(self, collector: int) -> None:
        """Discards responses that a dead collector has not read, before its successor starts."""
        _drain(self._pipes[collector][0])

    def _forget(self, _worker: int) -> None:
        """Discards requests that a dead policy worker has not read; the collectors send them again."""
        for _, end in self._pipes:
            _drain(end)

    def look_after(self) -> None:
        """Receives the process's messages and restarts it if it has died.

        Raises:
            WorkerCrashError: if it has crashed too often.
        """
        self._supervisor.receive(0.0)
        self._supervisor.replace_dead()

    def stop(self) -> None:
        """Ends the process; idempotent."""
        try:
            self._supervisor.stop()
        finally:
            for ends in self._pipes:
                for end in ends:
                    end.close()
            self._slots, self._pipes = [], []

    def _make_work(self, _worker: int, num_restarts: int) -> MakeWork:
        spec = self._spec
        # The first collector's index differs between learners, and so do their policy workers' seeds.
        numbers = [spec.train.seed, _SEED_PURPOSE + spec.first_collector, self._num_starts, num_restarts]
        seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
        make_actor = partial(spec.collecting_actor, seed, spec.device)
        ends = [end for _, end in self._pipes]
        return partial(Inference, make_actor, spec.device, self._slots, self._weights, ends)


def _drain(end: Connection) -> None:
    """Empties a pipe: part of a message left by a killed reader would be taken for the next messages."""
    if sys.platform == "win32":  # its pipes read whole messages
        return
    while end.poll() and os.read(end.fileno(), DRAIN_BYTES):
        pass


def request_bytes(spec: RunSpec) -> int:
    """Returns the shared memory of all request slots of a run, in bytes."""
    return spec.train.num_collectors * replace(spec.block, num_steps=1).num_bytes
