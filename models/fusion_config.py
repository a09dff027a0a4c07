"""Configurations of the fusion: `network.fusion` of params.yaml, and part of artifacts' `config`.

Imports no torch, because parameters are also read without a network.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from models.encoders.config import BlocksConfig, Config, key

MOST_TOKENS = 256
"""Maximum number of tokens from one linear layer."""


class ConcatConfig(Config):
    """Concatenation of image features and the float head's output, see `models.fusion.Concat`."""

    kind: Literal["concat"] = key("concat", "Concatenation of image features and floats.")


class ProjectedConfig(Config):
    """Concatenation, with floats projected to the dimension of the image, see `models.fusion.Projected`."""

    kind: Literal["projected"] = key("projected", "Concatenation, with floats projected to the image features' width.")


class _AttendingConfig(BlocksConfig):
    """Transformer blocks over tokens."""

    depth: int = key(1, "Number of transformer blocks.", ge=1, le=48)


class FusedVectorConfig(_AttendingConfig):
    """One linear projection of both, split into tokens, see `models.fusion.FusedVector`."""

    kind: Literal["fused_vector"] = key("fused_vector", "Tokens that each mix image features and floats.")
    tokens: int = key(8, "Number of tokens.", ge=1, le=MOST_TOKENS)


class EachFloatConfig(Config):
    """One token per float, see `models.fusion.FloatTokens`."""

    kind: Literal["each"] = key("each", "One token per float.")


class RawFloatsConfig(Config):
    """Tokens that are linear in all floats."""

    kind: Literal["raw"] = key("raw", "Tokens made from all floats by one linear layer.")
    tokens: int = key(4, "Number of tokens.", ge=1, le=MOST_TOKENS)


class HeadFloatsConfig(Config):
    """Tokens that are linear in the output of a float head of two layers."""

    kind: Literal["head"] = key("head", "Tokens made from all floats by a float head of two layers.")
    tokens: int = key(4, "Number of tokens.", ge=1, le=MOST_TOKENS)


class TokenSequenceConfig(_AttendingConfig):
    """Tokens of the image and of the floats, see `models.fusion.TokenSequence`."""

    kind: Literal["token_sequence"] = key("token_sequence", "Tokens of image and floats that attend to each other.")
    image: Literal["one", "all"] = key("all", "Image tokens: a single one, or all of the encoder's.")
    floats: EachFloatConfig | RawFloatsConfig | HeadFloatsConfig = Field(
        default_factory=RawFloatsConfig, discriminator="kind", description="Tokens of the floats."
    )

    @property
    def takes_all(self) -> bool:
        """Whether it uses all tokens of the image."""
        return self.image == "all"


AnyFusion = ConcatConfig | ProjectedConfig | FusedVectorConfig | TokenSequenceConfig
FusionConfig = Annotated[AnyFusion, Field(discriminator="kind")]
"""Configuration of any fusion, discriminated by `kind`."""

CONCAT = ConcatConfig()
"""Default fusion of networks."""
