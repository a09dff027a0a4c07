"""Acting with IQN: greedy, epsilon-greedy, epsilon-Boltzmann, noisy layers, or the cloned policy.

Sources: Dabney et al. 2018, arXiv:1806.06923; Linesight's "epsilon-Boltzmann", which adds Gaussian noise to Q-values;
Fortunato et al. 2017 (noisy layers), arXiv:1706.10295; Horgan et al. 2018 (an epsilon per car), arXiv:1803.00933;
Zhou et al. 2024 (warm-up with a given policy), arXiv:2412.07762.
Dimensions: N cars, K actions of a decision, A choices for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.iqn import IqnNetwork, fixed_fractions
from models.layers import clear_noise, draw_noise
from models.torso import ActingHead
from rulka.agents.iqn.params import IqnParams
from rulka.agents.shared.acting import NetworkActor, decision_of
from rulka.agents.shared.distributions import Categoricals
from rulka.agents.shared.networks import IQN_PARTS, build_iqn
from rulka.agents.shared.spec import ActionValues, AgentSpec, Choose, Decision
from rulka.contracts.artifacts import Artifact
from rulka.machine.device import CPU, upload


class IqnActor(NetworkActor[IqnNetwork]):
    """Takes the action with the best mean return, or explores."""

    build_network = staticmethod(build_iqn)
    parts = IQN_PARTS
    without_source = ("guide.floor",)
    clone_inside = "guide.policy."

    def __init__(self, spec: AgentSpec[IqnParams], seed: int, device: torch.device = CPU) -> None:
        self._choices = spec.choices
        self._clones = Categoricals(spec.choices)
        super().__init__(spec, seed, device)
        self._params: IqnParams = spec.params
        self._floor = 0.0
        self._is_noisy = spec.network.iqn.noisy_sigma > 0.0
        self._tau = fixed_fractions(self._params.num_quantiles_acting).to(device)
        self._factors: dict[IqnNetwork, Tensor] = {}  # by network or its copy; they depend on the weights alone

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.shared.acting.NetworkActor`.

        Noisy layers redraw their noise for every exploring batch; an action counts as greedy if it is the best under
        that noise.
        """
        image, floats = upload((image, floats), self._device)
        if explore and self._moment.env_steps < self._params.warmup_steps:
            cloned = self._cloned(image, floats)
            return decision_of(self._clones.sample(cloned, self._generators.device), self._clones.greedy(cloned))

        q_advantage = self._q_advantages(image, floats, explore=explore)
        if self._floor > 0.0:  # minus infinity for actions outside the limits of the guide
            assert self.network.guide is not None
            q_advantage = self.network.guide.limit(q_advantage, self._cloned(image, floats))
        greedy = q_advantage.argmax(dim=-1)
        return decision_of(self._explore(q_advantage, greedy) if explore else greedy, greedy)

    def _explore(self, q_advantage: Tensor, greedy: Tensor) -> Tensor:
        """Replaces some greedy actions [N, K]; one uniform number per action decides how it explores."""
        draws: dict[str, Any] = {"generator": self._generators.device, "device": self._device}
        uniform = torch.rand(greedy.shape, **draws)
        epsilon = self._epsilon(len(greedy))[:, None]
        random = torch.randint(self._choices.num_choices, greedy.shape, **draws)
        action = torch.where(uniform < epsilon, random, greedy)
        boltzmann_epsilon = self._params.boltzmann_epsilon.at(self._moment)
        if boltzmann_epsilon > 0.0:
            noise = torch.randn(q_advantage.shape, **draws)
            if self._params.boltzmann_softmax:  # with Gumbel noise the best action is a sample of the softmax
                noise = -noise.exponential_(generator=self._generators.device).log()
            noisy = (q_advantage + self._params.boltzmann_noise * noise).argmax(dim=-1)
            is_noisy = (uniform >= epsilon) & (uniform < epsilon + boltzmann_epsilon)
            action = torch.where(is_noisy, noisy, action)
        return action

    def _epsilon(self, num_cars: int) -> Tensor:
        """Returns the epsilon of each car [N]; later cars in the batch explore less."""
        epsilon, spread = self._params.epsilon.at(self._moment), self._params.epsilon_spread
        if spread == 0.0:
            return torch.full((num_cars,), epsilon, device=self._device)
        return epsilon ** (1.0 + spread * torch.linspace(0.0, 1.0, num_cars, device=self._device))

    # Inference --------------------------------------------------------------------------------------------------------

    def load_network(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads published weights (copied), used from the next decision on."""
        super().load_network(tensors)
        self._factors.clear()
        self._floor = 0.0 if self.network.guide is None else float(self.network.guide.floor)

    def _q_advantages(self, image: Tensor, floats: Tensor, *, explore: bool) -> Tensor:
        """Returns the mean advantages [N, K, A] of all actions."""
        if self._is_noisy:  # such a network always runs in torch
            network = self._in_torch(len(floats))
            if explore:
                draw_noise(network, self._generators.device)
            else:
                clear_noise(network)
        return self._outputs(image, floats).reshape(len(floats), self._choices.num_places, -1)

    def _outputs_of(self, network: IqnNetwork, image: Tensor, floats: Tensor) -> Tensor:
        if network not in self._factors:
            self._factors[network] = network.acting_factors(self._tau)
        return network.q_advantages_by(self._factors[network], image, floats)

    def _head(self) -> ActingHead | None:
        return self.network.acting_head(self._tau)

    def _cloned(self, image: Tensor, floats: Tensor) -> Tensor:
        """Returns the log-probabilities [N, K, A] of the cloned policy."""
        guide = self._in_torch(len(floats)).guide
        assert guide is not None, "parameters make sure of that"
        with torch.inference_mode():
            return guide.log_probs(image, floats)

    def action_values(self, image: Tensor, floats: Tensor) -> ActionValues:
        """Returns the mean Q-values [N, A] or [N, K, A] at the acting fractions, without noise; see `NetworkActor`."""
        image, floats = upload((image, floats), self._device)
        # Decisions compare bit-identical advantages; Q-values average to the state's value.
        q_advantage = self._q_advantages(image, floats, explore=False)
        with torch.inference_mode():
            value = self._in_torch(len(floats))(image, floats, self._tau)
        centred, state = q_advantage - q_advantage.mean(dim=2, keepdim=True), value.mean(dim=(1, 3)).sum(dim=1)
        best = centred.amax(dim=2, keepdim=True)
        others = best.sum(dim=1, keepdim=True) - best
        q_value = centred + others + state[:, None, None]
        return ActionValues("q_value", q_value.view(len(q_value), *self._choices.decision_shape, -1).cpu().numpy())

    @staticmethod
    def greedy_choice(network: IqnNetwork, artifact: Artifact, device: torch.device) -> Choose:
        """Returns the greedy decision function, within the guide, of a loaded agent; training acts by `act`."""
        tau = fixed_fractions(artifact.config["iqn"]["num_quantiles_acting"]).to(device)
        guide = network.guide
        is_limited = guide is not None and float(guide.floor) > 0.0

        def choose(image: Tensor, floats: Tensor) -> Tensor:
            q_advantage = network.q_advantages(image, floats, tau)
            if guide is not None and is_limited:
                q_advantage = guide.limit(q_advantage, guide.log_probs(image, floats))
            return q_advantage.argmax(dim=2)

        return choose
