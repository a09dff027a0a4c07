"""Latent space of the variational autoencoder, Kingma and Welling 2013, arXiv:1312.6114.

Dimensions: B batch, E encoder features, Z latent numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_HIDDEN = 256


class Gaussian(NamedTuple):
    """A diagonal normal distribution for each row; both [B, Z]."""

    mean: Tensor
    log_variance: Tensor


class VaeHead(nn.Module):
    """Encoder features [B, E] to a distribution over Z latent numbers."""

    def __init__(self, num_inputs: int, num_latent: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, _HIDDEN), nn.ReLU(inplace=True), nn.Linear(_HIDDEN, 2 * num_latent)
        )

    def forward(self, features: Tensor) -> Gaussian:
        """Maps encoder features [B, E] to a distribution."""
        mean, log_variance = self.layers(features).chunk(2, dim=1)
        return Gaussian(mean, log_variance)


def sample(latent: Gaussian, generator: torch.Generator | None = None) -> Tensor:
    """Draws [B, Z] such that gradients flow into the distribution."""
    mean, log_variance = latent
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + torch.exp(0.5 * log_variance) * noise
