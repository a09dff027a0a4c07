"""Small parts of learners: learning rates by part, running average, means of metrics, diagnostics of training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rulka.agents.shared.params import ByPartParams
from rulka.contracts.schedule import Moment, Schedule
from rulka.machine.device import weights_on_host

NetworkT = TypeVar("NetworkT", bound=nn.Module)


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
        self._factors: dict[str, Schedule] = dict(factors)
        named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
        self.groups: list[dict[str, Any]] = [
            {"part": part, "params": [parameter for name, parameter in named if name.startswith(beginnings)]}
            for part, beginnings in parts.items()
        ]
        assert sum(len(group["params"]) for group in self.groups) == len(named), "all that may learn is in one part"

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
        if self.network is not self._learning:
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


class MetricMeans:
    """Averages metrics over gradient steps without waiting for each value."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, **values: Tensor) -> None:
        """Adds scalars of one gradient step."""
        for name, value in values.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def result(self) -> dict[str, float]:
        """Returns the mean of every metric, and the largest number of steps as `gradient_steps`."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        return means | {"gradient_steps": float(max(self._counts.values(), default=0))}


@torch.no_grad()
def inspect_training(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Returns norms of each parameter's weights, last gradient (after clipping) and optimizer moments.

    Changes nothing. Tags are those of Linesight and the peer (docs/runtime.md). `adaptive_lr_L2` is the norm of the
    learning rate over the root of the second moment: the scale of each weight's step, without bias correction.
    """
    found: dict[str, Tensor] = {}
    settings = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in network.named_parameters():
        if parameter not in settings:  # never learns
            continue
        found[f"Network/weights/{name}/L2"] = parameter.norm()
        if parameter.grad is not None:
            found[f"Gradients/by_layer/{name}/L2"] = parameter.grad.norm()
            found[f"Gradients/by_layer/{name}/Linf"] = parameter.grad.abs().max()
        state = optimizer.state.get(parameter, {})
        if "exp_avg_sq" in state:
            group, tag = settings[parameter], f"Network/optimizer/{name}"
            found[f"{tag}/exp_avg_L2"] = state["exp_avg"].norm()
            found[f"{tag}/exp_avg_sq_L2"] = state["exp_avg_sq"].norm()
            found[f"{tag}/adaptive_lr_L2"] = (group["lr"] / (state["exp_avg_sq"].sqrt() + group["eps"])).norm()
    return {tag: float(value) for tag, value in found.items()}
