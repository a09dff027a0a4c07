"""Munchausen reinforcement learning, Vieillard et al. 2020, arXiv:2007.14430, equation 4.

The target network stands for the policy softmax(Q / temperature). Its log-probability of the action taken is added to
the reward, and the value of the next state is the policy's, with its entropy.
A policy over chunks of K actions is the product of one for each place, so its log-probability is their sum.
Dimensions: B batch, S target quantiles, K actions of a chunk, A actions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def munchausen_bonus(value: Tensor, action: Tensor, alpha: float, temperature: float, floor: float) -> Tensor:
    """Returns what the reward gains [B]: alpha times temperature log pi(action), at least alpha times `floor`.

    Args:
        value: [B, A] Q-values of the target network, or advantages: a number added to a row changes nothing;
            [B, K, A] for chunks.
        action: [B] int64, taken; [B, K] for chunks.
        alpha: weight, 0.9 in the paper.
        temperature: of the policy, in return units; positive.
        floor: at most 0; -1 in the paper.
    """
    log_policy = torch.log_softmax(value / temperature, dim=-1).gather(-1, action[..., None]).flatten(1).sum(dim=1)
    return alpha * (temperature * log_policy).clamp(floor, 0.0)


def soft_value(quantile: Tensor, temperature: float) -> Tensor:
    """Returns for each quantile [B, S] the sum over actions of pi (quantile - temperature log pi).

    Args:
        quantile: [B, S, A] of the next state, by the target network; pi is the softmax of their means.
        temperature: of the policy, in return units; positive.
    """
    log_policy = torch.log_softmax(quantile.mean(dim=1, keepdim=True) / temperature, dim=2)
    policy = log_policy.exp()
    # The product is 0 where the logarithm is minus infinity.
    return (policy * quantile - temperature * torch.special.xlogy(policy, policy)).sum(dim=2)
