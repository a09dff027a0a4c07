"""The learning rate of each part of a network, and which parts do not learn at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rulka.params import ByPartParams
from rulka.schedule import Moment


class PartRates:
    """Gives every part of a network a learning rate of its own.

    A part whose factor is 0 is frozen: it gets no gradients, and the optimizer leaves it alone, weight decay included.
    """

    def __init__(self, network: nn.Module, parts: Mapping[str, tuple[str, ...]], factors: ByPartParams) -> None:
        """Prepares.

        Args:
            network: what learns.
            parts: how the names of its tensors begin, for each part; see `rulka.agents.algorithms`.
            factors: of the learning rate, by part.
        """
        self._factors = factors.by_part()
        named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        self.groups: list[dict[str, Any]] = [
            {"part": part, "params": [parameter for name, parameter in named if name.startswith(beginnings)]}
            for part, beginnings in parts.items()
        ]
        assert sum(len(group["params"]) for group in self.groups) == len(named), "all that may learn is in one part"

    def factor(self, part: str, moment: Moment) -> float:
        """Returns what the learning rate of a part is multiplied with."""
        return self._factors[part].at(moment)

    def apply(self, optimizer: torch.optim.Optimizer, learning_rate: float, moment: Moment) -> None:
        """Sets the rates of an optimizer that was made with `groups`, and freezes or unfreezes each part."""
        for group in optimizer.param_groups:
            factor = self.factor(group["part"], moment)
            group["lr"] = learning_rate * factor
            for parameter in group["params"]:
                parameter.requires_grad_(factor > 0.0)
                if factor == 0.0:
                    parameter.grad = None
