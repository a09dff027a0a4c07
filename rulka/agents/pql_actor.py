"""How a policy of parallel Q-learning decides, explores, and is rated by critics: for numbers, and for choices.

It acts as it decides, or with noise, of which each car has another measure. The paper spreads the measure over the
environments, sigma_i = least + (most - least) i / (N - 1), so that nobody has to find the right one.
Numbers, as in the paper: tanh of the first half of the outputs, which are those of the cloned policy; its deviations,
the other half, have no part in it. The gradient of a critic goes through the decision.
Choices: softmax of the outputs. Critics rate all of them at once, and the gradient goes through the probabilities.
Dimensions: N cars, B batch, P outputs, D numbers of the state, K numbers of a decision, A choices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import Critics
from rulka.actions import ActionSpace, Choices
from rulka.agents.acting import PolicyActor, decision_of
from rulka.agents.distributions import Categoricals, SquashedGaussian
from rulka.agents.networks import build_clone_policy
from rulka.agents.params import PqlParams
from rulka.agents.spec import AgentSpec, Decision
from rulka.device import CPU, upload


class PqlActor(PolicyActor):
    """Takes the decision of the policy, with noise while it explores."""

    def __init__(self, spec: AgentSpec[PqlParams], seed: int, device: torch.device = CPU) -> None:
        super().__init__(spec, seed, device, build_clone_policy)
        self._params: PqlParams = spec.settings
        self._decisions = decisions_of(spec.actions)

    def act(self, image: Tensor, floats: Tensor, *, explore: bool) -> Decision:
        """Decides for N cars; see `rulka.agents.spec.Actor`."""
        outputs = self._outputs(*upload((image, floats), self._device))
        greedy = action = self._decisions.greedy(outputs)
        if explore:
            action = self._decisions.explore(outputs, self.noise(len(floats)), self._generators.device)
        return decision_of(action, greedy)

    def noise(self, num_cars: int) -> Tensor:
        """Returns the measure of noise of each car [N] at this moment: it grows from the first to the last."""
        params, now = self._params, self._moment
        least, most = params.noise_least.at(now), params.noise_most.at(now)
        return torch.linspace(least, most, num_cars, device=self._device)


class Rated(NamedTuple):
    """How critics rate a policy's decision.

    Attributes:
        values: [2, B, A] by both critics; A is 1 where a decision is numbers.
        probability: [B, A] of each choice; 1 where a decision is numbers.
        entropy: [B] nats; 0 where a decision is numbers.
    """

    values: Tensor
    probability: Tensor
    entropy: Tensor


class ChosenActions(Categoricals):
    """One of A choices, drawn from the policy, and with a probability of `noise` any of them alike."""

    def __init__(self, actions: Choices) -> None:
        super().__init__(actions)
        self._num_choices = actions.num_choices

    def make_critics(self, num_state: int, dense_hidden: int) -> Critics:
        """Returns critics that rate all choices of a state, with fresh weights from torch's global generator."""
        return Critics(num_state, dense_hidden, num_numbers=0, num_choices=self._num_choices)

    def explore(self, outputs: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Draws choices [N] of outputs [N, P] with noise, of which each car has its own measure [N]."""
        drawn = self.sample(outputs, generator)
        uniform = torch.rand(noise.shape, generator=generator, device=noise.device)
        random = torch.randint(self._num_choices, drawn.shape, generator=generator, device=noise.device)
        return torch.where(uniform < noise, random, drawn)

    def rate(self, critics: Critics, state: Tensor, outputs: Tensor) -> Rated:
        """Has critics rate all choices in states [B, D], and says how likely they are by outputs [B, P]."""
        log_probs = outputs.log_softmax(dim=1)
        probability = log_probs.exp()
        return Rated(critics(state), probability, -(probability * log_probs).sum(dim=1))

    def rate_taken(self, critics: Critics, state: Tensor, action: Tensor) -> Tensor:
        """Returns the critics' values [2, B] of the choices [B] that were taken."""
        return critics(state)[:, torch.arange(len(action), device=action.device), action]


class NumberActions(SquashedGaussian):
    """K numbers, each within an interval, which critics see as [-1, 1]; `noise` is a deviation in that measure.

    The standard deviations among the outputs have no part in it.
    """

    def make_critics(self, num_state: int, dense_hidden: int) -> Critics:
        """Returns critics that rate one decision."""
        return Critics(num_state, dense_hidden, num_numbers=len(self.low), num_choices=1)

    def explore(self, outputs: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Adds Gaussian noise, and stays within the intervals; returns [N, K]."""
        decided = self._squashed(outputs)
        drawn = torch.randn(decided.shape, generator=generator, device=decided.device)
        return self.scaled((decided + noise[:, None] * drawn).clamp(-1.0, 1.0))

    def rate(self, critics: Critics, state: Tensor, outputs: Tensor) -> Rated:
        """Has critics rate the one decision of outputs [B, P] in states [B, D]."""
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
    """Returns the kind of decisions of a space of actions; it holds no weights, so one serves on every device."""
    return ChosenActions(actions) if isinstance(actions, Choices) else NumberActions(actions)
