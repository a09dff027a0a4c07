"""How a policy of parallel Q-learning acts: as it decides, or with noise, of which each car has another measure.

The paper spreads the measure over the environments, sigma_i = least + (most - least) i / (N - 1), so that nobody has to
find the right one. Dimensions: N cars.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.actor_critic import ClonePolicy
from rulka.actions import Choices
from rulka.agents.acting import ActingNetwork, NetworkActor
from rulka.agents.policy_network import fresh_actor
from rulka.agents.pql_decisions import decisions_of
from rulka.agents.spec import ActionValues, AgentSpec, Decision
from rulka.device import CPU, on_host, upload
from rulka.params import PqlParams


class PqlActor(NetworkActor[ClonePolicy]):
    """Takes the decision of the policy, with noise while it explores."""

    def __init__(self, spec: AgentSpec[PqlParams], seed: int, device: torch.device = CPU) -> None:
        super().__init__(seed, device)
        network, precision = fresh_actor(spec, seed).to(device), spec.acting_precision or spec.precision
        self._acting = ActingNetwork(network, precision, ClonePolicy.forward, ClonePolicy.acting_head)
        self._params: PqlParams = spec.settings
        self._is_chosen, self._decisions = isinstance(spec.actions, Choices), decisions_of(spec.actions)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`."""
        outputs = self._acting(*upload((image, floats), self._device))
        greedy = action = self._decisions.greedy(outputs)
        if explore:
            action = self._decisions.explore(outputs, self.noise(len(floats)), self._generators.device)
        taken, best = (column.numpy() for column in on_host(action, greedy))
        nothing = np.zeros(len(taken), np.float32)
        return Decision(taken, nothing, (taken == best).reshape(len(taken), -1).all(axis=1))

    def noise(self, num_cars: int) -> Tensor:
        """Returns the measure of noise of each car [N] at this moment: it grows from the first to the last."""
        params, now = self._params, self._moment
        least, most = params.noise_least.at(now), params.noise_most.at(now)
        return torch.linspace(least, most, num_cars, device=self._device)

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues | None:
        """Returns the probabilities [N, A] of the policy without noise; see `rulka.agents.spec.Actor`."""
        if not self._is_chosen:
            return None
        return ActionValues(
            "probability", self._acting(*upload((image, floats), self._device)).softmax(dim=1).cpu().numpy()
        )
