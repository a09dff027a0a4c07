"""The encoder, the decoder and the heads of pretraining: sizes, ranges, initial weights."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG, ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.encoders.convolutions import ConvEncoder, feature_size
from models.encoders.patches import Block
from models.pretraining_heads import ConvDecoder, Gaussian, Projector, VaeHead, sample

CONV = ConvConfig(kind="conv", adaptive_pool=0)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_of_the_peer():
    assert count(ConvEncoder(CONV, 64, 64)) == 45_456
    assert count(ConvEncoder(CONV, 128, 128)) == 45_456
    assert count(ConvDecoder(512, 64, 64)) == 308_081
    assert count(Projector(512, 128)) == 164_224
    assert count(VaeHead(512, 64)) == (512 + 1) * 256 + (256 + 1) * 128


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(64, 64, 512), (128, 128, 4608), (256, 256, 25_088), (120, 160, 5632)]
)
def test_number_of_features(height: int, width: int, expected: int):
    encoder = ConvEncoder(CONV, height, width)
    assert encoder.num_features == expected
    assert encoder(torch.zeros(2, 1, height, width)).shape == (2, expected)


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


def test_encoder_equals_its_layers_in_the_ordinary_layout():
    torch.manual_seed(0)
    encoder = ConvEncoder(CONV, 34, 36)
    image = torch.randint(0, 256, (3, 1, 34, 36), dtype=torch.uint8)
    x = (image.float() - 128) / 128
    for layer in encoder.layers:
        if isinstance(layer, nn.Conv2d):
            x = functional.leaky_relu(functional.conv2d(x, layer.weight, layer.bias, layer.stride), 0.01)
    torch.testing.assert_close(encoder(normalise_image(image, torch.float32)), x.flatten(1), rtol=1e-5, atol=1e-5)


def test_convolutions_are_orthogonal_with_the_gain_of_leaky_relu():
    for layer in ConvEncoder(CONV, 64, 64).layers:
        if isinstance(layer, nn.Conv2d):
            rows = layer.weight.flatten(1)
            gram = rows @ rows.T
            torch.testing.assert_close(gram, 1.41414**2 * torch.eye(len(rows)), rtol=0, atol=1e-4)
            assert not layer.bias.any()


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


def test_a_transformer_has_the_parameters_of_its_layers():
    """Embedding, positions, three blocks of (norms, queries to values, mix, mlp), the last norm."""
    block = 2 * 2 * 128 + (128 + 1) * 384 + (128 + 1) * 128 + (128 + 1) * 512 + (512 + 1) * 128
    assert count(build_encoder(PATCHES, 64, 64)) == (64 + 1) * 128 + 64 * 128 + 3 * block + 2 * 128 == 611_584


def test_a_block_is_torchs_own_with_the_same_weights():
    torch.manual_seed(1)
    block, tokens = Block(24, 3), torch.randn(2, 5, 24)
    twin = nn.TransformerEncoderLayer(24, 3, 96, 0.0, "gelu", batch_first=True, norm_first=True)
    with torch.no_grad():
        twin.self_attn.in_proj_weight.copy_(block.queries_keys_values.weight)
        twin.self_attn.in_proj_bias.copy_(block.queries_keys_values.bias)
    pairs = [(twin.self_attn.out_proj, block.mix), (twin.norm1, block.attention_norm), (twin.norm2, block.mlp_norm)]
    for own, other in [*pairs, (twin.linear1, block.mlp[0]), (twin.linear2, block.mlp[2])]:
        own.load_state_dict(other.state_dict())
    torch.testing.assert_close(block(tokens), twin(tokens))


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


def test_decoder_reaches_the_darkest_and_the_brightest_pixel():
    """A sigmoid over images in [-1, 1] cannot: uniform pixels would leave an error of 0.161 at least."""
    torch.manual_seed(0)
    target = normalise_image(
        torch.tensor([0, 255]).to(torch.uint8).repeat_interleave(32 * 32).reshape(2, 1, 32, 32), torch.float32
    )
    decoder = ConvDecoder(8, 32, 32)
    features = torch.eye(8)[:2]
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)
    for _ in range(60):
        loss = (decoder(features) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.01


@pytest.mark.parametrize(("height", "width"), [(34, 35), (84, 84), (120, 160), (64, 64)])
def test_decoder_makes_images_of_any_size(height: int, width: int):
    image = ConvDecoder(8, height, width)(torch.randn(2, 8))
    assert image.shape == (2, 1, height, width)
    assert image.abs().max() < 1


def test_latent_samples_follow_mean_and_variance():
    latent = Gaussian(torch.full((20_000, 1), 3.0), torch.full((20_000, 1), 2.0 * torch.tensor(0.5).log().item()))
    drawn = sample(latent, torch.Generator().manual_seed(0))
    assert drawn.mean() == pytest.approx(3.0, abs=0.02)
    assert drawn.std() == pytest.approx(0.5, abs=0.02)


def test_vae_head_splits_mean_and_variance():
    head = VaeHead(512, 6)
    mean, log_variance = head(torch.randn(3, 512))
    assert mean.shape == log_variance.shape == (3, 6)
    assert not torch.equal(mean, log_variance)


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
