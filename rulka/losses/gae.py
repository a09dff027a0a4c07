"""Generalised advantage estimation, Schulman et al. 2015, arXiv:1506.02438, with bootstrapping at time limits.

Dimensions: T decisions, N cars.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Endings(NamedTuple):
    """How decisions ended, all [T, N] bool; see `rulka.buffers.experience`.

    Attributes:
        terminated: nothing follows: the next value counts as 0.
        truncated: the race went on, unseen: the next value counts, further rewards do not.
        is_reset: no transition at all.
    """

    terminated: Tensor
    truncated: Tensor
    is_reset: Tensor


class Advantages(NamedTuple):
    """Both [T, N] float32, 0 and the value itself where a decision is a reset."""

    advantage: Tensor
    returns: Tensor


def estimate_advantages(
    reward: Tensor, value: Tensor, endings: Endings, discount: float, trace_decay: float
) -> Advantages:
    """Estimates how much better every action was than the policy's average.

    Args:
        reward: [T, N] for each decision.
        value: [T + 1, N] of the observation before each decision, and of the last one. After a decision that ended a
            race, the next row still belongs to that race: it is its last observation.
        endings: how each decision ended.
        discount: gamma in [0, 1].
        trace_decay: lambda in [0, 1]; 0 looks one step ahead, 1 sums all rewards.

    Returns:
        Advantages, and the returns (advantage + value) that values should predict.
    """
    is_last = endings.terminated | endings.truncated
    next_value = torch.where(endings.terminated, 0.0, value[1:])
    error = reward + discount * next_value - value[:-1]
    advantage = torch.zeros_like(error)
    carried = torch.zeros_like(error[0])
    for step in range(len(error) - 1, -1, -1):
        carried = error[step] + discount * trace_decay * torch.where(is_last[step], 0.0, carried)
        carried = torch.where(endings.is_reset[step], 0.0, carried)
        advantage[step] = carried
    return Advantages(advantage, advantage + value[:-1])
