"""Metrics of gradient steps, and diagnostics of weights, gradients and optimizers."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


class MetricMeans:
    """Averages metrics over gradient steps without waiting for each value."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, **values: Tensor) -> None:
        """Adds scalars of one gradient step."""
        for name, value in values.items():
            self._values[name].append(value.detach())

    def result(self) -> dict[str, float]:
        """Returns the mean of every metric, and the largest number of steps as `gradient_steps`."""
        means = {name: float(sum(values)) / len(values) for name, values in self._values.items()}
        return means | {"gradient_steps": float(max(map(len, self._values.values()), default=0))}


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
