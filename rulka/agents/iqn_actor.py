"""How an IQN agent acts: greedily, by chance, after Boltzmann noise, through noisy weights, or as the cloned policy.

Sources: Dabney et al. 2018, arXiv:1806.06923; Linesight's "epsilon-Boltzmann", which adds Gaussian noise to Q-values;
Fortunato et al. 2017 (noisy layers), arXiv:1706.10295; Horgan et al. 2018 (an epsilon for each car), arXiv:1803.00933;
Zhou et al. 2024 (a policy that drives first), arXiv:2412.07762.
Decisions of K actions: see `rulka.agents.iqn`.
Dimensions: N cars, K actions of a decision, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.iqn import IqnNetwork, fixed_fractions
from models.noisy import clear_noise, draw_noise
from rulka.agents.acting import ActingNetwork, NetworkActor
from rulka.agents.distributions import Categoricals
from rulka.agents.iqn_network import fresh_network
from rulka.agents.networks import by_place
from rulka.agents.spec import ActionValues, AgentSpec, Decision
from rulka.device import CPU, on_host, upload
from rulka.params import IqnParams


class IqnActor(NetworkActor[IqnNetwork]):
    """Takes the action with the best mean return, or, now and then, another one."""

    def __init__(self, spec: AgentSpec[IqnParams], seed: int, device: torch.device = CPU) -> None:
        super().__init__(seed, device)
        params: IqnParams = spec.settings
        network = fresh_network(spec, seed).to(device)
        self._floor = 0.0
        self._is_noisy, self._is_exploring = spec.network.iqn.noisy_sigma > 0.0, False
        self._params = params
        self._num_actions, self._chunk_shape = spec.choices.num_choices, spec.choices.decision_shape
        self._clones = Categoricals(spec.choices)
        self._tau = fixed_fractions(params.num_quantiles_acting).to(device)
        self._acting = ActingNetwork(
            network,
            spec.acting_precision or spec.precision,
            self._advantages_of,
            lambda network: network.acting_head(self._tau),
        )
        self._factors: dict[IqnNetwork, Tensor] = {}  # by network or its copy: they change with the weights alone

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes weights to act with, from the next decision on."""
        super().load_network(tensors)
        self._factors.clear()
        self._floor = 0.0 if self.network.guide is None else float(self.network.guide.floor)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`.

        With noisy layers the noise is redrawn for every batch of decisions that explores, and an action counts as
        greedy if it is the best through that noise.
        """
        image, floats = upload((image, floats), self._device)
        if explore and self._moment.env_steps < self._params.warmup_steps:
            return self._drive_as_cloned(image, floats)

        advantage = by_place(self._limited(image, floats, explore=explore), self._chunk_shape)
        greedy = advantage.argmax(dim=-1)
        return _decision(self._explore(advantage, greedy) if explore else greedy, greedy)

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues:
        """Returns the mean Q-values [N, A] at the fractions of acting, without noise; see `rulka.agents.spec.Actor`.

        Of chunks [N, K, A]: what a chunk is worth that has an action in one place and the best ones in all others.
        """
        image, floats = upload((image, floats), self._device)
        # The advantages are those that decisions compare, to the bit; Q-values average to the state's value.
        advantage = by_place(self._advantages(image, floats, explore=False), self._chunk_shape)
        value = self._acting.run(lambda network: network(image, floats, self._tau).value)
        centred, state = advantage - advantage.mean(dim=-1, keepdim=True), value.mean(dim=(1, 2))
        if self._chunk_shape:
            best = centred.amax(dim=2, keepdim=True)
            centred = centred + best.sum(dim=1, keepdim=True) - best
            state = state[:, None]
        return ActionValues("q_value", (centred + state[:, None]).cpu().numpy())

    def _limited(self, image: Tensor, floats: Tensor, *, explore: bool) -> Tensor:
        """Returns advantages, minus infinity for actions outside the limits of the guide."""
        advantage = self._advantages(image, floats, explore=explore)
        if self._floor == 0.0:
            return advantage
        assert self.network.guide is not None
        return self.network.guide.limit(advantage, self._cloned(image, floats))

    def _cloned(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns the log-probabilities [N, A] of the cloned policy, or [N, K A]."""

        def log_probs(network: IqnNetwork) -> Tensor:
            assert network.guide is not None, "parameters make sure of that"
            return network.guide.log_probs(image, floats)

        return self._acting.run(log_probs)

    def _advantages(self, image: Tensor, floats: Tensor, *, explore: bool) -> Tensor:
        self._is_exploring = explore
        return self._acting(image, floats)

    def _advantages_of(self, network: IqnNetwork, image: Tensor, floats: Tensor) -> Tensor:
        if self._is_noisy and self._is_exploring:
            draw_noise(network, self._generators.device)
        elif self._is_noisy:
            clear_noise(network)
        if network not in self._factors:
            self._factors[network] = network.acting_factors(self._tau)
        return network.advantages_by(self._factors[network], image, floats)

    def _explore(self, advantage: Tensor, greedy: Tensor) -> Tensor:
        """Replaces some of the greedy actions [N] or [N, K]: for each, one uniform number decides how it explores."""
        draws: dict[str, Any] = {"generator": self._generators.device, "device": self._device}
        uniform = torch.rand(greedy.shape, **draws)
        epsilon = self._epsilon(len(greedy)).view(-1, *(1,) * (greedy.dim() - 1))
        random = torch.randint(self._num_actions, greedy.shape, **draws)
        action = torch.where(uniform < epsilon, random, greedy)
        boltzmann_epsilon = self._params.boltzmann_epsilon.at(self._moment)
        if boltzmann_epsilon > 0.0:
            noise = self._params.boltzmann_noise * torch.randn(advantage.shape, **draws)
            is_noisy = (uniform >= epsilon) & (uniform < epsilon + boltzmann_epsilon)
            action = torch.where(is_noisy, (advantage + noise).argmax(dim=-1), action)
        return action

    def _epsilon(self, num_cars: int) -> Tensor:
        """Returns the share of random actions of each car [N]: those further behind in the batch explore less."""
        place = torch.linspace(0.0, 1.0, num_cars, device=self._device)
        return self._params.epsilon.at(self._moment) ** (1.0 + self._params.epsilon_spread * place)

    def _drive_as_cloned(self, image: Tensor, floats: Tensor) -> Decision:
        log_probs = self._cloned(image, floats)
        action = self._clones.sample(log_probs, self._generators.device)
        return _decision(action, self._clones.greedy(log_probs))


def _decision(action: Tensor, greedy: Tensor) -> Decision:
    taken, best = (column.numpy() for column in on_host(action, greedy))
    nothing = np.zeros(len(taken), np.float32)
    is_same = taken == best
    return Decision(taken, nothing, is_same.all(axis=1) if is_same.ndim > 1 else is_same)
