"""How a policy acts: by sampling, or by its greedy decision.

Dimensions: N cars, A actions, K places of a chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.actor_critic import ActorCritic
from rulka.actions import Choices
from rulka.agents.acting import ActingNetwork, NetworkActor
from rulka.agents.distributions import distribution_of
from rulka.agents.policy_network import fresh_network
from rulka.agents.spec import ActionValues, AgentSpec, Decision
from rulka.device import CPU, on_host, upload


def _outputs(network: ActorCritic, image: Tensor, floats: Tensor) -> Tensor:
    return network(image, floats).outputs


class PolicyActor(NetworkActor[ActorCritic]):
    """Samples from the policy, or takes its greedy decision."""

    def __init__(self, spec: AgentSpec, seed: int, device: torch.device = CPU) -> None:
        super().__init__(seed, device)
        network = fresh_network(spec, seed).to(device)
        precision = spec.acting_precision or spec.precision
        self._acting = ActingNetwork(network, precision, _outputs, ActorCritic.acting_head)
        self._actions, self._distribution = spec.actions, distribution_of(spec.actions)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`."""
        outputs = self._acting(*upload((image, floats), self._device))
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
        outputs = self._acting(*upload((image, floats), self._device))
        by_place = outputs.unflatten(1, (*self._actions.decision_shape, -1))
        return ActionValues("probability", by_place.softmax(dim=-1).cpu().numpy())
