"""Behaviour cloning: cross-entropy against what was done, possibly a mixture of actions.

Dimensions: B batch, A actions.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def soft_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean cross-entropy [] in nats of predicted logits against target distributions.

    Args:
        logits: [B, A].
        target: [B, A] probabilities, rows sum to 1; a decision that held two actions for parts of its time has both.
        weight: [B] how much each row counts; all the same when left out.
    """
    loss = -(target * functional.log_softmax(logits.float(), dim=1)).sum(dim=1)
    if weight is None:
        return loss.mean()
    return (loss * weight).sum() / weight.sum()


def accuracy(logits: Tensor, action: Tensor) -> float:
    """Returns the share of rows of logits [B, A] whose largest entry is the action [B]."""
    return float((logits.argmax(dim=1) == action).float().mean())
