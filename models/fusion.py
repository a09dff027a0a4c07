"""Fusions of image features and floats into the state, and their factory `build_fusion`.

Sources: Dosovitskiy et al. 2020, arXiv:2010.11929, whose blocks here attend to both image and floats; the tokens are
those of the later peer's fusion modes. To add one: a configuration in `fusion_config.py` and in its `FusionConfig`; a
subclass of `Fusion`; a case in `build_fusion`.
Dimensions: B batch, F floats, X outputs of the float head, I image tokens of width V (one token of all features, or all
tokens of the encoder; tokens of several frames follow each other), T tokens of width W, D state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.encoders.backbone import TokenModel
from models.encoders.patches import POSITION_STD, Block
from models.fusion_config import (
    ConcatConfig,
    EachFloatConfig,
    FusedVectorConfig,
    FusionConfig,
    HeadFloatsConfig,
    ProjectedConfig,
    RawFloatsConfig,
    TokensConfig,
    TokenSequenceConfig,
)
from models.layers import LEAKY_GAIN, LEAKY_SLOPE, initialise, initialise_all

_LINEAR_GAIN = 1.0
"""For layers without an activation after them."""


class Fusion(nn.Module):
    """Image features [B, I V] and the float head's output [B, X] to the state [B, D].

    Attributes:
        num_state: D, set by subclasses.
    """

    num_state: int


class Concat(Fusion):
    """Concatenation, without weights: D = I V + X."""

    def __init__(self, num_encoded: int, num_floats: int) -> None:
        super().__init__()
        self.num_state = num_encoded + num_floats

    def forward(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps [B, I V] and [B, X] to [B, D]."""
        return torch.cat([encoded, floats], dim=1)


class Projected(Fusion):
    """Concatenation, with the floats projected to as many dimensions as the image has: D = 2 I V."""

    def __init__(self, num_encoded: int, num_floats: int) -> None:
        super().__init__()
        self.project = nn.Linear(num_floats, num_encoded)
        initialise(self.project, _LINEAR_GAIN)
        self.num_state = 2 * num_encoded

    def forward(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps [B, I V] and [B, X] to [B, D]."""
        return torch.cat([encoded, self.project(floats)], dim=1)


class _Attending(Fusion):
    """Transformer blocks, or a model, over tokens; the state is the mean of the output tokens: D = W."""

    def __init__(self, config: TokensConfig, num_tokens: int) -> None:
        super().__init__()
        if config.model is None:
            self.blocks: nn.Module = nn.Sequential(*(Block(config) for _ in range(config.depth)))
        else:
            self.blocks = TokenModel(config.model, config, num_tokens)
        self.norm = nn.LayerNorm(config.width)
        self.num_state = config.width

    def attend(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, T, W] to the state [B, W]."""
        return self.norm(self.blocks(tokens)).mean(dim=1)


class FusedVector(_Attending):
    """Tokens from one linear layer on both inputs: each token contains image and floats before any attention.

    Its bias serves as position embedding.
    """

    def __init__(self, config: FusedVectorConfig, num_encoded: int, num_floats: int) -> None:
        super().__init__(config, config.tokens)
        self.tokens = nn.Linear(num_encoded + num_floats, config.tokens * config.width)
        initialise(self.tokens, _LINEAR_GAIN)

    def forward(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps [B, I V] and [B, X] to [B, W]."""
        tokens = self.tokens(torch.cat([encoded, floats], dim=1)).unflatten(1, (-1, self.num_state))
        return self.attend(tokens).to(floats.dtype)


class TokenSequence(_Attending):
    """Image tokens, followed by float tokens.

    Image tokens have learned position embeddings; for float tokens, their bias serves the same purpose.
    """

    def __init__(self, config: TokenSequenceConfig, image_tokens: tuple[int, int], num_floats: int) -> None:
        """Initialises the weights.

        Args:
            config: of the fusion.
            image_tokens: I and V.
            num_floats: X; if the float head produces tokens itself, of all of them.
        """
        count, numbers = image_tokens
        head = config.floats if isinstance(config.floats, HeadFloatsConfig) else None
        super().__init__(config, count + (head.tokens if head else num_floats // config.width))
        self.image = nn.Linear(numbers, config.width, bias=False)
        self.position = nn.Parameter(torch.randn(count, config.width) * POSITION_STD)
        initialise(self.image, _LINEAR_GAIN)
        self.floats = nn.Identity()
        if head:
            self.floats = nn.Linear(num_floats, head.tokens * config.width)
            initialise(self.floats, _LINEAR_GAIN)

    def forward(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps [B, I V] and [B, X] to [B, W]."""
        image = self.image(encoded.unflatten(1, (len(self.position), -1))) + self.position
        tokens = [image, self.floats(floats).unflatten(1, (-1, self.num_state))]
        return self.attend(torch.cat(tokens, dim=1)).to(floats.dtype)


class FloatTokens(nn.Module):
    """One token per float: the float times a learned vector, plus a learned embedding that identifies the float.

    Attributes:
        weight: [W, F].
        bias: [W, F].
    """

    def __init__(self, num_floats: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, num_floats))
        self.bias = nn.Parameter(torch.randn(width, num_floats) * POSITION_STD)

    def forward(self, floats: Tensor) -> Tensor:
        """Maps normalised floats [B, F] to flattened tokens [B, F W]."""
        return (floats[:, :, None] * self.weight.T + self.bias.T).flatten(1).to(floats.dtype)


def build_fusion(config: FusionConfig, image_tokens: tuple[int, int], num_floats: int) -> Fusion:
    """Returns a fusion with new weights from torch's global generator.

    Args:
        config: of the fusion.
        image_tokens: I and V.
        num_floats: X.
    """
    num_encoded = image_tokens[0] * image_tokens[1]
    match config:
        case ConcatConfig():
            return Concat(num_encoded, num_floats)
        case ProjectedConfig():
            return Projected(num_encoded, num_floats)
        case FusedVectorConfig():
            return FusedVector(config, num_encoded, num_floats)
        case TokenSequenceConfig():
            return TokenSequence(config, image_tokens, num_floats)


def build_float_head(config: FusionConfig, num_floats: int, hidden: int, *, layer_norm: bool) -> nn.Sequential:
    """Returns the float head: normalised floats [B, F] to the fusion's input; its first layer is named 0.

    It has two linear layers, or one layer that produces tokens. The two linear layers are named 0 and 2 also with layer
    norm, because weights transfer by name.

    Args:
        config: of the fusion.
        num_floats: F.
        hidden: width of both layers.
        layer_norm: whether to normalise the outputs of both, Ba et al. 2016, arXiv:1607.06450.
    """
    match config:
        case TokenSequenceConfig(floats=EachFloatConfig()):
            return nn.Sequential(FloatTokens(num_floats, config.width))
        case TokenSequenceConfig(floats=RawFloatsConfig(tokens=count)):
            tokens = nn.Linear(num_floats, count * config.width)
            initialise(tokens, _LINEAR_GAIN)
            return nn.Sequential(tokens)
        case _:
            head = nn.Sequential()
            for index, num_inputs in ((0, num_floats), (2, hidden)):
                head.add_module(str(index), nn.Linear(num_inputs, hidden))
                if layer_norm:
                    head.add_module(f"norm_{index}", nn.LayerNorm(hidden))
                head.add_module(str(index + 1), nn.LeakyReLU(LEAKY_SLOPE, inplace=True))
            initialise_all(head, LEAKY_GAIN)
            return head
