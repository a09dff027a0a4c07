"""Factory of encoders."""

from __future__ import annotations

from models.encoders.backbone import BackboneEncoder
from models.encoders.base import Encoder
from models.encoders.config import (
    BackboneConfig,
    ConvConfig,
    EncoderConfig,
    ImpalaConfig,
    PatchConfig,
    ResolvedBackboneConfig,
)
from models.encoders.convolutions import ConvEncoder, ImpalaEncoder
from models.encoders.patches import PatchEncoder


def build_encoder(config: EncoderConfig, height: int, width: int, channels: int = 1) -> Encoder:
    """Returns an encoder of images [B, channels, height, width], with new weights from torch's global generator.

    Raises:
        ValueError: if images are too small for it, or cannot be cut into its patches; if a backbone is not resolved,
            or is not a vision model.
    """
    match config:
        case ConvConfig():
            return ConvEncoder(config, height, width, channels)
        case ImpalaConfig():
            return ImpalaEncoder(config, height, width, channels)
        case PatchConfig():
            return PatchEncoder(config, height, width, channels)
        case ResolvedBackboneConfig():
            return BackboneEncoder(config)
        case BackboneConfig():
            raise ValueError(f"stage pretrain has not looked yet at what encoder.source names ({config.source.kind})")
