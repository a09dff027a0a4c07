"""Direct preference optimisation, Rafailov et al. 2023, arXiv:2305.18290, over stretches of races.

Of a stretch tau the paper's log-ratio log pi(tau) / pi_ref(tau) is the sum over its decisions: what the simulator does
is the same under both policies. Both stretches of a pair begin in the same place, as the paper's answers have the same
prompt; they may have different lengths.
Dimensions: P pairs.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


class PreferenceLoss(NamedTuple):
    """Scalars; only `loss` carries a gradient.

    Attributes:
        loss: mean negative log-likelihood of the preferences; ln 2 where the policy is the reference.
        margin: mean of beta times (log-ratio of the chosen - log-ratio of the rejected).
        accuracy: share of pairs whose margin is positive.
    """

    loss: Tensor
    margin: Tensor
    accuracy: Tensor


def preference_loss(chosen_log_ratio: Tensor, rejected_log_ratio: Tensor, beta: float) -> PreferenceLoss:
    """Negative log-likelihood that the chosen stretch is preferred (Bradley and Terry), -log sigmoid(margin).

    Args:
        chosen_log_ratio: [P] log pi / pi_ref of the preferred stretches, summed over their decisions.
        rejected_log_ratio: [P] the same of the others.
        beta: positive; the inverse of how much reward a nat away from the reference is worth. Where a preference holds
            with probability p, the best policy has log-ratios log(p / (1 - p)) / beta apart.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)
    loss = -functional.logsigmoid(margin).mean()
    return PreferenceLoss(loss, margin.detach().mean(), (margin.detach() > 0.0).float().mean())
