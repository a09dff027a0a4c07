"""Image decoder of the autoencoder and the VAE.

Dimensions: B batch, D input features, C channels, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_FIRST_CHANNELS = 32
_SHRINKAGE = 16


class ConvDecoder(nn.Module):
    """Features [B, D] to images [B, C, H, W] in (-1, 1); 308,081 parameters for D = 512, C = 1 at 64 x 64.

    The output is a tanh, so that it reaches the whole range of `models.encoder.normalise_image`. (A sigmoid, as in the
    peer, cannot produce the darker half of it.)
    """

    def __init__(self, num_inputs: int, height: int, width: int, num_frames: int = 1) -> None:
        super().__init__()
        if height % _SHRINKAGE or width % _SHRINKAGE:
            message = f"the decoder needs a height and width divisible by {_SHRINKAGE}, got {height} x {width}"
            raise ValueError(message)
        shape = (_FIRST_CHANNELS, height // _SHRINKAGE, width // _SHRINKAGE)
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
            nn.ConvTranspose2d(16, num_frames, 4, 2, padding=1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Maps features [B, D] to images [B, C, H, W] in (-1, 1)."""
        return torch.tanh(self.layers(self.expand(features)))
