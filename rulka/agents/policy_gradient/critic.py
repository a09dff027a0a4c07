"""What policies that learn with a value have in common: a first update that solves for it, and its unit.

A cloned policy comes without a value, and advantages from an untrained one would ruin it: the first update solves for
the value head alone, on features that do not move, and leaves the policy as it is.
Dimensions: T decisions of a block, N cars.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.agents.policy_gradient.learner import PolicyLearner
from rulka.agents.policy_gradient.segments import Segment
from rulka.agents.ranks import ALONE, Ranks, mean_of
from rulka.device import on_host
from rulka.losses.gae import Endings
from rulka.losses.least_squares import solve_linear_value
from rulka.params import CriticParams

CriticT = TypeVar("CriticT", bound=CriticParams)
RIDGE = 1e-3
"""Pull of the solved weights toward 0, as a share of the mean variance of the features."""
SMALLEST_RETURN = 1e-3
"""Floor of the root mean square return that values are measured in."""


class CriticLearner(PolicyLearner[CriticT]):
    """Learns a policy and its value; what derives from it asks `_is_warming_up`, and then calls `_solve_value`."""

    def _is_warming_up(self) -> bool:
        return self.version == 0 and self._params.value_warmup_steps > 0

    def _num_needed(self) -> int:
        return self._params.value_warmup_steps if self._is_warming_up() else super()._num_needed()

    def _solve_value(self, segment: Segment, trace_decay: float) -> PolicyAndValue:
        """Solves for the value head, on frozen features; the policy does not change.

        Args:
            segment: what happened.
            trace_decay: lambda of the returns that the value is to agree with.

        Returns:
            What the network puts out then, with rows [(T + 1) N] for all observations.
        """
        network, discount = self.network, self._params.gamma.at(self.moment)
        hidden = self._in_parts(
            lambda image, floats: network.hidden(network.encode(image), floats).float(), segment.image, segment.floats
        )
        # In main memory: the sums are float64, which is slow on many GPUs and unknown to others.
        feature, reward, *ends = on_host(hidden, segment.shaped_reward(discount), *segment.endings)
        ranks = self._ranks
        total = None if ranks.size == 1 else self._total_on_host
        solved = solve_linear_value(feature, reward, Endings(*ends), discount, trace_decay, RIDGE, total)
        with torch.no_grad():
            network.value_head.weight.copy_(solved.weight[None].float())
            network.value_head.bias.copy_(solved.bias.float())
            if total is not None:  # machines may solve the same equations with different last bits
                for tensor in (network.value_head.weight, network.value_head.bias):
                    tensor.copy_(ranks.total(tensor if ranks.rank == 0 else torch.zeros_like(tensor)))
            return network.read_out(hidden.flatten(0, 1))

    def _total_on_host(self, numbers: Tensor) -> Tensor:
        """Returns the sum over all ranks of tensors in main memory."""
        return on_host(self._ranks.total(numbers.to(self._device)))[0]


def return_scale(returns: Tensor, ranks: Ranks = ALONE) -> float:
    """Returns the root mean square of the returns [M] of all ranks: the unit values are clipped and weighed in."""
    return max(float(mean_of(returns.square(), ranks).sqrt()), SMALLEST_RETURN)
