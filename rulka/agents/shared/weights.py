"""Learning rates by part of a network, and the running average of its weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from models.torso import Torso
from rulka.agents.shared.params import ByPartParams
from rulka.contracts.schedule import Moment, Schedule
from rulka.machine.device import weights_on_host

NetworkT = TypeVar("NetworkT", bound=Torso)


_WITHIN = {"fusion": ("float_head", "fusion."), "value": ("heads", "value_head.")}
"""Parts within others that may have a learning rate of their own: that other part, and their tensor name prefix."""


class PartRates:
    """Gives every part of a network its own learning rate.

    A part whose factor is 0 is frozen: it gets no gradients, and the optimizer leaves it alone, weight decay included.
    """

    def __init__(self, network: nn.Module, parts: Mapping[str, tuple[str, ...]], factors: ByPartParams) -> None:
        """Groups the weights of a network by part.

        Args:
            network: to train.
            parts: tensor name prefixes of each part; see `rulka.agents.shared.acting.NetworkActor`.
            factors: of the learning rate, by part.
        """
        given = dict(factors)
        self._factors: dict[str, Schedule] = given | {
            part: given[part] or given[whole] for part, (whole, _) in _WITHIN.items()
        }
        beginnings = {part: (prefix,) for part, (_, prefix) in _WITHIN.items()} | dict(parts)
        grouped: dict[str, list[nn.Parameter]] = {part: [] for part in beginnings}
        for name, parameter in network.named_parameters():
            if parameter.requires_grad:
                grouped[next(part for part in beginnings if name.startswith(beginnings[part]))].append(parameter)
        self.groups: list[dict[str, Any]] = [{"part": part, "params": params} for part, params in grouped.items()]

    def factor(self, part: str, moment: Moment) -> float:
        """Returns the factor of a part's learning rate; 1 if it is not a part of the network."""
        return self._factors[part].at(moment) if part in self._factors else 1.0

    def apply(self, optimizer: torch.optim.Optimizer, learning_rate: float, moment: Moment) -> None:
        """Sets the learning rates of an optimizer built from `groups`, and freezes or unfreezes each part."""
        for group in optimizer.param_groups:
            factor = self.factor(group["part"], moment)
            group["lr"] = learning_rate * factor
            for parameter in group["params"]:
                parameter.requires_grad_(factor > 0.0)
                if factor == 0.0:
                    parameter.grad = None


class RunningAverage(Generic[NetworkT]):
    """A running average of a network's weights, which races in its place (Polyak and Juditsky 1992).

    While a network learns, its greedy actions change from one update to the next; those of averaged weights hardly do.

    Attributes:
        network: the averaged network; the learning network itself if the share is 1.
    """

    def __init__(self, learning: NetworkT, share: float) -> None:
        """Starts at the current weights; each `move` goes `share`, in (0, 1], of the way to the learning network."""
        self._learning, self._share = learning, share
        self.network = learning if share == 1.0 else copy.deepcopy(learning).requires_grad_(False)

    def begin(self) -> None:
        """Restarts at the current weights."""
        self.network.load_state_dict(self._learning.state_dict())

    @torch.no_grad()
    def move(self) -> None:
        """Moves towards the current weights; buffers, such as limits and power iterations, are copied."""
        if self.network is self._learning:
            return
        for average, parameter in zip(self.network.parameters(), self._learning.parameters(), strict=True):
            average.lerp_(parameter, self._share)
        for kept, buffer in zip(self.network.buffers(), self._learning.buffers(), strict=True):
            kept.copy_(buffer)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns its weights; empty if it is the learning network itself."""
        return {} if self.network is self._learning else weights_on_host(self.network)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Resumes from a `state_dict`."""
        if self.network is not self._learning:
            self.network.load_state_dict(dict(state))
