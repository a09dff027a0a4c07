"""Losses of Level 1: cross-entropy against the shares of actions, with rare actions and hard frames weighing more.

Source of the focal factor: Lin et al. 2017, arXiv:1708.02002. Dimensions: B frames, A actions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def action_weights(share: Tensor, exponent: float) -> Tensor:
    """Returns a weight for each action [A], its frequency to the power of minus `exponent`, such that frames weigh 1.

    Args:
        share: [A] of all frames that have each action; sums to 1.
        exponent: 0 weighs all frames alike, 1 all actions that occur. An action that never occurs weighs nothing.
    """
    occurs = share > 0
    weights = torch.where(occurs, share.clamp(min=torch.finfo(share.dtype).tiny) ** -exponent, torch.zeros_like(share))
    return weights / (weights * share).sum()


def action_loss(logits: Tensor, share: Tensor, weights: Tensor, focal: float, is_known: Tensor | None = None) -> Tensor:
    """Weighted cross-entropy [] of labels, mean over frames.

    Args:
        logits: [B, A].
        share: [B, A] of each action in the label; rows sum to 1.
        weights: [A] of `action_weights`.
        focal: exponent of one minus the probability of an action, by which its term is multiplied; 0 is plain.
        is_known: [B] whether a frame has a label; the others count nothing. All have one when left out.
    """
    log_probs = logits.float().log_softmax(dim=1)
    terms = -share * weights * log_probs
    if focal > 0.0:
        terms = terms * (1.0 - log_probs.exp()) ** focal
    return mean_of_known(terms.sum(dim=1), is_known)


def mean_of_known(losses: Tensor, is_known: Tensor | None) -> Tensor:
    """Returns the mean [] of losses [B] of frames that have a label [B], or of all; 0 where none has one."""
    if is_known is None:
        return losses.mean()
    return torch.where(is_known, losses, 0.0).sum() / is_known.sum().clamp(min=1)
