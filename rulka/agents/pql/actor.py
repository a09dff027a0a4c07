"""Decisions, exploration and critic values of parallel Q-learning (PQL), for continuous numbers and discrete choices.

The actor is greedy, or explores with a noise scale that differs per car. The paper spreads the scale over the
environments, sigma_i = least + (most - least) i / (N - 1), so that it needs no tuning.
Numbers, as in the paper: tanh of the first half of the outputs, the cloned policy's means. The other half, its
standard deviations, is unused. The critic's gradient flows through the decision.
Choices: softmax of the outputs. The critics rate all choices at once, and the gradient flows through the probabilities.
Dimensions: N cars, B batch, P outputs, D state features, K numbers of a decision (1 if it is a choice), A choices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import Critics
from rulka.agents.pql.params import PqlParams
from rulka.agents.shared.acting import PolicyActor, decision_of
from rulka.agents.shared.distributions import Categoricals, SquashedGaussian
from rulka.agents.shared.networks import POLICY_PARTS, build_clone_policy
from rulka.agents.shared.spec import AgentSpec, Decision
from rulka.contracts.actions import ActionSpace, Choices
from rulka.machine.device import CPU, upload


class PqlActor(PolicyActor):
    """Takes the policy's greedy decision, or adds noise to explore."""

    build_network = staticmethod(build_clone_policy)
    parts = POLICY_PARTS
    without_source = ()
    make_draw = None

    def __init__(self, spec: AgentSpec[PqlParams], seed: int, device: torch.device = CPU) -> None:
        super().__init__(spec, seed, device)
        self._params: PqlParams = spec.params
        self._decisions = decisions_of(spec.actions)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.shared.acting.NetworkActor`."""
        outputs = self._outputs(*upload((image, floats), self._device))
        greedy = action = self._decisions.greedy(outputs)
        if explore:
            action = self._decisions.explore(outputs, self.noise(len(floats)), self._generators.device)
        return decision_of(action, greedy)

    def noise(self, num_cars: int) -> Tensor:
        """Returns the current noise scale of each car [N], growing from the first car to the last."""
        params, now = self._params, self._moment
        least, most = params.noise_least.at(now), params.noise_most.at(now)
        return torch.linspace(least, most, num_cars, device=self._device)


class Rated(NamedTuple):
    """Critic values of a policy's decisions.

    Attributes:
        values: [2, B, A] of both critics; A is 1 if decisions are continuous.
        probability: [B, A] of each choice; 1 if decisions are continuous.
        entropy: [B] nats; 0 if decisions are continuous.
    """

    values: Tensor
    probability: Tensor
    entropy: Tensor


class ChosenActions(Categoricals):
    """Discrete decisions: sampled from the policy, or with probability `noise` uniformly from all A choices."""

    def __init__(self, actions: Choices) -> None:
        super().__init__(actions)
        self._num_choices = actions.num_choices

    def make_critics(self, num_state: int, dense_hidden: int) -> Critics:
        """Returns critics that rate all choices of a state, initialised from torch's global generator."""
        return Critics(num_state, dense_hidden, num_numbers=0, num_choices=self._num_choices)

    def explore(self, outputs: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Draws choices [N, 1] from outputs [N, P], with the noise scale [N] of each car."""
        drawn = self.sample(outputs, generator)
        uniform = torch.rand(noise.shape, generator=generator, device=noise.device)
        random = torch.randint(self._num_choices, drawn.shape, generator=generator, device=noise.device)
        return torch.where((uniform < noise)[:, None], random, drawn)

    def rate(self, critics: Critics, state: Tensor, outputs: Tensor) -> Rated:
        """Returns critic values of all choices in states [B, D], and their probabilities by outputs [B, P]."""
        log_probs = outputs.log_softmax(dim=1)
        probability = log_probs.exp()
        return Rated(critics(state), probability, -(probability * log_probs).sum(dim=1))

    def rate_taken(self, critics: Critics, state: Tensor, action: Tensor) -> Tensor:
        """Returns the critics' values [2, B] of the choices [B, 1] that were taken."""
        return critics(state)[:, torch.arange(len(action), device=action.device), action[:, 0]]


class NumberActions(SquashedGaussian):
    """Continuous decisions: K numbers, each within an interval, scaled to [-1, 1] for the critics.

    `noise` is a standard deviation on that scale. The standard deviations among the outputs are unused.
    """

    def make_critics(self, num_state: int, dense_hidden: int) -> Critics:
        """Returns critics that rate one decision."""
        return Critics(num_state, dense_hidden, num_numbers=len(self.low), num_choices=1)

    def explore(self, outputs: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Adds Gaussian noise, clipped to the intervals; returns [N, K]."""
        decided = self._squashed(outputs)
        drawn = torch.randn(decided.shape, generator=generator, device=decided.device)
        return self.scaled((decided + noise[:, None] * drawn).clamp(-1.0, 1.0))

    def rate(self, critics: Critics, state: Tensor, outputs: Tensor) -> Rated:
        """Returns critic values of the decision of outputs [B, P] in states [B, D]."""
        values = critics(state, self._squashed(outputs))
        ones = torch.ones(len(state), 1, device=state.device)
        return Rated(values, ones, torch.zeros_like(ones[:, 0]))

    def rate_taken(self, critics: Critics, state: Tensor, action: Tensor) -> Tensor:
        """Returns the critics' values [2, B] of decisions [B, K] that were taken."""
        middle, half = self.middle_and_half(action)
        return critics(state, (action - middle) / half)[:, :, 0]

    def _squashed(self, outputs: Tensor) -> Tensor:
        return torch.tanh(outputs[:, : len(self.low)])


Decisions = ChosenActions | NumberActions


def decisions_of(actions: ActionSpace) -> Decisions:
    """Returns the decision type of an action space; it holds no weights, so one instance works on every device."""
    return ChosenActions(actions) if isinstance(actions, Choices) else NumberActions(actions)
