"""Averages of what gradient steps report."""

from __future__ import annotations

from torch import Tensor


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
