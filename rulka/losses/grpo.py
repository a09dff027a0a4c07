"""Group-relative advantages, Shao et al. 2024, arXiv:2402.03300 (GRPO), and what a decision weighs.

The clipped surrogate is PPO's, `clipped_policy_loss` in `rulka.losses.ppo`, which takes the weights.
Dimensions: K groups, G races of a group, R races of an update, M their decisions.
"""

from __future__ import annotations

from torch import Tensor

SMALLEST_DEVIATION = 1e-6
"""Floor of the deviation that advantages are divided by; that of a group whose races are all alike."""


def group_advantages(returns: Tensor) -> Tensor:
    """Returns how much better each race [K, G] was than the mean of its group, in the group's standard deviations.

    The scale of rewards is irrelevant: groups whose races differ little count as much as those whose races differ much,
    which Liu et al. 2025, arXiv:2503.20783, call a bias.

    Args:
        returns: [K, G] sums of the rewards of races that began alike; G at least 2.
    """
    centred = returns - returns.mean(dim=1, keepdim=True)
    return centred / returns.std(dim=1, keepdim=True).clamp(min=SMALLEST_DEVIATION)


def decision_weights(num_decisions: Tensor) -> Tensor:
    """Returns what a decision of each race weighs [R]; over all decisions the weights have the mean 1.

    A decision of a race of L weighs M / (R L), as the paper's 1 / L: a long race that failed weighs no more than a
    short one that finished.

    Args:
        num_decisions: [R] lengths of the races, at least 1.
    """
    length = num_decisions.float()
    return length.mean() / length
