"""How PPO acts: by sampling from its policy, or by the most likely action.

Dimensions: N cars, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.actor_critic import ActorCritic
from rulka.agents.acting import ActingNetwork
from rulka.agents.ppo.network import fresh_network
from rulka.agents.spec import ActionValues, AgentSpec, Decision
from rulka.device import CPU, Generators, on_host, upload
from rulka.params import PpoParams
from rulka.schedule import Moment


class PpoActor:
    """Samples from the policy, or takes its most likely action."""

    def __init__(self, spec: AgentSpec[PpoParams], seed: int, device: torch.device = CPU) -> None:
        self._acting = ActingNetwork(fresh_network(spec, seed).to(device), spec.precision)
        self._device, self._generators = device, Generators(device, seed)

    @property
    def network(self) -> ActorCritic:
        """The weights it acts with."""
        return self._acting.network

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes weights to act with, from the next decision on."""
        self._acting.load(tensors)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`."""
        logits, value = self._decide(image, floats)
        log_probs = torch.log_softmax(logits, dim=1)
        greedy = logits.argmax(dim=1)
        action = greedy
        if explore:
            action = torch.multinomial(log_probs.exp(), 1, generator=self._generators.device)[:, 0]
        log_prob = log_probs.gather(1, action[:, None])[:, 0]
        return Decision(*(column.numpy() for column in on_host(action, log_prob, value, action == greedy)))

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues:
        """Returns the probabilities [N, A] of the policy; see `rulka.agents.spec.Actor`."""
        logits, _ = self._decide(image, floats)
        return ActionValues("probability", logits.softmax(dim=1).cpu().numpy())

    def set_moment(self, moment: Moment) -> None:
        """Has no effect: nothing in acting follows a schedule."""

    def state_dict(self) -> dict[str, Any]:
        """Its random numbers."""
        return self._generators.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self._generators.load_state_dict(state)

    def _decide(self, image: Tensor, floats: Tensor) -> tuple[Tensor, ...]:
        seen = upload((image, floats), self._device)
        return self._acting.run(lambda network: network(*seen), len(floats))
