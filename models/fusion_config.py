"""Configurations of the fusion: `network.fusion` of params.yaml, and part of artifacts' `config`.

Imports no torch, because parameters are also read without a network.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.encoders.config import ArchitectureSource, AttendingConfig, Config, key

MOST_TOKENS = 256
"""Maximum number of tokens from one linear layer."""
Size = Annotated[int, Field(ge=1, le=65_536)]


class ConcatConfig(Config):
    """Concatenation of image features and the float head's output, see `models.fusion.Concat`."""

    kind: Literal["concat"] = key("concat", "Concatenation of image features and floats.")


class ProjectedConfig(Config):
    """Concatenation, with floats projected to the dimension of the image, see `models.fusion.Projected`."""

    kind: Literal["projected"] = key("projected", "Concatenation, with floats projected to the image features' width.")


class TokensConfig(AttendingConfig):
    """Transformer blocks over tokens, or a model of Hugging Face transformers in their place."""

    float_hidden: Size | None = key(None, "Width of the float head; null takes network.float_hidden.")
    model: ArchitectureSource | None = key(None, "Text model over the tokens instead of blocks; null for blocks.")

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.model is not None and self.dropout:
            raise ValueError(f"model needs dropout 0, as it drops nothing, but it is {self.dropout}: set it to 0")
        return self


class FusedVectorConfig(TokensConfig):
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


class TokenSequenceConfig(TokensConfig):
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
