"""What a learner reports of its training: averages over gradient steps, and now and then a closer look."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MetricMeans:
    """Sums metrics over gradient steps without waiting for each one's value."""

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
    """Returns norms of each parameter's weights, last gradient (after clipping) and moments in the optimizer.

    Only reads. Tags are those of Linesight and the peer (docs/runtime.md). `adaptive_lr_L2` is the norm of the learning
    rate over the root of the second moment, which is what the step of each single weight is scaled by (not yet
    corrected for the first steps).
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
