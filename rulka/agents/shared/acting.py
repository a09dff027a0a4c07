"""Inference of actors, in ONNX Runtime for plain networks and in torch for others; and acting with a policy.

Dimensions: N cars, K actions of a decision, A choices for each.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from models.actor_critic import ActorCritic, ClonePolicy, PolicyAndValue
from models.prepared import PreparedNetwork, Scales, can_prepare, dequantise
from models.torso import ActingHead, Torso
from rulka.agents.shared.distributions import distribution_of
from rulka.agents.shared.networks import ACTOR_CRITIC_PARTS, BuildNetwork, Cloned, build_actor_critic
from rulka.agents.shared.quantisation import check_int8
from rulka.agents.shared.spec import ActionValues, AgentSpec, Choose, Decision
from rulka.contracts.actions import Choices
from rulka.contracts.artifacts import Artifact
from rulka.contracts.schedule import Moment
from rulka.machine.device import CPU, Generators, on_host, upload
from rulka.machine.precision import ActingPrecision, Precision, chosen_precision

LEAST_CARS_IN_BFLOAT16 = 8
"""For smaller batches "auto" is float32: bfloat16 gains next to nothing."""

NetworkT = TypeVar("NetworkT", bound=Torso)


class NetworkActor(ABC, Generic[NetworkT]):
    """Base of the actors of all algorithms: chooses actions for a batch of cars.

    A float precision that is set explicitly runs in torch, bit for bit. "int8" uses integers where possible and float32
    elsewhere. "auto" is bfloat16 in torch for batches of at least `LEAST_CARS_IN_BFLOAT16` if the device supports it
    natively, and float32 in ONNX Runtime otherwise.

    Attributes:
        build_network: builds the algorithm's network, initialised from torch's global generator.
        parts: tensor name prefixes of each part that `transfer` knows.
        without_source: name prefixes of tensors that no earlier stage has. They start fresh unless their part comes
            from an agent.
        clone_inside: name prefix of the tensors of a whole cloned policy inside the network; empty if there is none.
        greedy_choice: maps a trained network, its artifact and a device to a greedy decision function.
        make_draw: maps a network, its artifact and a generator to a sampling decision function; None if the network
            gives no probabilities.
        network: the float32 network; only `load_network` changes its weights.
        precision: requested precision.
    """

    build_network: ClassVar[BuildNetwork[Any]]
    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    without_source: ClassVar[tuple[str, ...]] = ()
    clone_inside: ClassVar[str] = ""
    greedy_choice: ClassVar[Callable[[Any, Artifact, torch.device], Choose]]
    make_draw: ClassVar[Callable[[Any, Artifact, torch.Generator], Choose] | None] = None

    def __init__(self, spec: AgentSpec, seed: int, device: torch.device = CPU) -> None:
        """Leaves preparation for ONNX Runtime to the first batch.

        Raises:
            AgentError: if the network should act in int8 and cannot.
        """
        self.precision: Precision | ActingPrecision = spec.acting_precision or spec.precision
        network: NetworkT = spec.fresh_network(self.build_network, seed)
        self.network = network.to(device).eval().requires_grad_(False)
        if self.precision == "int8":
            check_int8(self.network)
        self._device, self._generators = device, Generators(device, seed)
        self._moment = Moment(0)
        self._is_prepared = self.precision in ("auto", "int8") and can_prepare(self.network)
        self._prepared: PreparedNetwork | None = None
        self._scales: Scales | None = None
        self._copy: NetworkT | None = None

    @abstractmethod
    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars: image [N, L, H, W] uint8, floats [N, F] float32 raw; greedily unless `explore`."""

    @abstractmethod
    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues | None:
        """Returns its values of all actions for N observations, as in `act`; changes nothing.

        None if decisions are continuous.
        """

    @abstractmethod
    def _outputs_of(self, network: NetworkT, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images and raw floats through a network to the outputs [N, ...] that decisions need."""

    @abstractmethod
    def _head(self) -> ActingHead | None:
        """Returns the layers that end in these outputs, with the current weights; None if they are not plain."""

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads published weights (copied), used from the next decision on."""
        if self.precision == "int8":
            tensors, self._scales = dequantise(tensors)
        self.network.load_state_dict(dict(tensors))
        self._prepared = None
        if self._copy is not None:
            self._copy.load_state_dict(self.network.state_dict())

    def set_moment(self, moment: Moment) -> None:
        """Sets the progress of the run, for schedules."""
        self._moment = moment

    def state_dict(self) -> dict[str, Any]:
        """Returns all state besides weights that its next decisions depend on: the RNG state."""
        return self._generators.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a `state_dict`."""
        self._generators.load_state_dict(state)

    def _outputs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, L, H, W] uint8 and raw floats [N, F], on the device, to outputs [N, ...]."""
        if not self._is_prepared or self._precision_for(len(floats)) == "bfloat16":
            network = self._in_torch(len(floats))
            with torch.inference_mode():
                return self._outputs_of(network, image, floats)
        if self._prepared is None:
            with torch.inference_mode():
                head = self._head()
            assert head is not None
            self._prepared = PreparedNetwork(self.network, head, self._scales)
        return self._prepared(image, floats)

    def _precision_for(self, num_cars: int) -> Precision | ActingPrecision:
        """Returns the precision for a batch."""
        if self.precision != "auto":
            return self.precision
        return chosen_precision("auto", self._device) if num_cars >= LEAST_CARS_IN_BFLOAT16 else "float32"

    def _in_torch(self, num_cars: int) -> NetworkT:
        """Returns the network that torch runs for a batch."""
        precision = self._precision_for(num_cars)
        if precision not in ("bfloat16", "float16"):
            return self.network
        if self._copy is None:
            low = copy.deepcopy(self.network)
            low.store_in(getattr(torch, precision))
            self._copy = low
        return self._copy


def decision_of(action: Tensor, greedy: Tensor) -> Decision:
    """Returns actions [N, K] without probabilities as a `Decision`; `greedy` are the greedy ones."""
    taken, best = (column.numpy() for column in on_host(action, greedy))
    return Decision(taken, np.zeros(len(taken), np.float32), (taken == best).all(axis=1))


def policy_outputs(network: ActorCritic | Cloned, image: Tensor, floats: Tensor) -> Tensor:
    """Returns the outputs [N, P] of a policy, with a value or without, for raw images and raw floats."""
    decided = network.decide(network.encode(image), floats)
    return decided.outputs if isinstance(decided, PolicyAndValue) else decided


def choose_by_policy(network: ActorCritic | Cloned, artifact: Artifact, _device: torch.device) -> Choose:
    """Returns a policy's greedy decision function."""
    distribution = distribution_of(artifact.actions.space)
    return lambda image, floats: distribution.greedy(policy_outputs(network, image, floats))


def draw_by_policy(network: ActorCritic | Cloned, artifact: Artifact, generator: torch.Generator) -> Choose:
    """Returns a function that samples a policy's decisions."""
    distribution = distribution_of(artifact.actions.space)
    return lambda image, floats: distribution.sample(policy_outputs(network, image, floats), generator)


class PolicyActor(NetworkActor[ActorCritic | ClonePolicy]):
    """Samples from the policy, or takes its greedy decision."""

    build_network = staticmethod(build_actor_critic)
    parts = ACTOR_CRITIC_PARTS
    without_source = ("value_head.",)
    greedy_choice = staticmethod(choose_by_policy)
    make_draw = staticmethod(draw_by_policy)

    def __init__(self, spec: AgentSpec, seed: int, device: torch.device = CPU) -> None:
        super().__init__(spec, seed, device)
        self._actions, self._distribution = spec.actions, distribution_of(spec.actions)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `NetworkActor`."""
        outputs = self._outputs(*upload((image, floats), self._device))
        greedy = action = self._distribution.greedy(outputs)
        if explore:
            action = self._distribution.sample(outputs, self._generators.device)
        log_prob = self._distribution.log_prob(outputs, action)
        is_greedy = (action == greedy).all(dim=1)
        return Decision(*(column.numpy() for column in on_host(action, log_prob, is_greedy)))

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues | None:
        """Returns the probabilities [N, A] or [N, K, A] of the policy; see `NetworkActor`."""
        if not isinstance(self._actions, Choices):
            return None
        outputs = self._outputs(*upload((image, floats), self._device))
        probability = outputs.view(len(outputs), *self._actions.decision_shape, -1).softmax(dim=-1)
        return ActionValues("probability", probability.cpu().numpy())

    def _outputs_of(self, network: ActorCritic | ClonePolicy, image: Tensor, floats: Tensor) -> Tensor:
        return policy_outputs(network, image, floats)

    def _head(self) -> ActingHead:
        return self.network.acting_head()
