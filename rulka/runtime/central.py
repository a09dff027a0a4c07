"""Central inference: a policy worker chooses the actions of all collectors, in batches of whoever asks.

For actors on a GPU, and for games, where each collector drives one car. A collector writes what its cars see into its
*request slot* (shared memory: a block of one decision) and sends a `Request`; the actions are written into the slot,
and a `Response` says so. Whatever has been asked for by the time that the last batch is done becomes the next batch:
nobody waits for anybody.

Weights are taken over between batches, so they may become newer in the middle of a block; the block then counts as made
by the oldest. A slot and both ends of its pipe belong to the learner's process, so that either side can die and be
replaced: a request without a response is sent again, and a response to an old one is recognised by its number.
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
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rulka.agents.spec import Actor, Decision
from rulka.buffers.experience import BlockSpec, ExperienceBlock
from rulka.device import staging
from rulka.runtime.messages import Request, Response, Stop
from rulka.runtime.shared import NO_VERSION, SharedBlocks, SharedWeights
from rulka.runtime.specs import RunSpec
from rulka.runtime.supervisor import HEARTBEAT_S, MakeWork, Supervisor, Work
from rulka.schedule import Moment

REQUESTS_PER_START = 1 << 32
"""More than one process of a collector ever asks."""
DRAIN_BYTES = 1 << 16
_SEED_PURPOSE = 1 << 16
"""In the place of a collector's number, of which there are fewer."""


# The collector's side ---------------------------------------------------------------------------------------------


class InferenceClient:
    """Asks central inference, for every decision.

    Attributes:
        version: of the oldest weights that have acted in this block.
    """

    def __init__(
        self, slot: SharedBlocks, connection: Connection, first_request: int, on_wait: Callable[[], None]
    ) -> None:
        """Prepares.

        Args:
            slot: its request slot, a block of one decision.
            connection: for requests and responses.
            first_request: number of its first request; no predecessor in this place came so far.
            on_wait: called now and then while waiting; raises when there is no hope.
        """
        self._slot, self._connection, self._on_wait = slot[0], connection, on_wait
        self._number, self._moment = first_request, Moment(0)
        self.version = NO_VERSION

    def begin_block(self, _version: int | None) -> None:
        """Forgets which weights acted in earlier blocks; those of the next one are the newest."""
        self.version = NO_VERSION

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the run has come, for schedules."""
        self._moment = moment

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: what the other process decides depends on who else asks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes nothing."""

    def act(self, image: Tensor, floats: Tensor) -> Decision:
        """Requests actions for cars that see this, and waits: image [N, L, H, W] uint8, floats [N, F] float32."""
        slot = self._slot
        slot.image[0], slot.floats[0] = image.numpy(), floats.numpy()
        self._number += 1
        self._connection.send(Request(self._number, self._moment))
        version = self._wait_for_response()
        self.version = version if self.version == NO_VERSION else min(version, self.version)
        action = slot.action[0].copy() if slot.spec.continuous else slot.action[0].astype(np.int64)
        return Decision(action, slot.log_prob[0].copy(), slot.is_greedy[0].copy())

    def _wait_for_response(self) -> int:
        """Returns the version of the weights that acted; sends the request again if need be."""
        give_up_s = time.monotonic() + HEARTBEAT_S
        while True:
            if self._connection.poll(max(0.0, give_up_s - time.monotonic())):
                response: Response = self._connection.recv()
                if response.number == self._number:
                    return response.version
            else:  # the request may have died with the process that had read it
                self._on_wait()
                self._connection.send(Request(self._number, self._moment))
                give_up_s = time.monotonic() + HEARTBEAT_S


MakeClient = Callable[[Callable[[], None]], InferenceClient]
"""Builds one in the process of the collector, from `on_wait`; picklable."""


# The policy worker -------------------------------------------------------------------------------------------------


