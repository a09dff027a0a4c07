"""What chooses a collector's actions: an actor in its own process, or a client of central inference.

Dimensions: N cars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from torch import Tensor

from rulka.agents.spec import Actor, Decision
from rulka.buffers.experience import BlockSpec
from rulka.runtime.messages import Request, Response
from rulka.runtime.process import HEARTBEAT_S
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.weights import NO_VERSION, SharedWeights, WeightsLayout
from rulka.schedule import Moment


class LocalActor:
    """An actor, and the version of the weights that it acts with."""

    def __init__(self, actor: Actor) -> None:
        self.version = NO_VERSION
        self.set_moment = actor.set_moment
        self.state_dict, self.load_state_dict = actor.state_dict, actor.load_state_dict
        self._actor = actor

    def ask(self, image: Tensor, floats: Tensor) -> None:
        """Decides at once, exploring: image [N, L, H, W] uint8, floats [N, F] float32."""
        self._decision = self._actor.act(image, floats, explore=True)

    def answer(self) -> Decision:
        """Returns what was decided."""
        return self._decision

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights into the actor."""
        self._actor.load_network(tensors)
        self.version = version


class SyncedActor(LocalActor):
    """An actor that takes over the newest published weights before each block."""

    def __init__(self, actor: Actor, weights_name: str, layout: WeightsLayout) -> None:
        super().__init__(actor)
        self._weights = SharedWeights.attach(weights_name, layout)

    def begin_block(self) -> None:
        """Loads the newest weights."""
        if self._weights.version != self.version:
            self.load(*self._weights.read())

    def close(self) -> None:
        """Lets go of the shared memory."""
        self._weights.close()


@dataclass(frozen=True)
class InferencePlace:
    """The place of a group of cars at central inference; picklable for a process that is being started.

    Attributes:
        slot_name: of the shared memory of its request slot.
        slot: the slot's shape, a block of one decision.
        connection: for requests and responses.
        first_request: number of its first request; no predecessor in this place came so far.
    """

    slot_name: str
    slot: BlockSpec
    connection: Connection
    first_request: int


class InferenceClient:
    """Asks central inference, see `rulka.runtime.inference`, for every decision.

    Attributes:
        version: of the oldest weights that have acted in this block.
    """

    def __init__(self, place: InferencePlace, on_wait: Callable[[], None]) -> None:
        """Prepares.

        Args:
            place: where to ask.
            on_wait: called now and then while waiting; raises when there is no hope.
        """
        self._memory = SharedBlocks.attach(place.slot_name, place.slot, 1)
        self._slot, self._connection, self._on_wait = self._memory[0], place.connection, on_wait
        self._number, self._moment = place.first_request, Moment(0)
        self.version = NO_VERSION

    def begin_block(self) -> None:
        """Forgets which weights acted in earlier blocks."""
        self.version = NO_VERSION

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the run has come, for schedules."""
        self._moment = moment

    def ask(self, image: Tensor, floats: Tensor) -> None:
        """Requests actions for cars that see this; image [N, L, H, W] uint8, floats [N, F] float32."""
        self._slot.image[0], self._slot.floats[0] = image.numpy(), floats.numpy()
        self._number += 1
        self._connection.send(Request(self._number, self._moment))

    def answer(self) -> Decision:
        """Waits for the actions that were requested."""
        slot, version = self._slot, self._wait_for_response()
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

    def close(self) -> None:
        """Lets go of the shared memory."""
        del self._slot  # its arrays are that memory
        self._memory.close()
