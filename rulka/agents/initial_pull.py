"""A pull of weights back to those that training began with: L2-SP, Li et al. 2018, arXiv:1802.01483.

As AdamW decouples weight decay from the gradient, the pull is a step of its own, after that of the optimizer: of the
learning rate times the pull, as a share of the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rulka.device import on_host
from rulka.params import ByPartParams
from rulka.schedule import Moment


class InitialPull:
    """Pulls the parts of a network back to where they began, each as strongly as the parameters say."""

    def __init__(self, groups: Sequence[dict[str, Any]], pulls: ByPartParams) -> None:
        """Begins at the weights of now; keeps none where nothing is ever pulled.

        Args:
            groups: weights by part, see `PartRates.groups`.
            pulls: how strongly, by part.
        """
        self._weights: list[Tensor] = [weight for group in groups for weight in group["params"]]
        self._pulls = pulls.by_part()
        self._is_on = any(value > 0.0 for pull in self._pulls.values() for value in pull.values)
        self._initial: list[Tensor] = []
        self.begin()

    def begin(self) -> None:
        """Begins anew at the weights of now."""
        if self._is_on:
            self._initial = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def apply(self, optimizer: torch.optim.Optimizer, moment: Moment) -> None:
        """Goes a step back; call it after a step of the optimizer that was made with the groups."""
        if not self._is_on:
            return
        initial = iter(self._initial)
        for group in optimizer.param_groups:
            share = min(1.0, group["lr"] * self._pulls[group["part"]].at(moment))
            for weight in group["params"]:
                weight.lerp_(next(initial), share)

    def state_dict(self) -> list[Tensor]:
        """Returns the weights it pulls to; none where nothing is ever pulled."""
        return list(on_host(*self._initial))

    def load_state_dict(self, state: Sequence[Tensor]) -> None:
        """Goes on from what `state_dict` returned."""
        for kept, stored in zip(self._initial, state, strict=True):
            kept.copy_(stored)
