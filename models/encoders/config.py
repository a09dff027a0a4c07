"""Configurations of encoders: the section `encoder` of params.yaml, and part of every artifact's `config`.

Imports no torch, because parameters are also read without a network.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, model_validator

PoolSize = Annotated[int, Field(ge=0, le=64)]
TokenWidth = Annotated[int, Field(ge=8, le=2048)]
Heads = Annotated[int, Field(ge=1, le=64)]


class Config(BaseModel):
    """Base class, as strict as the sections of params.yaml, whose base class this package must not import."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def key(default: Any, meaning: str, **bounds: Any) -> Any:
    """Returns a field: its default, its description, and bounds in addition to those of its type."""
    return Field(default, description=meaning, **bounds)


class BlocksConfig(Config):
    """Transformer blocks, see `models.encoders.patches.Block`."""

    width: TokenWidth = key(64, "Width of a token and of the output; divisible by `heads`.")
    heads: Heads = key(4, "Attention heads per block.")
    ff_mult: int = key(4, "Width of a block's hidden layer, in token widths.", ge=1, le=64)
    dropout: float = key(0.0, "Share of attention weights and of each block's changes dropped in training.", ge=0, lt=1)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.heads:
            message = f"width needs to be a multiple of heads, but {self.width} is none of {self.heads}"
            raise ValueError(f"{message}: change one of them")
        return self


class AttendingConfig(BlocksConfig):
    """One transformer block or more."""

    depth: int = key(1, "Number of transformer blocks.", ge=1, le=48)


class ConvConfig(Config):
    """Four convolutions, see `models.encoders.convolutions`."""

    kind: Literal["conv"] = key("conv", "Four convolutions, 45,456 parameters.")
    adaptive_pool: PoolSize = key(0, "Rows and columns of the last feature map after adaptive max-pooling; 0 for none.")
    spectral_norm: bool = key(False, "Spectral norm: divide convolutions by their largest singular value.")


class ImpalaConfig(Config):
    """Three stages of residual blocks, see `models.encoders.convolutions`; 2, 6 and true in BTR."""

    kind: Literal["impala"] = key("impala", "Residual encoder of IMPALA.")
    width: int = key(2, "Factor on the channels 16, 32 and 32.", ge=1, le=64)
    adaptive_pool: PoolSize = key(6, "Rows and columns of the last feature map after adaptive max-pooling; 0 for none.")
    spectral_norm: bool = key(True, "Spectral norm: divide residual convolutions by their largest singular value.")


class PatchConfig(BlocksConfig):
    """A transformer over patches of the image, see `models.encoders.patches`."""

    kind: Literal["patches"] = key("patches", "Vision transformer.")
    patch: int = key(8, "Side of a patch in pixels; divides the image's height and width.", ge=2, le=64)
    width: TokenWidth = key(128, "Width of a token and of the features; divisible by `heads`.")
    depth: int = key(3, "Transformer blocks; 0 leaves attention to a fusion that takes all tokens.", ge=0, le=48)


class ArchitectureSource(Config):
    """A backbone whose architecture is given in the parameters; its weights are newly initialised."""

    kind: Literal["architecture"] = key("architecture", "Architecture with fresh weights; nothing is downloaded.")
    config: dict[str, JsonValue] = Field(
        description="Content of a transformers config.json: model_type, and what differs from its defaults."
    )


class FolderSource(Config):
    """A backbone in a folder written by `save_pretrained` of transformers."""

    kind: Literal["folder"] = key("folder", "Folder with config.json and model.safetensors.")
    path: str = Field(min_length=1, description="Path of the folder; its preprocessor_config.json is read if present.")


class HubSource(Config):
    """A backbone of the Hugging Face Hub, downloaded once."""

    kind: Literal["hub"] = key("hub", "Model of the Hugging Face Hub, downloaded once into its cache.")
    id: str = Field(min_length=1, description="Name on the hub, such as facebook/dinov2-small.")
    revision: str = key("main", "Branch, tag or commit; a commit never changes.", min_length=1)


class BackboneConfig(Config):
    """A vision model of transformers as requested, see `models.encoders.backbone`; no network can be built from it.

    Stage `pretrain` resolves it to a `ResolvedBackboneConfig`.
    """

    kind: Literal["backbone"] = key("backbone", "Vision model of Hugging Face transformers.")
    source: ArchitectureSource | FolderSource | HubSource = Field(
        discriminator="kind", description="Source of the architecture and the initial weights."
    )
    pixels: int | None = key(None, "Side of resized images in pixels; null takes the model's own.", ge=8, le=2048)
    token: Literal["cls", "mean"] = key("cls", "Features: the class token, or the mean over patches.")
    refine: AttendingConfig | None = key(None, "Transformer blocks behind the model, over its tokens; null for none.")


class ImageConfig(Config):
    """Input images of a backbone.

    Attributes:
        pixels: rows and columns.
        mean: mean of each channel, on a scale of 0 to 1.
        std: standard deviation of each channel.
    """

    pixels: int
    mean: tuple[float, ...] = Field(strict=False)
    std: tuple[float, ...] = Field(strict=False)


class ResolvedBackboneConfig(BackboneConfig):
    """A complete backbone configuration, as stored in artifacts: its network can be built without the folder.

    Attributes:
        architecture: the whole transformers configuration.
        image: input images.
    """

    architecture: dict[str, JsonValue]
    image: ImageConfig


AnyEncoder = ConvConfig | ImpalaConfig | PatchConfig | BackboneConfig
EncoderConfig = Annotated[AnyEncoder, Field(discriminator="kind")]
"""Configuration of any encoder, discriminated by `kind`."""

StoredEncoder = ConvConfig | ImpalaConfig | PatchConfig | ResolvedBackboneConfig
ENCODER_CONFIG: TypeAdapter[StoredEncoder] = TypeAdapter(Annotated[StoredEncoder, Field(discriminator="kind")])
"""Parses an encoder configuration from an artifact's plain JSON."""
