"""A running average of a network's weights, which races in its place."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from rulka.device import weights_on_host

Network = TypeVar("Network", bound=nn.Module)


class RunningAverage(Generic[Network]):
    """Weights that follow those that learn, a share of the way each time.

    What a network would do greedily changes from one update to the next while it learns; what an average of its weights
    would do hardly does (Polyak and Juditsky 1992).

    Attributes:
        network: the average; the network that learns itself, where the share is 1.
    """

    def __init__(self, learning: Network, share: float) -> None:
        """Begins at the weights of now.

        Args:
            learning: what is averaged.
            share: how far the average moves towards it each time, in (0, 1].
        """
        self._learning, self._share = learning, share
        self.network = learning if share == 1.0 else copy.deepcopy(learning).requires_grad_(False)

    def begin(self) -> None:
        """Begins anew at the weights of now."""
        if self.network is not self._learning:
            self.network.load_state_dict(self._learning.state_dict())

    @torch.no_grad()
    def move(self) -> None:
        """Moves towards the weights of now; buffers, such as limits and power iterations, are taken as they are."""
        if self.network is self._learning:
            return
        for average, parameter in zip(self.network.parameters(), self._learning.parameters(), strict=True):
            average.lerp_(parameter, self._share)
        for kept, buffer in zip(self.network.buffers(), self._learning.buffers(), strict=True):
            kept.copy_(buffer)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns its weights; none where it is the network itself."""
        return {} if self.network is self._learning else weights_on_host(self.network)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_dict` returned."""
        if self.network is not self._learning:
            self.network.load_state_dict(dict(state))
