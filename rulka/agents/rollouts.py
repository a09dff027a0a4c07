"""What PPO learns from: the decisions of some blocks, with the advantages of their actions.

Dimensions: M decisions, T decisions of a block, N cars, H x W pixels, F floats, E image features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rulka.buffers.experience import ExperienceBlock
from rulka.buffers.shaping import shaped_rewards
from rulka.losses.gae import Endings, estimate_advantages

SMALLEST_RETURN = 1e-3
"""Floor of the root mean square return that values are measured in."""


class Rollout(NamedTuple):
    """Decisions to learn from, resets left out: what happened, and what it was worth.

    Attributes:
        image: [M, 1, H, W] uint8; or image features [M, E], where the encoder stands still.
        floats: [M, F] float32 raw.
        action: [M] int64.
        log_prob: [M] float32 of the action when it was chosen.
        value: [M] float32 estimated when acting.
        advantage: [M] float32.
        returns: [M] float32 targets of the value.
    """

    image: Tensor
    floats: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor

    def rows(self, index: Tensor) -> Rollout:
        """Returns the decisions at `index`."""
        return Rollout(*(column[index] for column in self))


def evaluate_block(
    block: ExperienceBlock, last_value: NDArray[np.float32], discount: float, trace_decay: float
) -> Rollout:
    """Copies the decisions of a block and estimates the advantages of their actions.

    Values are those estimated while acting. A decision swallowed by a reset saw the last observation of the race
    before it, so its value serves as the value after a cut race.

    Args:
        block: what happened.
        last_value: [N] value of the block's last observations.
        discount: gamma.
        trace_decay: lambda of generalised advantage estimation.
    """
    value = torch.from_numpy(np.concatenate([block.value, last_value[None]]))
    endings = Endings(*(torch.from_numpy(x) for x in (block.terminated, block.truncated, block.is_reset)))
    reward = torch.from_numpy(shaped_rewards(block, discount))
    estimate = estimate_advantages(reward, value, endings, discount, trace_decay)
    is_kept = ~block.is_reset
    return Rollout(
        image=torch.from_numpy(block.image[:-1][is_kept]),
        floats=torch.from_numpy(block.floats[:-1][is_kept]),
        action=torch.from_numpy(block.action[is_kept].astype(np.int64)),
        log_prob=torch.from_numpy(block.log_prob[is_kept]),
        value=torch.from_numpy(block.value[is_kept]),
        advantage=estimate.advantage[torch.from_numpy(is_kept)],
        returns=estimate.returns[torch.from_numpy(is_kept)],
    )


def join_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Returns all decisions in one."""
    return Rollout(*(torch.cat(columns) for columns in zip(*rollouts, strict=True)))


def return_scale(returns: Tensor) -> float:
    """Returns the root mean square of returns [M], the unit that values are clipped and weighed in."""
    return max(float(returns.square().mean().sqrt()), SMALLEST_RETURN)
