"""Vision transformer over image patches, Dosovitskiy et al. 2020, arXiv:2010.11929, with pre-norm blocks.

Features are the mean of the output tokens instead of a class token, as in Zhai et al. 2021, arXiv:2106.04560: one token
fewer, and as good.
Dimensions: B batch, C channels, H x W pixels, P patches, D token width and number of features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.encoders.base import Encoder
from models.encoders.config import BlocksConfig, PatchConfig

POSITION_STD = 0.02
"""Standard deviation of initial position embeddings."""


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), on tokens [B, P, D]."""

    def __init__(self, config: BlocksConfig) -> None:
        super().__init__()
        width, hidden, self.heads = config.width, config.ff_mult * config.width, config.heads
        self.dropout = nn.Dropout(config.dropout)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, P, D] to the same shape."""
        batch, patches, width = tokens.shape
        parts = self.queries_keys_values(self.attention_norm(tokens)).view(batch, patches, 3, self.heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        dropped = self.dropout.p if self.training else 0.0
        attended = functional.scaled_dot_product_attention(queries, keys, values, dropout_p=dropped)
        tokens = tokens + self.dropout(self.mix(attended.transpose(1, 2).reshape(batch, patches, width)))
        return tokens + self.dropout(self.mlp(self.mlp_norm(tokens)))


class PatchEncoder(Encoder):
    """Cuts images into square patches, one token each, which attend to each other.

    `{patch: 8, width: 128, depth: 3, heads: 4}` has 611,584 parameters at 64 x 64, with 64 patches.
    """

    def __init__(self, config: PatchConfig, height: int, width: int, channels: int = 1) -> None:
        """Initialises the weights.

        Raises:
            ValueError: if patches do not divide the image.
        """
        super().__init__()
        if height % config.patch or width % config.patch:
            raise ValueError(f"images of {height} x {width} pixels cannot be cut into patches of {config.patch} pixels")
        num_patches = (height // config.patch) * (width // config.patch)
        self.embed = nn.Conv2d(channels, config.width, config.patch, config.patch)
        self.position = nn.Parameter(torch.randn(1, num_patches, config.width) * POSITION_STD)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)
        self.num_features = config.width
        self.token_shape = (num_patches, config.width)

    def forward(self, image: Tensor) -> Tensor:
        """Maps images from `normalise_image` [B, C, H, W] to features [B, D]."""
        return self.tokens(image).mean(dim=1)

    def tokens(self, image: Tensor) -> Tensor:
        """Maps the same images to output tokens [B, P, D]."""
        tokens = self.embed(image).flatten(2).transpose(1, 2) + self.position
        return self.norm(self.blocks(tokens))
