"""Who chooses a collector's actions: an actor in its own process, or central inference, which it asks.

Dimensions: N cars.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import numpy as np
from torch import Tensor

from rulka.agents.spec import Actor, Decision
from rulka.buffers.experience import BlockSpec
from rulka.runtime.messages import Answered, Ask
from rulka.runtime.process import HEARTBEAT_S
from rulka.runtime.shared_blocks import SharedBlocks
from rulka.runtime.weights import NO_VERSION, SharedWeights, WeightsLayout


class LocalActor:
    """An actor, and the version of the weights that it acts with."""

    def __init__(self, actor: Actor) -> None:
        self.version = NO_VERSION
        self.act, self.set_env_steps, self._load_network = actor.act, actor.set_env_steps, actor.load_network
        self.state_dict, self.load_state_dict = actor.state_dict, actor.load_state_dict

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights into the actor."""
        self._load_network(tensors)
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


@dataclass(frozen=True)
class InferencePlace:
    """A collector's place at central inference; picklable for a process that is being started.

    Attributes:
        desk_name: of the shared memory for what it sees and what it shall do: a block of one decision.
        connection: for questions and answers.
        first_question: number of its first question; no predecessor in this place came so far.
    """

    desk_name: str
    connection: Connection
    first_question: int


class PolicyClient:
    """Asks central inference, see `rulka.runtime.inference`, for every decision.

    Attributes:
        version: of the oldest weights that have answered in this block.
    """

    def __init__(self, place: InferencePlace, block: BlockSpec, on_wait: Callable[[], None]) -> None:
        """Prepares.

        Args:
            place: where to ask.
            block: shape of the collector's blocks.
            on_wait: called now and then while waiting; raises when there is no hope.
        """
        self._memory = SharedBlocks.attach(place.desk_name, replace(block, num_steps=1), 1)
        self._desk, self._connection, self._on_wait = self._memory[0], place.connection, on_wait
        self._number, self._env_steps = place.first_question, 0
        self.version = NO_VERSION

    def begin_block(self) -> None:
        """Forgets who answered in earlier blocks."""
        self.version = NO_VERSION

    def set_env_steps(self, env_steps: int) -> None:
        """Tells how many decisions all collectors have taken together, for schedules."""
        self._env_steps = env_steps

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Asks and waits for the answer; see `rulka.agents.spec.Actor`. Only exploring is known there."""
        assert explore
        desk = self._desk
        desk.image[0], desk.floats[0] = image.numpy(), floats.numpy()
        self._number += 1
        version = self._wait_for_answer()
        self.version = version if self.version == NO_VERSION else min(version, self.version)
        return Decision(
            desk.action[0].astype(np.int64), desk.log_prob[0].copy(), desk.value[0].copy(), desk.is_greedy[0].copy()
        )

    def _wait_for_answer(self) -> int:
        """Asks, again and again if need be, and returns the version of the weights that answered."""
        question = Ask(self._number, self._env_steps)
        self._connection.send(question)
        give_up_s = time.monotonic() + HEARTBEAT_S
        while True:
            if self._connection.poll(max(0.0, give_up_s - time.monotonic())):
                answer: Answered = self._connection.recv()
                if answer.number == self._number:
                    return answer.version
            else:  # the question may have died with the process that had read it
                self._on_wait()
                self._connection.send(question)
                give_up_s = time.monotonic() + HEARTBEAT_S
