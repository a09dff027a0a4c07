"""Metrics of gradient steps, and diagnostics of weights, gradients and optimizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rulka.machine.device import on_host


class MetricMeans:
    """Metrics of an update, which stay on the device until `result` reads all of them at once."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = defaultdict(list)
        self._facts: dict[str, Tensor | float] = {}

    def add(self, **values: Tensor) -> None:
        """Adds scalars of one gradient step."""
        for name, value in values.items():
            self._values[name].append(value.detach())

    def keep(self, num_steps: int) -> None:
        """Drops what was added after the first `num_steps` gradient steps."""
        for values in self._values.values():
            del values[num_steps:]

    def note(self, facts: Mapping[str, Tensor | float]) -> None:
        """Adds numbers and scalars of the whole update; the mean of a metric of the same name replaces one."""
        self._facts |= facts

    def result(self) -> dict[str, float]:
        """Returns all facts, the mean of every metric, and the largest number of steps as `gradient_steps`."""
        of_update = {name: value for name, value in self._facts.items() if isinstance(value, Tensor)}
        counts = {name: len(values) for name, values in self._values.items()}
        facts, values = on_host(
            _stacked([*of_update.values()]), _stacked([value for each in self._values.values() for value in each])
        )
        by_name = zip(counts, values.split([*counts.values()]), strict=True)
        means = {name: float(sum(each)) / len(each) for name, each in by_name}
        found = self._facts | dict(zip(of_update, facts.tolist(), strict=True)) | means
        return {name: float(value) for name, value in found.items()} | {
            "gradient_steps": float(max(counts.values(), default=0))
        }


def _stacked(scalars: list[Tensor]) -> Tensor:
    return torch.stack(scalars) if scalars else torch.empty(0)


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
