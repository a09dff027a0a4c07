"""Generalised advantage estimation, Schulman et al. 2015, arXiv:1506.02438, with bootstrapping at time limits.

Dimensions: T decisions, N cars, B decisions without resets.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rulka.machine.device import exact_dtype


class Endings(NamedTuple):
    """End flags of decisions, all [T, N] bool; see `rulka.buffers.experience`.

    Attributes:
        terminated: terminal: the next value counts as 0.
        is_reset: the autoreset step after the end of a race, not a transition. No reward counts across it; after a
            truncated race the next value does.
    """

    terminated: Tensor
    is_reset: Tensor


class Advantages(NamedTuple):
    """Advantages and returns, both [T, N] float32; at resets 0 and the value itself."""

    advantage: Tensor
    returns: Tensor


def estimate_advantages(
    reward: Tensor, value: Tensor, endings: Endings, discount: float, gae_lambda: float
) -> Advantages:
    """Estimates the advantages of all actions (GAE).

    Args:
        reward: [T, N] for each decision.
        value: [T + 1, N] of the observation before each decision, and of the last one. After a decision that ended a
            race, the next row still belongs to that race: it is its last observation.
        endings: how each decision ended.
        discount: gamma in [0, 1].
        gae_lambda: lambda in [0, 1]; 0 looks one step ahead, 1 sums all rewards.

    Returns:
        Advantages, and the returns (advantage + value) that values should predict.
    """
    next_value = torch.where(endings.terminated, 0.0, value[1:])
    error = reward + discount * next_value - value[:-1]
    advantage = torch.zeros_like(error)
    carried = torch.zeros_like(error[0])
    for step in range(len(error) - 1, -1, -1):
        carried = error[step] + discount * gae_lambda * carried
        carried = torch.where(endings.is_reset[step], 0.0, carried)
        advantage[step] = carried
    return Advantages(advantage, advantage + value[:-1])


def explained_variance(value: Tensor, returns: Tensor) -> Tensor:
    """Returns the explained variance [] of values [B]: 1 if they equal the returns [B], 0 for a constant, else less.

    0 if all returns are equal or there is only one; NaN if there are none.
    """
    if not len(returns):
        return returns.new_full((), math.nan)
    exact = exact_dtype(returns.device)
    variance, left = (rows.var(correction=0).to(exact) for rows in (returns, returns - value))
    return torch.where(variance == 0.0, 0.0, 1.0 - left / variance)
