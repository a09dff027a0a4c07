"""Diagnostics of IQN, now and then: of its values and priorities.

Everything here only reads. Tags are those of Linesight and the peer (docs/runtime.md). Dimensions: B batch, T quantile
fractions, A actions.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.iqn import IqnNetwork
from rulka.agents.networks import by_place

MAX_ROWS = 64
"""Rows of a batch whose values are looked at."""
MAX_PRIORITIES = 1 << 14
"""Priorities that are sorted; of a larger ring as many as are evenly spread over it."""
_QUANTILES = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "d9": 0.9, "c98": 0.98, "max": 1.0}


@torch.no_grad()
def inspect_values(
    network: IqnNetwork,
    image: Tensor,
    floats: Tensor,
    tau: Tensor,
    chunk_shape: tuple[int, ...],
    *,
    is_encoded: bool = False,
) -> dict[str, float]:
    """Returns how far apart the quantiles of each action lie, and by how much the best decision leads the second best.

    A chunk's value is the sum over its places, so the second best chunk is the best one but for the place where the
    second best action costs least.

    Args:
        network: of values.
        image: [B, L, H, W] uint8, or features [B, E]; the first `MAX_ROWS` are looked at.
        floats: [B, F] float32, raw.
        tau: [T] fractions.
        chunk_shape: of a decision; none for one action, [K] for chunks, whose quantiles are named by place and action.
        is_encoded: `image` holds features.
    """
    was_training = network.training
    network.eval()  # spectral norms must not move on
    rows = slice(0, MAX_ROWS)
    value_bta = network(image[rows], floats[rows], tau.expand(len(image[rows]), -1), is_encoded=is_encoded).value
    network.train(was_training)
    best = by_place(value_bta.mean(dim=1), chunk_shape).topk(2, dim=-1).values
    lead = best[..., 0] - best[..., 1]
    gap = float((lead.amin(dim=1) if chunk_shape else lead).mean())
    spread = by_place(value_bta.std(dim=1), chunk_shape).mean(dim=0)
    named = {"_".join(map(str, place)): float(spread[place]) for place in np.ndindex(*spread.shape)}
    return {"RL/action_gap": gap} | {f"IQN/quantile_std_action_{name}": value for name, value in named.items()}


def inspect_priorities(priorities: NDArray[np.float64]) -> dict[str, float]:
    """Returns quantiles and the mean of the positive ones among priorities [rows]; nothing when there are none."""
    some = priorities[:: -(-len(priorities) // MAX_PRIORITIES) or 1]
    some = some[some > 0.0]
    if not len(some):
        return {}
    values = np.quantile(some, list(_QUANTILES.values())).tolist()
    found = dict(zip(_QUANTILES, values, strict=True)) | {"mean": float(some.mean())}
    return {f"Buffer/priorities_{name}": value for name, value in found.items()}
