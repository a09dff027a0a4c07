"""What PPO learns from: the decisions of some blocks, with the advantages of their actions.

Advantages and returns are estimated when an update begins, all of them from the values of one network. The values that
were estimated while acting are those of older weights, the newest block's of others than the oldest block's.
Dimensions: M decisions, T decisions of a block, N cars, L frames seen at once, H x W pixels, F floats, E image
features, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.actor_critic import PolicyAndValue
from rulka.buffers.experience import ExperienceBlock
from rulka.device import CPU, upload_copy
from rulka.losses.gae import Endings, estimate_advantages

SMALLEST_RETURN = 1e-3
"""Floor of the root mean square return that values are measured in."""


class Segment(NamedTuple):
    """What is kept of blocks until they are learned from; see `rulka.buffers.experience`.

    Attributes:
        image: [T + 1, N, L, H, W] uint8.
        floats: [T + 1, N, F] float32 raw.
        action: [T, N] int64.
        log_prob: [T, N] float32 of the action when it was chosen.
        reward: [T, N] float32, shaping included.
        terminated: [T, N] bool.
        truncated: [T, N] bool.
        is_reset: [T, N] bool.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    is_reset: Tensor

    @property
    def endings(self) -> Endings:
        """How each decision ended."""
        return Endings(self.terminated, self.truncated, self.is_reset)


class Rollout(NamedTuple):
    """Decisions to learn from, resets left out: what happened, and what it was worth when the update began.

    Attributes:
        image: [M, L, H, W] uint8; or image features [M, E], where the encoder is frozen.
        floats: [M, F] float32 raw.
        action: [M] int64.
        log_prob: [M] float32 of the action when it was chosen.
        first_log_probs: [M, A] float32 of all actions when the update began.
        value: [M] float32 when the update began.
        advantage: [M] float32.
        returns: [M] float32 targets of the value.
        clone_log_probs: [M, A] float32 of the policy that learning began with; [0] where nothing holds on to it.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    first_log_probs: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    clone_log_probs: Tensor

    def rows(self, index: Tensor) -> Rollout:
        """Returns the decisions at `index`."""
        return Rollout(*(column[index] if len(column) else column for column in self))


def keep_block(block: ExperienceBlock, discount: float, device: torch.device = CPU) -> Segment:
    """Copies what is learned from in a block to a device; `discount` is the gamma of the shaping."""
    arrays = (block.image, block.floats, block.action.astype(np.int64), block.log_prob)
    ends = (block.terminated, block.truncated, block.is_reset)
    columns = (torch.from_numpy(array) for array in (*arrays, shaped_rewards(block, discount), *ends))
    return upload_copy(Segment(*columns), device)


def shaped_rewards(block: ExperienceBlock, discount: float) -> NDArray[np.float32]:
    """Returns rewards [T, N] with potential-based shaping, Ng et al. 1999: gamma phi(s') - phi(s) is added.

    phi(s') is 0 where a race ended for good.
    """
    following = np.where(block.terminated, np.float32(0.0), block.potential[1:])
    return block.reward + np.float32(discount) * following - block.potential[:-1]


def join_segments(segments: Sequence[Segment]) -> Segment:
    """Returns segments of equally many decisions as one, with all their cars side by side."""
    return Segment(*(torch.cat(columns, dim=1) for columns in zip(*segments, strict=True)))


def rollout_with_gae(segment: Segment, decided: PolicyAndValue, discount: float, trace_decay: float) -> Rollout:
    """Estimates the advantages of a segment's actions.

    A decision swallowed by a reset saw the last observation of the race before it, so its value serves as the value
    after a cut race.

    Args:
        segment: what happened.
        decided: logits [T + 1, N, A] and values [T + 1, N] of all its observations, by one network.
        discount: gamma.
        trace_decay: lambda of generalised advantage estimation.
    """
    value = decided.value
    estimate = estimate_advantages(segment.reward, value, segment.endings, discount, trace_decay)
    is_kept = ~segment.is_reset
    return Rollout(
        image=segment.image[:-1][is_kept],
        floats=segment.floats[:-1][is_kept],
        action=segment.action[is_kept],
        log_prob=segment.log_prob[is_kept],
        first_log_probs=decided.logits[:-1][is_kept].log_softmax(dim=1),
        value=value[:-1][is_kept],
        advantage=estimate.advantage[is_kept],
        returns=estimate.returns[is_kept],
        clone_log_probs=torch.empty(0, device=value.device),
    )


def return_scale(returns: Tensor) -> float:
    """Returns the root mean square of returns [M], the unit that values are clipped and weighed in."""
    return max(float(returns.square().mean().sqrt()), SMALLEST_RETURN)
