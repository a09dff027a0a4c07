"""Action distributions, parameterised by a policy's outputs.

Dimensions: B decisions, P policy outputs for each, K actions of a decision, A choices for each, D intervals.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rulka.contracts.actions import ActionSpace, Choices, Intervals

LEAST_LOG_STD, MOST_LOG_STD = -5.0, 2.0
_POINTS = np.linspace(-6.0, 6.0, 97)
"""Quadrature points for the mean log-slope of tanh, in standard deviations. For the widest Gaussian they are 0.9 apart
in tanh's argument, so its bend at 0 is resolved. Even spacing is far more accurate than equally many Gauss-Hermite
points."""
_MARGIN = 1e-6
"""Least distance of a float32 decision from the ends of its interval, scaled to [-1, 1]."""


class Categoricals:
    """K independent categorical choices; outputs are logits [B, K A].

    Log-probabilities and entropies are sums over the K.
    """

    def __init__(self, actions: Choices) -> None:
        self._shape = (-1, actions.num_places, actions.num_choices)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draws choices [B, K] int64."""
        probability = self.log_probs(outputs).exp().flatten(0, 1)
        return torch.multinomial(probability, 1, generator=generator).view(self._shape[:2])

    def greedy(self, outputs: Tensor) -> Tensor:
        """Returns the most likely choices [B, K] int64."""
        return outputs.view(self._shape).argmax(dim=2)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns log-probabilities [B] of choices [B, K]."""
        return self.log_probs(outputs).gather(2, action[..., None])[..., 0].sum(dim=1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Returns entropies [B]."""
        log_probs = self.log_probs(outputs)
        return -(log_probs.exp() * log_probs).sum(dim=(1, 2))

    def divergence(self, first: Tensor, outputs: Tensor) -> Tensor:
        """Returns KL(first, outputs) [B] of logits [B, K A]."""
        before = self.log_probs(first)
        return (before.exp() * (before - self.log_probs(outputs))).sum(dim=(1, 2))

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Returns log-probabilities [B, K, A] of all choices."""
        return torch.log_softmax(outputs.view(self._shape), dim=2)


class SquashedGaussian:
    """Tanh-squashed Gaussian, one number in each of D intervals, Haarnoja et al. 2018, arXiv:1801.01290, appendix C.

    Outputs [B, 2 D] are means, then log standard deviations, before tanh. Entropies include the mean log-slope of
    tanh, computed by quadrature and therefore noise-free. Divergences are those of the Gaussians, as squashing does
    not change them.
    """

    def __init__(self, actions: Intervals) -> None:
        self.low, self._high = actions.low, actions.high
        weights = np.exp(-0.5 * _POINTS**2)
        self._points, self._weights = _POINTS.tolist(), (weights / weights.sum()).tolist()

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draws decisions [B, D] float32."""
        mean, log_std = self._moments(outputs)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return self.scaled(torch.tanh(mean + log_std.exp() * noise))

    def greedy(self, outputs: Tensor) -> Tensor:
        """Returns the medians [B, D]."""
        return self.scaled(torch.tanh(self._moments(outputs)[0]))

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Returns log-densities [B] of decisions [B, D]; decisions at the ends of an interval are moved inside."""
        mean, log_std = self._moments(outputs)
        middle, half = self.middle_and_half(action)
        squashed = ((action - middle) / half).clamp(-1.0 + _MARGIN, 1.0 - _MARGIN)
        raw = torch.atanh(squashed)
        gaussian = -0.5 * ((raw - mean) / log_std.exp()).square() - log_std - 0.5 * math.log(2.0 * math.pi)
        return (gaussian - _log_slope(raw) - half.log()).sum(dim=1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Returns differential entropies [B]; they may be negative."""
        mean, log_std = self._moments(outputs)
        _, half = self.middle_and_half(mean)
        points, weights = mean.new_tensor(self._points), mean.new_tensor(self._weights)
        raw = mean[..., None] + log_std.exp()[..., None] * points
        log_slope = (_log_slope(raw) * weights).sum(dim=2)
        return (log_std + 0.5 * math.log(2.0 * math.pi * math.e) + log_slope + half.log()).sum(dim=1)

    def divergence(self, first: Tensor, outputs: Tensor) -> Tensor:
        """Returns KL(first, outputs) [B]."""
        (mean, log_std), (new_mean, new_log_std) = self._moments(first), self._moments(outputs)
        ratio = (2.0 * (log_std - new_log_std)).exp()
        distance = ((mean - new_mean) / new_log_std.exp()).square()
        return 0.5 * (ratio + distance - 1.0 - ratio.log()).sum(dim=1)

    def _moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, dim=1)
        return mean, log_std.clamp(LEAST_LOG_STD, MOST_LOG_STD)

    def middle_and_half(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns midpoints and half-widths of the intervals, both [D], with dtype and device of `like`."""
        low, high = like.new_tensor(self.low), like.new_tensor(self._high)
        return (high + low) / 2.0, (high - low) / 2.0

    def scaled(self, squashed: Tensor) -> Tensor:
        """Maps numbers [B, D] in [-1, 1] to the intervals."""
        middle, half = self.middle_and_half(squashed)
        return middle + half * squashed


Distribution = Categoricals | SquashedGaussian
"""Distribution over a policy's decisions; it holds no tensors, so one instance works on every device."""


def distribution_of(actions: ActionSpace) -> Distribution:
    """Returns the distribution over a space of decisions."""
    return Categoricals(actions) if isinstance(actions, Choices) else SquashedGaussian(actions)


def _log_slope(raw: Tensor) -> Tensor:
    """Returns log(1 - tanh(raw)^2), finite even where tanh rounds to 1 in float32."""
    return 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
