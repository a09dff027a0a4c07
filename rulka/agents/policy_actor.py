"""How a policy acts: by sampling, or by its greedy decision.

Dimensions: N cars, A actions, K places of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models.actor_critic import ActorCritic
from rulka.actions import Choices
from rulka.agents.acting import ActingNetwork
from rulka.agents.distributions import distribution_of
from rulka.agents.int8 import Int8Network
from rulka.agents.onnx_graph import Nodes
from rulka.agents.policy_network import fresh_network
from rulka.agents.spec import ActionValues, AgentSpec, Decision
from rulka.device import CPU, Generators, on_host, upload
from rulka.schedule import Moment


def int8_outputs(network: ActorCritic, nodes: Nodes, hidden: str) -> tuple[str, int]:
    """Adds the outputs of the policy and the value, P + 1 numbers; see `rulka.agents.int8.AddOutputs`."""
    heads = network.policy_head, network.value_head
    weight, bias = torch.cat([head.weight for head in heads]), torch.cat([head.bias for head in heads])
    return nodes.linear(weight, bias, nodes.node("Relu", hidden)), len(bias)


class PolicyActor:
    """Samples from the policy, or takes its greedy decision."""

    def __init__(self, spec: AgentSpec, seed: int, device: torch.device = CPU) -> None:
        network = fresh_network(spec, seed).to(device)
        self._acting = ActingNetwork(network, spec.float_precision)
        self._int8 = Int8Network(network, partial(int8_outputs, network)) if spec.acting_precision == "int8" else None
        self._actions, self._distribution = spec.actions, distribution_of(spec.actions)
        self._device, self._generators = device, Generators(device, seed)

    @property
    def network(self) -> ActorCritic:
        """The weights it acts with."""
        return self._acting.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes weights to act with, from the next decision on."""
        self._acting.load(tensors if self._int8 is None else self._int8.load(tensors))

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`."""
        outputs, _ = self._decide(image, floats)
        greedy = action = self._distribution.greedy(outputs)
        if explore:
            action = self._distribution.sample(outputs, self._generators.device)
        log_prob = self._distribution.log_prob(outputs, action)
        is_greedy = (action == greedy).view(len(floats), -1).all(dim=1)
        return Decision(*(column.numpy() for column in on_host(action, log_prob, is_greedy)))

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues | None:
        """Returns the probabilities [N, A] or [N, K, A] of the policy; see `rulka.agents.spec.Actor`."""
        if not isinstance(self._actions, Choices):
            return None
        outputs, _ = self._decide(image, floats)
        by_place = outputs.unflatten(1, (*self._actions.decision_shape, -1))
        return ActionValues("probability", by_place.softmax(dim=-1).cpu().numpy())

    def set_moment(self, moment: Moment) -> None:
        """Has no effect: nothing in acting follows a schedule."""

    def state_dict(self) -> dict[str, Any]:
        """Its random numbers."""
        return self._generators.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._generators.load_state_dict(state)

    def _decide(self, image: Tensor, floats: Tensor) -> tuple[Tensor, ...]:
        if self._int8 is not None:
            outputs = self._int8(image, floats)
            return outputs[:, :-1], outputs[:, -1]
        seen = upload((image, floats), self._device)
        return self._acting.run(lambda network: network(*seen), len(floats))
