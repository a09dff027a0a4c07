"""Return distributions over fixed atoms (C51), Bellemare et al. 2017, arXiv:1707.06887, algorithm 1.

Dimensions: B transitions, Z atoms at equal distances.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def project_returns(probability: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Returns probabilities [B, Z] of reward + discount * atom, each shared by the two atoms that it lies between.

    Args:
        probability: [B, Z] of the return that follows.
        reward: [B] paid before it.
        discount: [B] factor of it; 0 where nothing follows.
        support: [Z] returns of the atoms, rising; what lies beyond the first or last counts as these.
    """
    distance = support[1] - support[0]
    returns = (reward[:, None] + discount[:, None] * support).clamp(support[0], support[-1])
    place = (returns - support[0]) / distance
    lower = place.floor().clamp(0, len(support) - 2)
    share = place - lower  # of the upper atom
    index = lower.long()
    result = torch.zeros_like(probability)
    result.scatter_add_(1, index, probability * (1.0 - share))
    return result.scatter_add_(1, index + 1, probability * share)


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the cross-entropies [...] of probabilities [..., Z] under logits [..., Z]; no gradient flows to them."""
    return -(target.detach() * functional.log_softmax(logits, dim=-1)).sum(dim=-1)
