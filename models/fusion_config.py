"""What can lie between encoder, floats and trunk: `network.fusion` of params.yaml, and part of artifacts' `config`.

Imports no torch, as parameters are read where there is no network.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from models.encoders.config import Config, Heads, TokenWidth, check_heads

MOST_TOKENS = 256
"""That one linear layer makes."""


class ConcatConfig(Config):
    """Image features and the float head's output side by side, see `models.fusion.Concat`."""

    kind: Literal["concat"] = Field(default="concat", description="side by side")


class ProjectedConfig(Config):
    """The same with as many numbers of the floats as of the image, see `models.fusion.Projected`."""

    kind: Literal["projected"] = Field(
        default="projected", description="side by side, the floats projected to as many numbers"
    )


class _AttendingConfig(Config):
    """Transformer blocks over tokens."""

    width: TokenWidth = Field(default=64, description="numbers of a token, and of the state; divisible by `heads`")
    depth: int = Field(default=1, ge=1, le=48, description="transformer blocks")
    heads: Heads = Field(default=4, description="attention heads of a block")

    @model_validator(mode="after")
    def _check(self) -> _AttendingConfig:
        check_heads(self.width, self.heads)
        return self


class FusedVectorConfig(_AttendingConfig):
    """One vector of both, cut into tokens, see `models.fusion.FusedVector`."""

    kind: Literal["fused_vector"] = Field(
        default="fused_vector", description="tokens that are each made of image and floats"
    )
    tokens: int = Field(default=8, ge=2, le=MOST_TOKENS, description="how many")


class EachFloatConfig(Config):
    """A token for each float, see `models.fusion.FloatTokens`."""

    kind: Literal["each"] = Field(default="each", description="a token for each float")


class RawFloatsConfig(Config):
    """Tokens that are linear in all floats."""

    kind: Literal["raw"] = Field(default="raw", description="tokens made of all floats by one linear layer")
    tokens: int = Field(default=4, ge=1, le=MOST_TOKENS, description="how many")


class HeadFloatsConfig(Config):
    """Tokens that are linear in the output of a float head of two layers."""

    kind: Literal["head"] = Field(default="head", description="tokens made of all floats by a float head of two layers")
    tokens: int = Field(default=4, ge=1, le=MOST_TOKENS, description="how many")


class TokenSequenceConfig(_AttendingConfig):
    """Tokens of the image and of the floats, see `models.fusion.TokenSequence`."""

    kind: Literal["token_sequence"] = Field(
        default="token_sequence", description="tokens of image and floats, attending to each other"
    )
    image: Literal["one", "all"] = Field(
        default="all", description="one token of the image, or all that its encoder has"
    )
    floats: EachFloatConfig | RawFloatsConfig | HeadFloatsConfig = Field(
        default_factory=RawFloatsConfig, discriminator="kind", description="what the tokens of the floats are"
    )

    @property
    def takes_all(self) -> bool:
        """Whether it takes all tokens of the image."""
        return self.image == "all"


AnyFusion = ConcatConfig | ProjectedConfig | FusedVectorConfig | TokenSequenceConfig
FusionConfig = Annotated[AnyFusion, Field(discriminator="kind")]
"""The configuration of any fusion, told apart by its `kind`."""

CONCAT = ConcatConfig()
"""What networks have that are not told otherwise."""
