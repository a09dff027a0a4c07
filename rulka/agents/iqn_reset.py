"""Resets of a network toward fresh weights, against what it can no longer unlearn.

Sources: Ash and Adams 2020 (shrink and perturb), arXiv:1910.08475; Nikishin et al. 2022 (last layers),
arXiv:2205.07802; the mixture of both is Linesight's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.iqn import IqnNetwork
from rulka.params import ResetParams


@torch.no_grad()
def reset_weights(network: IqnNetwork, fresh: IqnNetwork, params: ResetParams) -> None:
    """Mixes fresh weights into a network, in place.

    Every parameter becomes (1 - fresh_share) of itself plus fresh_share of the fresh one; those of the last layers of
    both heads after that last_layer_kept of themselves plus the rest of the fresh ones.

    Args:
        network: changed.
        fresh: of the same shape, newly initialised.
        params: the shares.
    """
    for parameter, new in zip(network.parameters(), fresh.parameters(), strict=True):
        parameter.lerp_(new, params.fresh_share)
    for parameter, new in zip(_last(network), _last(fresh), strict=True):
        parameter.lerp_(new, 1.0 - params.last_layer_kept)


def _last(network: IqnNetwork) -> list[Tensor]:
    return [parameter for layer in network.output_layers() for parameter in layer.parameters()]
