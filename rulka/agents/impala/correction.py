"""What is done about experience that an older policy made: V-trace, or one of those that the paper compares it with.

Dimensions: T decisions, N cars.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rulka.losses.gae import Endings
from rulka.losses.vtrace import Traced, TraceWeights, on_policy_weights, trace_values, truncated_ratio
from rulka.params import CorrectionParams, EpsilonParams, OneStepParams, VtraceParams


def corrected(
    correction: CorrectionParams, log_ratio: Tensor, reward: Tensor, value: Tensor, endings: Endings, discount: float
) -> Traced:
    """Returns targets of values and advantages of actions [T, N], of experience that may be of an older policy.

    Args:
        correction: which.
        log_ratio: [T, N] log-probability of each action now, less that when it was chosen.
        reward: [T, N] for each decision.
        value: [T + 1, N] of all observations, the last ones included.
        endings: how each decision ended.
        discount: gamma in [0, 1].
    """
    weights = on_policy_weights(reward)
    if isinstance(correction, VtraceParams):
        weights = _weights_of(correction, log_ratio)
    traced = trace_values(reward, value, weights, endings, discount)
    if isinstance(correction, OneStepParams):
        return traced._replace(advantage=_weight_of(correction, log_ratio) * traced.advantage)
    return traced


def log_prob_in_loss(correction: CorrectionParams, log_prob: Tensor) -> Tensor:
    """Returns the logarithms of probabilities [...] whose gradients the policy follows."""
    return _floored(correction, log_prob) if isinstance(correction, EpsilonParams) else log_prob


def _weights_of(vtrace: VtraceParams, log_ratio: Tensor) -> TraceWeights:
    return TraceWeights(truncated_ratio(log_ratio, vtrace.rho_bar), truncated_ratio(log_ratio, vtrace.c_bar))


def _weight_of(one_step: OneStepParams, log_ratio: Tensor) -> Tensor:
    return truncated_ratio(log_ratio, one_step.rho_bar)


def _floored(floor: EpsilonParams, log_prob: Tensor) -> Tensor:
    """Returns log(pi + epsilon)."""
    return torch.logaddexp(log_prob, log_prob.new_tensor(math.log(floor.epsilon)))
