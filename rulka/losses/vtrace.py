"""V-trace: values and advantages of one policy from what another one did, Espeholt et al. 2018, arXiv:1802.01561.

mu is the policy that acted, pi the one that learns. Importance weights pi / mu are cut at rho_bar and c_bar. The first
decides which policy the values are of: `min(rho_bar mu, pi)`, scaled to a distribution, which is pi where rho_bar is
large and mu where it is small. The second decides how far a surprise is carried back, so how fast values get
there, and how much they vary.
Dimensions: T decisions, N cars.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rulka.losses.gae import Endings


class TraceWeights(NamedTuple):
    """Truncated weights [T, N] of decisions; values settle where rho_bar is at least c_bar.

    Attributes:
        rho: of a decision's own surprise.
        c: of those behind it, on their way back past it.
    """

    rho: Tensor
    c: Tensor


class Traced(NamedTuple):
    """Both [T, N], the value itself and 0 where a decision is a reset.

    Attributes:
        target: v_s, what values should predict.
        advantage: rho_s (r_s + gamma v_{s+1} - V(x_s)), by which the log-probability of an action is to grow.
    """

    target: Tensor
    advantage: Tensor


def truncated_ratio(log_ratio: Tensor, bar: float) -> Tensor:
    """Returns min(bar, pi / mu) [T, N] of log pi(a) - log mu(a) of the actions taken; `bar` is not negative."""
    return log_ratio.exp().clamp(max=bar)  # a ratio beyond all numbers is infinite, which is cut too


def on_policy_weights(reward: Tensor) -> TraceWeights:
    """Returns the weights of what the policy did itself, all 1, for rewards [T, N]."""
    return TraceWeights(torch.ones_like(reward), torch.ones_like(reward))


def trace_values(reward: Tensor, value: Tensor, weights: TraceWeights, endings: Endings, discount: float) -> Traced:
    """Estimates what the states of a batch of cars are worth, and how much better every action was.

    v_s - V(x_s) = delta_s + gamma c_s (v_{s+1} - V(x_{s+1})) with delta_s = rho_s (r_s + gamma V(x_{s+1}) - V(x_s)).
    On-policy, with all weights 1, v_s is the return up to the last row and its value.

    Args:
        reward: [T, N] for each decision.
        value: [T + 1, N] of the observation before each decision, and of the last one. After a decision that ended a
            race, the next row still belongs to that race: it is its last observation.
        weights: of each decision.
        endings: how each decision ended.
        discount: gamma in [0, 1].
    """
    is_last = endings.terminated | endings.truncated
    next_value = torch.where(endings.terminated, 0.0, value[1:])
    surprise = reward + discount * next_value - value[:-1]
    target, advantage = torch.empty_like(surprise), torch.empty_like(surprise)
    excess = torch.zeros_like(surprise[0])  # v - V of the row behind
    for step in range(len(surprise) - 1, -1, -1):
        behind = discount * torch.where(is_last[step], 0.0, excess)
        advantage[step] = torch.where(endings.is_reset[step], 0.0, weights.rho[step] * (surprise[step] + behind))
        excess = weights.rho[step] * surprise[step] + weights.c[step] * behind
        excess = torch.where(endings.is_reset[step], 0.0, excess)
        target[step] = value[step] + excess
    return Traced(target, advantage)
