"""The large-margin loss on demonstrations of DQfD, Hester et al. 2018, arXiv:1704.03732, equation 3.

The demonstrated action is to be worth more than any other by a margin, so that actions nobody has shown are not taken
for better ones before they were tried. Dimensions: B demonstrations, A actions.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def margin_loss(value: Tensor, action: Tensor, margin: float) -> Tensor:
    """Returns [B] by how much the best other action, a margin added, exceeds the demonstrated one; 0 if it does not.

    Args:
        value: [B, A] Q-values, or advantages: a number added to a row changes nothing.
        action: [B] int64, demonstrated.
        margin: in units of returns; not negative.
    """
    is_demonstrated = functional.one_hot(action, value.shape[1]).bool()
    shown = value[is_demonstrated]
    return (value + margin).masked_fill(is_demonstrated, -float("inf")).amax(dim=1).sub(shown).clamp(min=0.0)