class Inference(Work):
    """The loop of the process."""

    def __init__(
        self,
        make_actor: Callable[[], Actor],
        device: torch.device,
        slots: Sequence[SharedBlocks],
        weights: SharedWeights,
        requests: Sequence[Connection],
        connection: Connection,
    ) -> None:
        """Builds the actor.

        Args:
            make_actor: builds it.
            device: where it computes.
            slots: request slots of all collectors, each a block of one decision.
            weights: to act with.
            requests: ends of the pipes, by slot.
            connection: to the learner.
        """
        super().__init__(connection, "building its network")
        self._requests, self._weights = requests, weights
        self._slots = [memory[0] for memory in slots]
        self._actor = make_actor()
        # Reused for every batch: the actor has decided, and so copied it, before the next one is joined.
        shape = self._slots[0].spec
        rows = shape.num_cars * len(self._slots)
        self._image = staging((rows, *shape.image_shape), torch.uint8, device)
        self._floats = staging((rows, shape.num_floats), torch.float32, device)
        self._version = NO_VERSION

    def run(self) -> None:
        """Responds until told to stop."""
        while True:
            ready = wait([self._connection, *self._requests], HEARTBEAT_S)
            if self._connection in ready and isinstance(self._connection.recv(), Stop):
                break
            requests = {index: _newest(end) for index, end in enumerate(self._requests) if end in ready}
            if requests:
                self.respond(requests)
            self._beat_when_due("responding")

    def respond(self, requests: Mapping[int, Request]) -> None:
        """Decides for the cars in some slots, by their numbers, and tells each asker."""
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


# The learner's side ------------------------------------------------------------------------------------------------


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
        self._slots = [SharedBlocks(_slot_spec(spec), 1) for _ in range(count)]
        context = multiprocessing.get_context("spawn")
        self._pipes = [cast(tuple[Connection, Connection], context.Pipe()) for _ in range(count)]
        self._supervisor = Supervisor("policy worker", self._make_work, self._forget, silence_limit_s)

    @property
    def num_restarts(self) -> int:
        """How often the process was started again."""
        return self._supervisor.num_restarts

    def start(self) -> None:
        """Starts the process."""
        self._supervisor.start(1)

    def client_of(self, collector: int, num_restarts: int) -> MakeClient:
        """Returns what asks for a collector; no two that ever stood there number a request alike."""
        first = num_restarts * REQUESTS_PER_START
        return partial(InferenceClient, self._slots[collector], self._pipes[collector][0], first)

    def forget_collector(self, collector: int) -> None:
        """Takes away the responses that a collector which is gone has not read, before its successor starts."""
        _drain(self._pipes[collector][0])

    def _forget(self, _worker: int) -> None:
        """Takes away the requests that a policy worker which is gone has not read; they are sent again."""
        for _, end in self._pipes:
            _drain(end)

    def look_after(self) -> None:
        """Hears what the process says and starts it again if it has died.

        Raises:
            WorkerCrashError: if it has died too often.
        """
        self._supervisor.receive(0.0)
        self._supervisor.replace_dead()

    def stop(self) -> None:
        """Ends the process; may be called again."""
        try:
            self._supervisor.stop()
        finally:
            for ends in self._pipes:
                for end in ends:
                    end.close()
            self._slots, self._pipes = [], []

    def _make_work(self, _worker: int, num_restarts: int) -> MakeWork:
        spec = self._spec
        # The first collector's number: another learner's policy worker has another one.
        numbers = [spec.train.seed, _SEED_PURPOSE + spec.first_collector, self._num_starts, num_restarts]
        seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
        make_actor = partial(spec.collecting_actor, seed, spec.device)
        ends = [end for _, end in self._pipes]
        return partial(Inference, make_actor, spec.device, self._slots, self._weights, ends)


def _drain(end: Connection) -> None:
    """Empties a pipe: what a reader that was killed has left of a message would pass for the next ones."""
    if sys.platform == "win32":  # there, messages are read whole
        return
    while end.poll() and os.read(end.fileno(), DRAIN_BYTES):
        pass


def _slot_spec(spec: RunSpec) -> BlockSpec:
    return replace(spec.block, num_steps=1)


def request_bytes(spec: RunSpec) -> int:
    """Returns how much shared memory all request slots of a run take."""
    return spec.train.num_collectors * _slot_spec(spec).num_bytes
