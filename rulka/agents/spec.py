"""The specification of an agent, and the interfaces of actors and of learners in two processes.

An *actor* chooses actions in a collector; a *learner* turns experience into weights. Neither knows of processes.
Dimensions: N cars, L frames seen at once, H x W pixels, F floats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoders.config import EncoderConfig
from rulka.actions import ActionSpace, Choices
from rulka.agents.network_params import NetworkParams
from rulka.agents.networks import BuildNetwork, seeded
from rulka.agents.params import Algorithm, AlgorithmParams
from rulka.agents.precision import ActingPrecision, Precision
from rulka.buffers.experience import ExperienceBlock
from rulka.errors import UserError
from rulka.observation import Normalisation
from rulka.observation_params import ObservationParams
from rulka.schedule import Moment


class AgentError(UserError):
    """An agent was used in a way or with weights that it cannot work with."""


SettingsT = TypeVar("SettingsT", bound=AlgorithmParams)
NetworkT = TypeVar("NetworkT", bound=nn.Module)

Choose = Callable[[Tensor, Tensor], Tensor]
"""Maps images [N, L, H, W] uint8 and raw floats [N, F] to the decisions [N, ...] that are taken without exploring."""


@dataclass(frozen=True)
class AgentSpec(Generic[SettingsT]):
    """All that is needed to build an actor or a learner in another process; picklable.

    Attributes:
        algorithm: which agent.
        observation: image size.
        encoder: of the images.
        network: widths behind it.
        settings: the section of the algorithm.
        actions: what decisions are: A actions in each of K places, or numbers.
        normalisation: of the floats; becomes part of the network.
        decision_ms: how long a decision lasts.
        precision: in which the body of the networks computes; see `chosen_precision`.
        acting_precision: in which versions of the weights come to an actor, see `rulka.agents.quantisation`, and in
            which it computes; None takes versions in float32 and computes in `precision`.
    """

    algorithm: Algorithm
    observation: ObservationParams
    encoder: EncoderConfig
    network: NetworkParams
    settings: SettingsT
    actions: ActionSpace
    normalisation: Normalisation
    decision_ms: int = 50
    precision: Precision = "auto"
    acting_precision: ActingPrecision | None = None

    @property
    def choices(self) -> Choices:
        """The choices of a decision, for algorithms that compare all of them.

        Raises:
            AgentError: if decisions are numbers.
        """
        if isinstance(self.actions, Choices):
            return self.actions
        message = f"{self.algorithm} compares all actions, and cannot decide for numbers within intervals"
        raise AgentError(message)

    def fresh_network(self, build: BuildNetwork[NetworkT], seed: int) -> NetworkT:
        """Returns a network with the fresh weights of a seed; torch's generator stays as it was."""
        with seeded(seed):
            return build(self.observation, self.encoder, self.network, self.normalisation, self.actions.num_outputs)


class Decision(NamedTuple):
    """An actor's decisions for N cars; the fields are those of `ExperienceBlock`.

    Attributes:
        action: [N] int64; [N, K] chunks of actions; [N, K] float32 where decisions are numbers.
        log_prob: [N] float32 under the policy that acted; 0 where it has none.
        is_greedy: [N] bool, the action, or all of the chunk, is the one it would have chosen without exploring.
    """

    action: NDArray
    log_prob: NDArray[np.float32]
    is_greedy: NDArray[np.bool_]


class ActionValues(NamedTuple):
    """An actor's ratings of every action when it decides greedily.

    Attributes:
        name: "q_value", a mean return, or "probability". The largest is the greedy action's, of
            those that a guide leaves.
        value: [N, A] float32; [N, K, A] for chunks, of which all other actions are the greedy ones.
    """

    name: str
    value: NDArray[np.float32]


class Actor(Protocol):
    """Chooses actions for a batch of cars."""

    @property
    def network(self) -> nn.Module:
        """The weights it acts with, to be read: an actor may act with a copy, which only `load_network` renews."""
        ...

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes weights to act with from the next decision on, all of the network's, as published; copies them."""

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars: image [N, L, H, W] uint8, floats [N, F] float32 raw; greedily unless `explore`."""
        ...

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues | None:
        """Returns its ratings of every action in N situations, as `act` sees them; changes nothing.

        None where decisions are numbers, of which there are too many.
        """
        ...

    def set_moment(self, moment: Moment) -> None:
        """Tells how far the run has come, for schedules."""

    def state_dict(self) -> dict[str, Any]:
        """Everything but weights that its next decisions depend on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""


class Half(Protocol):
    """The half of a learner that learns in a process of its own, from observations and what the other half owns."""

    @property
    def num_updates(self) -> int:
        """How often it has learned so far, altogether."""
        ...

    def insert(self, block: ExperienceBlock) -> None:
        """Takes in what was seen, and which decisions were resets; copies it. The rest of the block is empty."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Installs the tensors of the other half (copied)."""

    @property
    def can_learn(self) -> bool:
        """Whether it has seen anything."""
        ...

    def learn(self, moment: Moment) -> dict[str, float]:
        """Makes one update and returns metrics by name."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Returns its weights and the state of their optimizer; always the same names and shapes."""
        ...


class OtherHalf(Protocol):
    """The way to a half that learns elsewhere."""

    @property
    def num_restarts(self) -> int:
        """How often its process was started again."""
        ...

    def show(self, numbers: range, copy: Callable[[int, ExperienceBlock], None]) -> None:
        """Has it see blocks, as far as there is room now.

        Args:
            numbers: of all that there are; it is shown those that it has not seen.
            copy: writes what was seen in the block of a number into another block.
        """

    def permit(self, num_updates: int, moment: Moment) -> None:
        """Gives it what this half owns now, and lets it learn until it has made so many updates altogether."""

    def hear(self, timeout_s: float) -> None:
        """Waits until it says something, and has `LearnsInHalves.take_half` know what it has learned."""


@runtime_checkable
class LearnsInHalves(Protocol):
    """A learner one half of which can learn in a process of its own, at a ratio that permissions hold."""

    def make_half(self) -> Callable[[], Half] | None:
        """Returns a picklable builder of that half as it is now; None if one process does all."""
        ...

    def own_tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of this half, which the other one reads; always the same names and shapes."""
        ...

    def half_tensors(self) -> dict[str, Tensor]:
        """Returns the tensors of the other half, as they are known here."""
        ...

    def take_half(self, num_updates: int, tensors: Mapping[str, Tensor], metrics: Mapping[str, float]) -> None:
        """Installs the other half's tensors after `num_updates` updates (copied)."""

    def part_with(self, other: OtherHalf) -> None:
        """Leaves that half to another process from now on."""
