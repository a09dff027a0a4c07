"""Image decoder of the autoencoder and the VAE.

Dimensions: B batch, D input features, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_FIRST_CHANNELS = 32
_GROWTH = 16


class ConvDecoder(nn.Module):
    """Features [B, D] to images [B, 1, H, W] in (-1, 1); 308,081 parameters for D = 512 at 64 x 64.

    The output is a tanh, so that it reaches the whole range of `models.encoder.normalise_image`. (A sigmoid, as in the
    peer, cannot produce the darker half of it.) The last map grows to 16 times the first; rows and columns beyond the
    image are cut off.
    """

    def __init__(self, num_inputs: int, height: int, width: int) -> None:
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
            nn.ConvTranspose2d(16, 1, 4, 2, padding=1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Maps features [B, D] to images [B, 1, H, W] in (-1, 1)."""
        return torch.tanh(self.layers(self.expand(features))[:, :, : self.height, : self.width])
