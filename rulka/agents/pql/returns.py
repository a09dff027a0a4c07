"""What the numbers of a critic say of a return: its mean, or its distribution over atoms (C51).

Dimensions: B transitions, A choices (1 where a decision is numbers), Z numbers of a critic for each: 1, or the atoms.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rulka.losses.categorical import categorical_loss, project_returns
from rulka.params import C51Params, MeanReturnParams


class Returns(Protocol):
    """How critics learn; it holds no weights.

    Attributes:
        num_atoms: Z.
    """

    num_atoms: int

    def mean(self, rated: Tensor) -> Tensor:
        """Returns mean returns [...] of what critics put out [..., Z]."""
        ...

    def target(self, rated: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns what both critics shall say [B, Z] of transitions.

        Args:
            rated: [2, B, A, Z] of the state that follows.
            probability: [B, A] of each choice there; of the critics that which thinks less of them is believed.
            reward: [B] of the transition.
            discount: [B] factor of what follows.
        """
        ...

    def loss(self, rated: Tensor, target: Tensor) -> Tensor:
        """Returns the losses [B] of both critics [2, B, Z] together."""
        ...


def returns_of(critic: MeanReturnParams | C51Params, device: torch.device) -> Returns:
    """Returns what the parameters ask for."""
    return CategoricalReturns(critic, device) if isinstance(critic, C51Params) else MeanReturns()


class MeanReturns:
    """A critic says the mean; its loss is the squared error."""

    num_atoms = 1

    def mean(self, rated: Tensor) -> Tensor:
        """Returns the only number."""
        return rated[..., 0]

    def target(self, rated: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns reward + discount * the smaller mean, [B, 1]."""
        value = (self.mean(rated) * probability).sum(dim=2).amin(dim=0)
        return (reward + discount * value)[:, None]

    def loss(self, rated: Tensor, target: Tensor) -> Tensor:
        """Returns squared errors [B], halved."""
        return 0.5 * (rated - target.detach()).square().sum(dim=(0, 2))


class CategoricalReturns:
    """A critic says how likely each of some returns is; its loss is the cross-entropy."""

    def __init__(self, critic: C51Params, device: torch.device) -> None:
        self.num_atoms = critic.atoms
        self._support = torch.linspace(critic.least, critic.most, critic.atoms, device=device)

    def mean(self, rated: Tensor) -> Tensor:
        """Returns the mean over the atoms."""
        return (rated.softmax(dim=-1) * self._support).sum(dim=-1)

    def target(self, rated: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Returns the distribution of the critic with the smaller mean, moved and projected, [B, Z]."""
        mixture = (rated.softmax(dim=-1) * probability[..., None]).sum(dim=2)
        smaller = (mixture * self._support).sum(dim=-1).argmin(dim=0)
        chosen = mixture[smaller, torch.arange(len(reward), device=reward.device)]
        return project_returns(chosen, reward, discount, self._support)

    def loss(self, rated: Tensor, target: Tensor) -> Tensor:
        """Returns cross-entropies [B]."""
        return categorical_loss(rated, target).sum(dim=0)
