"""Heads of Level 0, discarded after pretraining: the decoder, the VAE head, SimCLR's projector and ATC's predictor.

Dimensions: B batch, D input features, E encoder features, C channels, H x W pixels, Z latent dimensions, P dimensions
of a projection.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_FIRST_CHANNELS = 32
_GROWTH = 16
_HIDDEN = 256


class ConvDecoder(nn.Module):
    """Features [B, D] to images [B, C, H, W] in (-1, 1); 308,081 parameters for D = 512 and one channel at 64 x 64.

    The output is a tanh, so that it covers the whole range of `normalise_image`. (A sigmoid, as in the peer, cannot
    produce the darker half.) The last map has 16 times the size of the first; rows and columns beyond the image are cut
    off.
    """

    def __init__(self, num_inputs: int, height: int, width: int, channels: int = 1) -> None:
        super().__init__()
        self.height, self.width = height, width
        shape = (_FIRST_CHANNELS, -(-height // _GROWTH), -(-width // _GROWTH))
        self.expand = nn.Sequential(
            nn.Linear(num_inputs, shape[0] * shape[1] * shape[2]), nn.ReLU(inplace=True), nn.Unflatten(1, shape)
        )
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(32, 64, 3, 2, padding=1, output_padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(64, 32, 3, 2, padding=1, output_padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(32, 16, 4, 2, padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(16, channels, 4, 2, padding=1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Maps features [B, D] to images [B, C, H, W] in (-1, 1)."""
        return torch.tanh(self.layers(self.expand(features))[:, :, : self.height, : self.width])


def _two_layers(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_inputs, _HIDDEN), nn.ReLU(inplace=True), nn.Linear(_HIDDEN, num_outputs))


class Gaussian(NamedTuple):
    """Diagonal normal distribution of each row; both [B, Z]."""

    mean: Tensor
    log_variance: Tensor


class VaeHead(nn.Module):
    """Encoder features [B, E] to a distribution over Z latent dimensions, Kingma and Welling 2013, arXiv:1312.6114."""

    def __init__(self, num_inputs: int, num_latent: int) -> None:
        super().__init__()
        self.layers = _two_layers(num_inputs, 2 * num_latent)

    def forward(self, features: Tensor) -> Gaussian:
        """Maps encoder features [B, E] to a distribution."""
        mean, log_variance = self.layers(features).chunk(2, dim=1)
        return Gaussian(mean, log_variance)


def sample(latent: Gaussian, generator: torch.Generator | None = None) -> Tensor:
    """Draws latents [B, Z] with the reparameterisation trick, so that gradients flow into the distribution."""
    mean, log_variance = latent
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + torch.exp(0.5 * log_variance) * noise


class Projector(nn.Module):
    """Encoder features [B, E] to [B, P], where SimCLR compares views, Chen et al. 2020, arXiv:2002.05709.

    164,224 parameters for E = 512, P = 128.
    """

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.layers = _two_layers(num_inputs, num_outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Maps encoder features [B, E] to [B, P], not normalised."""
        return self.layers(features)


class Predictor(nn.Module):
    """Predicts the projection [B, P] of a later frame from that of an earlier one, as a residual.

    It is the predictor of ATC, Stooke et al. 2020, arXiv:2009.08319, whose momentum encoder is left out.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.layers = _two_layers(num_outputs, num_outputs)

    def forward(self, projection: Tensor) -> Tensor:
        """Maps projections [B, P] to predictions [B, P]."""
        return projection + self.layers(projection)
