"""What PPO learns from: the decisions of some blocks, with the advantages of their actions.

Advantages and returns are estimated when an update begins, all of them from the values of one network. The values that
were estimated while acting are those of older weights, the newest block's of others than the oldest block's.
Dimensions: M decisions, T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, E image
features, P outputs of the policy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.agents.policy_gradient.segments import Segment
from rulka.losses.gae import estimate_advantages


class Rollout(NamedTuple):
    """Decisions to learn from, resets left out: what happened, and what it was worth when the update began.

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E], where the encoder is frozen.
        floats: [M, F] float32 raw.
        action: [M] int64, or [M, K]; float32 where decisions are numbers.
        log_prob: [M] float32 of the action when it was chosen.
        first_outputs: [M, P] float32 of the policy when the update began.
        value: [M] float32 when the update began.
        advantage: [M] float32.
        returns: [M] float32 targets of the value.
        clone_outputs: [M, P] float32 of the policy that learning began with; [0] where nothing holds on to it.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    first_outputs: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    clone_outputs: Tensor

    def rows(self, index: Tensor) -> Rollout:
        """Returns the decisions at `index`."""
        return Rollout(*(column[index] if len(column) else column for column in self))


def rollout_with_gae(segment: Segment, decided: PolicyAndValue, discount: float, trace_decay: float) -> Rollout:
    """Estimates the advantages of a segment's actions.

    A decision swallowed by a reset saw the last observation of the race before it, so its value serves as the value
    after a cut race.

    Args:
        segment: what happened.
        decided: outputs [T + 1, N, P] and values [T + 1, N] of all its observations, by one network.
        discount: gamma, also of the shaping.
        trace_decay: lambda of generalised advantage estimation.
    """
    value = decided.value
    estimate = estimate_advantages(segment.shaped_reward(discount), value, segment.endings, discount, trace_decay)
    is_kept = ~segment.is_reset
    return Rollout(
        image=segment.image[:-1][is_kept],
        floats=segment.floats[:-1][is_kept],
        action=segment.action[is_kept],
        log_prob=segment.log_prob[is_kept],
        first_outputs=decided.outputs[:-1][is_kept],
        value=value[:-1][is_kept],
        advantage=estimate.advantage[is_kept],
        returns=estimate.returns[is_kept],
        clone_outputs=torch.empty(0, device=value.device),
    )
