"""The residual image encoder of IMPALA, Espeholt et al. 2018, arXiv:1802.01561, figure 3 (right, without the LSTM).

Width factor, adaptive max-pooling and spectral norm are those of BTR, Clark et al. 2024, arXiv:2411.03820.
Dimensions: B batch, C channels, H x W pixels, E features of an image.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.initialisation import RELU_GAIN, initialise_all
from models.spectral import SpectralConv2d

STAGE_CHANNELS = (16, 32, 32)
"""Of a width factor of 1."""


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))) on [B, C, H, W]."""

    def __init__(self, channels: int, *, spectral_norm: bool) -> None:
        super().__init__()
        convolutions = [
            SpectralConv2d(channels, channels) if spectral_norm else nn.Conv2d(channels, channels, 3, padding=1)
            for _ in range(2)
        ]
        self.layers = nn.Sequential(nn.ReLU(), convolutions[0], nn.ReLU(inplace=True), convolutions[1])

    def forward(self, features: Tensor) -> Tensor:
        """Maps [B, C, H, W] to the same shape."""
        return features + self.layers(features)


class ImpalaEncoder(nn.Module):
    """Normalised images [B, 1, H, W] to features [B, E]: three stages, each halving height and width (rounded up).

    A stage is a 3 x 3 convolution, a 3 x 3 max-pooling with stride 2 and two residual blocks.

    Attributes:
        num_features: E, 32 width times the pixels of the last map.
    """

    def __init__(
        self, height: int, width: int, width_factor: int, pool_size: int = 0, *, spectral_norm: bool = False
    ) -> None:
        """Builds the encoder.

        Args:
            height: H.
            width: W.
            width_factor: multiplies the channels of every stage; 2 in BTR.
            pool_size: rows and columns of the last map after adaptive max-pooling; 0 leaves it as it is.
            spectral_norm: divides the weights of the residual convolutions by their largest singular value.
        """
        super().__init__()
        layers: list[nn.Module] = []
        num_inputs = 1
        for channels in (width_factor * number for number in STAGE_CHANNELS):
            layers += [nn.Conv2d(num_inputs, channels, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [ResidualBlock(channels, spectral_norm=spectral_norm) for _ in range(2)]
            num_inputs = channels
            height, width = -(-height // 2), -(-width // 2)
        layers.append(nn.ReLU(inplace=True))
        if pool_size:
            layers.append(nn.AdaptiveMaxPool2d(pool_size))
            height = width = pool_size
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.num_features = num_inputs * height * width
        initialise_all(self, RELU_GAIN)
        for layer in self.modules():
            if isinstance(layer, SpectralConv2d):
                layer.settle()

    def forward(self, image: Tensor) -> Tensor:
        """Maps images made by `normalise_image` [B, 1, H, W] to features [B, E]."""
        return self.layers(image)
