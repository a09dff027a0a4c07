"""Group-relative advantages, Shao et al. 2024, arXiv:2402.03300 (GRPO), and what a decision weighs.

The clipped surrogate is PPO's, `clipped_policy_loss` in `rulka.losses.ppo`, which takes the weights.
Dimensions: K groups, G races of a group, R races of an update, M their decisions.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SMALLEST_DEVIATION = 1e-6
"""Floor of the deviation that advantages are divided by; that of a group whose races are all alike."""


def group_advantages(returns: Tensor, *, by_deviation: bool) -> Tensor:
    """Returns how much better each race [K, G] was than the mean of its group; those of a group sum to 0.

    Args:
        returns: [K, G] sums of the rewards of races that began alike; G at least 2.
        by_deviation: divides by the group's standard deviation (of a sample). Groups whose races differ little then
            count as much as those whose races differ much, which Liu et al. 2025, arXiv:2503.20783, call a bias.
    """
    centred = returns - returns.mean(dim=1, keepdim=True)
    if not by_deviation:
        return centred
    return centred / returns.std(dim=1, keepdim=True).clamp(min=SMALLEST_DEVIATION)


def decision_weights(num_decisions: Tensor, normalisation: Literal["race", "decision"]) -> Tensor:
    """Returns what a decision of each race weighs [R]; over all decisions the weights have the mean 1.

    Args:
        num_decisions: [R] lengths of the races, at least 1.
        normalisation: "race" gives a race of L decisions M / (R L) for each, as the paper's 1 / L: a long race that
            failed weighs no more than a short one that finished. "decision" gives 1 (DAPO, Yu et al. 2025,
            arXiv:2503.14476).
    """
    if normalisation == "decision":
        return torch.ones_like(num_decisions, dtype=torch.float32)
    length = num_decisions.float()
    return length.mean() / length
