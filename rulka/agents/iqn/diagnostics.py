"""Diagnostics of IQN's values.

Dimensions: B batch, T quantile fractions, L frames seen at once, H x W pixels, F floats, E image features.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.iqn import IqnNetwork

MAX_ROWS = 64
"""Rows of a batch that `inspect_values` uses."""


@torch.no_grad()
def inspect_values(network: IqnNetwork, image: Tensor, floats: Tensor, tau: Tensor) -> dict[str, float]:
    """Returns the quantile spread of each action, and the action gap between the best and the second-best decision.

    The second-best decision differs from the best one in a single action: that whose second-best choice costs least.

    Args:
        network: the Q-network.
        image: [B, L, H, W] uint8, or features [B, E]; the first `MAX_ROWS` are used.
        floats: [B, F] float32, raw.
        tau: [T] fractions.
    """
    was_training = network.training
    network.eval()  # must not update spectral norms
    rows = slice(0, MAX_ROWS)
    value = network(image[rows], floats[rows], tau.expand(len(image[rows]), -1))
    network.train(was_training)
    best = value.mean(dim=1).topk(2, dim=2).values
    gap = float((best[..., 0] - best[..., 1]).amin(dim=1).mean())
    spread = value.std(dim=1).mean(dim=0)
    tags = {f"{k}_{action}" if len(spread) > 1 else f"{action}": (k, action) for k, action in np.ndindex(*spread.shape)}
    return {"RL/action_gap": gap} | {f"IQN/quantile_std_action_{tag}": float(spread[at]) for tag, at in tags.items()}
