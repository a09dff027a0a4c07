"""Quantile regression for distributional Q-learning.

Dimensions: B batch, T online quantiles, S target quantiles.
Source: Dabney et al. 2018, Implicit Quantile Networks, arXiv:1806.06923, section 3; the Huber loss is divided by
kappa, and the normalisation by the target's self-loss is Linesight's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def quantile_huber_loss(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Distance from a predicted return distribution to samples of its target.

    Args:
        quantile: [B, T] predicted value of each quantile.
        tau: [B, T] the fraction in (0, 1) that each prediction stands for; or [T], the same for all rows.
        target: [B, S] sampled returns; no gradient flows into them.
        kappa: half-width of the quadratic zone, in return units; must be positive.

    Returns:
        [B] one loss for each transition, unreduced so that importance weights can be applied: the sum over predicted
        quantiles of the mean over targets.
    """
    error_bts = target.detach()[:, None, :] - quantile[:, :, None]
    size = error_bts.abs()
    huber = torch.where(size <= kappa, 0.5 * error_bts.square() / kappa, size - 0.5 * kappa)
    weight = torch.where(error_bts.detach() < 0, 1.0 - tau[..., None], tau[..., None])
    return (weight * huber).mean(dim=2).sum(dim=1)


SMALLEST_WIDTH = 1e-6
"""Floor of the averages, in roots of return units: targets without any spread must not divide by zero."""


class SelfLoss(NamedTuple):
    """Running averages of a target's quantile loss against itself, before and after the floor."""

    typical: float
    typical_clamped: float


def initial_self_loss() -> SelfLoss:
    """Returns the averages before the first batch."""
    return SelfLoss(0.01, 0.01)


def self_loss_weights(
    self_loss: Tensor, running: SelfLoss, clamp_ratio: float, mean: Callable[[Tensor], Tensor] = torch.mean
) -> tuple[Tensor, SelfLoss]:
    """Weighs transitions so that those with a wide target distribution do not dominate.

    The root of the loss of a target against itself measures its width. Each loss is divided by it, at least by the
    typical width over `clamp_ratio`, and multiplied by the typical divisor, which leaves the scale of the whole.

    Args:
        self_loss: [B] `quantile_huber_loss(target, target_tau, target)`.
        running: the averages so far.
        clamp_ratio: how much narrower than typical a target may count.
        mean: of values [B] over all batches that are learned from as one.

    Returns:
        [B] weights without gradient, and the averages that follow.
    """
    width = self_loss.detach().sqrt()
    typical = 0.99 * running.typical + 0.01 * float(mean(width))
    clamped = width.clamp(min=max(typical / clamp_ratio, SMALLEST_WIDTH))
    typical_clamped = 0.99 * running.typical_clamped + 0.01 * float(mean(clamped))
    return typical_clamped / clamped, SelfLoss(typical, typical_clamped)
