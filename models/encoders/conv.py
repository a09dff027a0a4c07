"""Four convolutions, as Linesight has them.

Dimensions: B batch, C channels, H x W pixels, E features of an image (512 at 64 x 64, 4608 at 128 x 128).
"""

from __future__ import annotations

from torch import Tensor, nn

from models.encoders.base import Encoder
from models.encoders.config import ConvConfig
from models.layers import LEAKY_GAIN, LEAKY_SLOPE, conv_leaky, initialise_all

NUM_CHANNELS = 32
"""Channels of the last feature map."""

_CONVOLUTIONS = ((16, 4, 2), (32, 4, 2), (64, 3, 2), (NUM_CHANNELS, 3, 1))  # output channels, kernel, stride


class ConvEncoder(Encoder):
    """45,456 parameters at any size from 34 x 34 up, for one channel."""

    def __init__(self, config: ConvConfig, height: int, width: int, channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        num_inputs = channels
        for num_outputs, kernel, stride in _CONVOLUTIONS:
            layers += [nn.Conv2d(num_inputs, num_outputs, kernel, stride), nn.LeakyReLU(LEAKY_SLOPE)]
            num_inputs = num_outputs
        rows, columns = feature_size(height), feature_size(width)
        if config.adaptive_pool:
            layers.append(nn.AdaptiveMaxPool2d(config.adaptive_pool))
            rows = columns = config.adaptive_pool
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.num_features = NUM_CHANNELS * rows * columns
        self.token_shape = (rows * columns, NUM_CHANNELS)
        initialise_all(self, LEAKY_GAIN)

    def convolutions(self) -> list[nn.Conv2d]:
        """Returns the convolutions, each followed by a LeakyReLU."""
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d)]

    def forward(self, image: Tensor) -> Tensor:
        """Maps images made by `normalise_image` [B, C, H, W] to features [B, E]."""
        features = image
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                features = conv_leaky(layer, features)
            elif not isinstance(layer, nn.LeakyReLU):  # done with the convolution before it
                features = layer(features)
        return features


def feature_size(pixels: int) -> int:
    """Returns the height (width) of the last feature map for an image of this height (width).

    Raises:
        ValueError: if the image is too small for the four convolutions.
    """
    size = pixels
    for _, kernel, stride in _CONVOLUTIONS:
        size = (size - kernel) // stride + 1
    if size < 1:
        message = f"images must be at least 34 pixels high and wide, got {pixels}"
        raise ValueError(message)
    return size
