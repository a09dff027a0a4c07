"""What each encoder can be told: the section `encoder` of params.yaml, and part of every artifact's `config`.

Imports no torch, as parameters are read where there is no network.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

PoolSize = Annotated[int, Field(ge=0, le=64)]


class _Config(BaseModel):
    """As strict as all sections of params.yaml, whose base class lies above this package."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ConvConfig(_Config):
    """Four convolutions, see `models.encoders.conv`."""

    kind: Literal["conv"] = Field(description="four convolutions, 45,456 parameters")
    adaptive_pool: PoolSize = Field(description="rows and columns of the last map after max-pooling; 0 leaves it")


class ImpalaConfig(_Config):
    """Three stages of residual blocks, see `models.encoders.impala`; 2, 6 and true in BTR."""

    kind: Literal["impala"] = Field(description="the residual encoder of IMPALA")
    width: int = Field(ge=1, le=64, description="factor of the channels 16, 32 and 32")
    adaptive_pool: PoolSize = Field(description="rows and columns of the last map after max-pooling; 0 leaves it")
    spectral_norm: bool = Field(description="divides residual convolutions by their largest singular value")


class PatchConfig(_Config):
    """A transformer over patches of the image, see `models.encoders.patches`."""

    kind: Literal["patches"] = Field(description="a vision transformer")
    patch: int = Field(ge=2, le=64, description="pixels along each side of a patch; divides height and width")
    width: int = Field(ge=8, le=2048, description="numbers of a token, and of the features; divisible by `heads`")
    depth: int = Field(ge=1, le=48, description="transformer blocks")
    heads: int = Field(ge=1, le=64, description="attention heads of a block")

    @model_validator(mode="after")
    def _check(self) -> PatchConfig:
        if self.width % self.heads:
            message = f"width {self.width} must be divisible by heads {self.heads}"
            raise ValueError(message)
        return self


AnyEncoder = ConvConfig | ImpalaConfig | PatchConfig
EncoderConfig = Annotated[AnyEncoder, Field(discriminator="kind")]
"""The configuration of any encoder, told apart by its `kind`."""

ENCODER_CONFIG: TypeAdapter[AnyEncoder] = TypeAdapter(EncoderConfig)
"""Reads one out of the plain JSON of an artifact."""
