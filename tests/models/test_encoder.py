"""The encoder, the decoder and the heads of pretraining: sizes, ranges, initial weights."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG, ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.encoders.convolutions import ConvEncoder, feature_size
from models.pretraining_heads import ConvDecoder, Projector, VaeHead

CONV = ConvConfig(kind="conv", adaptive_pool=0)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_of_the_peer():
    assert count(ConvEncoder(CONV, 64, 64)) == 45_456
    assert count(ConvEncoder(CONV, 128, 128)) == 45_456
    assert count(ConvDecoder(512, 64, 64)) == 308_081
    assert count(Projector(512, 128)) == 164_224
    assert count(VaeHead(512, 64)) == (512 + 1) * 256 + (256 + 1) * 128


def test_smallest_image():
    assert feature_size(34) == 1
    with pytest.raises(ValueError, match="at least 34"):
        feature_size(33)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_value_is_normalised_exactly(dtype: torch.dtype, channels: int):
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, channels, 1, 1)
    normalised = normalise_image(image, dtype)
    torch.testing.assert_close(normalised.double(), (image.double() - 128) / 128, rtol=0, atol=0)
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    assert normalised.stride(1) == 1, "the convolutions must see channels last"
    assert image.max() == 255, "the input is untouched"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CONV, 512),
        (ConvConfig(kind="conv", adaptive_pool=3), 288),
        (ImpalaConfig(kind="impala", width=1, adaptive_pool=0, spectral_norm=False), 2048),
        (ImpalaConfig(kind="impala", width=2, adaptive_pool=6, spectral_norm=True), 2304),
        (PatchConfig(kind="patches", patch=8, width=24, depth=2, heads=3), 24),
    ],
)
def test_what_is_built_is_what_the_configuration_says(config: EncoderConfig, expected: int):
    encoder = build_encoder(config, 64, 64)
    assert encoder.num_features == expected
    assert encoder(torch.zeros(1, 1, 64, 64)).shape == (1, expected)
    assert ENCODER_CONFIG.validate_python(config.model_dump(mode="json")) == config


PATCHES = PatchConfig(kind="patches", patch=8, width=128, depth=3, heads=4)


def test_a_transformer_knows_where_a_patch_is():
    """Without positions the mean over tokens would be the same wherever a patch lies."""
    torch.manual_seed(1)
    encoder, image = build_encoder(PATCHES, 64, 64), torch.zeros(2, 1, 64, 64)
    image[0, :, :8, :8] = image[1, :, -8:, :8] = 1.0
    first, second = encoder(image)
    assert not torch.allclose(first, second, atol=1e-4)
    with torch.no_grad():
        encoder.position.zero_()
        first, second = encoder(image)
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


def test_a_transformer_takes_what_patches_divide():
    assert build_encoder(PATCHES, 120, 160)(torch.zeros(1, 1, 120, 160)).shape == (1, 128)
    with pytest.raises(ValueError, match="60 x 64 pixels cannot be cut into patches of 8 pixels"):
        build_encoder(PATCHES, 60, 64)
    with pytest.raises(ValidationError, match="width 100 must be divisible by heads 3"):
        PatchConfig(kind="patches", patch=8, width=100, depth=1, heads=3)


@pytest.mark.parametrize("width", [36, 37])
def test_one_channel_is_convolved_as_its_columns_lie(width: int) -> None:
    """Even and odd columns as two channels give the same sums and gradients; an odd width has no halves."""
    torch.manual_seed(0)
    encoder = build_encoder(CONV, 34, width)
    assert isinstance(encoder, ConvEncoder)
    image = normalise_image(torch.randint(0, 256, (3, 1, 34, width), dtype=torch.uint8), torch.float32)
    results = []
    for features in (encoder(image), encoder.layers(image)):
        encoder.zero_grad()
        features.square().sum().backward()
        results.append([features.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])  # pyright: ignore[reportOptionalMemberAccess]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
