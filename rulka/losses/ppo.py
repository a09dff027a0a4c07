"""Clipped policy and value losses of PPO, Schulman et al. 2017, arXiv:1707.06347.

Dimensions: B batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient.

    Attributes:
        loss: the negative clipped surrogate.
        approx_kl: mean of (r - 1) - log r, an estimate of how far the policy is from the one that acted, in nats; never
            negative.
        clip_fraction: share of samples whose ratio lies outside the clip.
    """

    loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class ValueLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient. `clip_fraction` is the share of values that moved beyond the clip."""

    loss: Tensor
    clip_fraction: Tensor


def clipped_policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float, weight: Tensor | None = None
) -> PolicyLoss:
    """Negative surrogate, flat where the ratio of probabilities has left [1 - clip, 1 + clip] for the better.

    Args:
        log_prob: [B] of the actions taken, under the policy that learns.
        old_log_prob: [B] of the same actions, under the policy that acted.
        advantage: [B] usually normalised; no gradient flows into it.
        clip: half-width of the trust region of the ratio; positive.
        weight: [B] of each action in the mean; None weighs them equally.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    loss = -(gain if weight is None else weight * gain).mean()
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
    return PolicyLoss(loss, approx_kl, clip_fraction)


def clipped_value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> ValueLoss:
    """Half the squared error, of the value or of the value held within `clip` of the old one, whichever is larger.

    Args:
        value: [B] predicted now.
        old_value: [B] predicted when the update began.
        returns: [B] targets.
        clip: how far a value may move, in units of the values; positive. None leaves the plain squared error.
    """
    if clip is None:
        return ValueLoss(0.5 * (value - returns).square().mean(), torch.zeros((), device=value.device))
    held = old_value + (value - old_value).clamp(-clip, clip)
    squared = torch.maximum((value - returns).square(), (held - returns).square())
    with torch.no_grad():
        clip_fraction = ((value - old_value).abs() > clip).float().mean()
    return ValueLoss(0.5 * squared.mean(), clip_fraction)


def explained_variance(value: Tensor, returns: Tensor) -> float:
    """Returns 1 for values [B] that equal the returns [B], 0 for a constant, less for worse.

    0 where all returns are equal, as one alone is; NaN where there are none.
    """
    if not len(returns):
        return math.nan
    variance = float(returns.var(correction=0))
    if variance == 0.0:
        return 0.0
    return 1.0 - float((returns - value).var(correction=0)) / variance
