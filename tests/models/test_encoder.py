"""Encoder, decoder and heads of pretraining: sizes, ranges, initial weights; and what BTR adds, part by part."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG, BlocksConfig, ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.encoders.convolutions import ConvEncoder, ImpalaEncoder, SpectralConv2d, feature_size
from models.encoders.patches import Block
from models.iqn import IqnNetwork, IqnSizes
from models.layers import NoisyLinear
from models.pretraining_heads import ConvDecoder, Projector, VaeHead
from models.torso import InputShape

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


def test_a_block_is_that_of_torch():
    """Pre-norm, GELU, a hidden layer of `ff_mult` widths; dropout acts in training alone."""
    torch.manual_seed(0)
    block = Block(BlocksConfig(width=12, heads=3, ff_mult=2, dropout=0.5)).eval()
    layer = nn.TransformerEncoderLayer(12, 3, 24, activation="gelu", batch_first=True, norm_first=True).eval()
    with torch.no_grad():
        pairs = zip(
            (layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias, *layer.self_attn.out_proj.parameters()),
            (*block.queries_keys_values.parameters(), *block.mix.parameters()),
            strict=True,
        )
        for theirs, ours in pairs:
            theirs.copy_(ours)
    layer.linear1.load_state_dict(block.mlp[0].state_dict())
    layer.linear2.load_state_dict(block.mlp[2].state_dict())
    tokens = torch.randn(2, 5, 12)
    expected = layer(tokens)
    torch.testing.assert_close(block(tokens), expected)
    assert not torch.allclose(block.train()(tokens), expected, atol=0.01)


def test_a_transformer_takes_what_patches_divide():
    assert build_encoder(PATCHES, 120, 160)(torch.zeros(1, 1, 120, 160)).shape == (1, 128)
    with pytest.raises(ValueError, match="60 x 64 pixels cannot be cut into patches of 8 pixels"):
        build_encoder(PATCHES, 60, 64)
    with pytest.raises(ValidationError, match="width needs to be a multiple of heads, but 100 is none of 3"):
        PatchConfig(kind="patches", patch=8, width=100, depth=1, heads=3)


@pytest.mark.parametrize("width", [36, 37])
def test_one_channel_is_convolved_as_its_columns_lie(width: int) -> None:
    """Even and odd columns as two channels give the same sums and gradients; an odd width has no halves."""
    torch.manual_seed(0)
    encoder = build_encoder(CONV, 34, width)
    image = normalise_image(torch.randint(0, 256, (3, 1, 34, width), dtype=torch.uint8), torch.float32)
    results = []
    for features in (encoder(image), encoder.layers(image)):
        encoder.zero_grad()
        features.square().sum().backward()
        results.append([features.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())])  # pyright: ignore[reportOptionalMemberAccess]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


INPUTS = InputShape(34, 36, torch.zeros(5), torch.ones(5))
IMPALA = ImpalaConfig(kind="impala", width=1, adaptive_pool=3, spectral_norm=True)
PLAIN = IqnSizes(8, 16, 4)


def build(sizes: IqnSizes, encoder: EncoderConfig = CONV) -> IqnNetwork:
    torch.manual_seed(0)
    return IqnNetwork(INPUTS, encoder, sizes, 3)


def test_noisy_layer_by_hand():
    """x = (1, 2), mu = (3, 4 | 5), sigma = 0.5 / sqrt 2; f(e) = sign(e) sqrt|e|."""
    layer = NoisyLinear(2, 1, sigma=0.5)
    nn.init.zeros_(layer.bias)
    layer.weight.data = torch.tensor([[3.0, 4.0]])
    layer.bias.data = torch.tensor([5.0])
    sigma = 0.5 / math.sqrt(2)
    assert layer.weight_sigma.tolist() == [pytest.approx([sigma, sigma])]
    assert layer(torch.tensor([1.0, 2.0])).tolist() == [16.0]
    layer.draw_noise(torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    raw_in, raw_out = torch.randn(2, generator=generator), torch.randn(1, generator=generator)
    f_in = [math.copysign(math.sqrt(abs(x)), x) for x in raw_in.tolist()]
    f_out = math.copysign(math.sqrt(abs(float(raw_out))), float(raw_out))
    expected = (3 + sigma * f_out * f_in[0]) * 1 + (4 + sigma * f_out * f_in[1]) * 2 + 5 + sigma * f_out
    assert layer(torch.tensor([1.0, 2.0])).tolist() == pytest.approx([expected], rel=1e-5)
    layer.clear_noise()
    assert layer(torch.tensor([1.0, 2.0])).tolist() == [16.0]
    assert set(layer.state_dict()) == {"weight", "bias", "weight_sigma", "bias_sigma"}


@pytest.mark.parametrize("shape", [(2, 3), (8, 4)])
def test_spectral_convolution_has_a_largest_singular_value_of_1(shape: tuple[int, int]):
    torch.manual_seed(0)
    layer = SpectralConv2d(*shape, 3, padding=1).train()
    layer.weight.data *= 7
    image = torch.randn(2, shape[0], 5, 6)
    for _ in range(60):
        result = layer(image)
    largest = torch.linalg.matrix_norm(layer.weight.flatten(1), 2)
    torch.testing.assert_close(layer.largest_singular_value(), largest, rtol=1e-3, atol=0)
    torch.testing.assert_close(
        result, functional.conv2d(image, layer.weight / largest, layer.bias, padding=1), rtol=1e-2, atol=1e-3
    )
    state = copy.deepcopy(layer.state_dict())
    layer.eval()(image)
    assert all(torch.equal(layer.state_dict()[name], state[name]) for name in state), "acting changes nothing"


def test_spectral_norm_of_the_four_convolutions():
    """Each weight is divided by its largest singular value; acting changes nothing, and keeps the shapes."""
    torch.manual_seed(0)
    encoder = build_encoder(ConvConfig(spectral_norm=True), 34, 36).eval()
    image = torch.randn(2, 1, 34, 36)
    features = image
    for layer, stride in zip(encoder.convolutions(), (2, 2, 2, 1), strict=True):
        weight = layer.weight / torch.linalg.matrix_norm(layer.weight.flatten(1), 2)
        features = functional.leaky_relu(functional.conv2d(features, weight, layer.bias, stride), 0.01)
    torch.testing.assert_close(encoder(image), features.flatten(1), rtol=0.05, atol=0.01)
    assert encoder.num_features == build_encoder(CONV, 34, 36).num_features


def test_impala_stage_by_stage():
    """Written out after the paper: conv, pool, two residual blocks, three times, then ReLU."""
    torch.manual_seed(0)
    encoder = ImpalaEncoder(ImpalaConfig(kind="impala", width=2, adaptive_pool=0, spectral_norm=False), 34, 36)
    image = torch.randn(2, 1, 34, 36)
    features, layers = image, list(encoder.layers)
    for stage in range(3):
        conv, _, *blocks = layers[4 * stage : 4 * stage + 4]
        features = functional.max_pool2d(functional.conv2d(features, conv.weight, conv.bias, padding=1), 3, 2, 1)
        for block in blocks:
            first, second = block.layers[1], block.layers[3]
            inner = functional.conv2d(torch.relu(features), first.weight, first.bias, padding=1)
            features = features + functional.conv2d(torch.relu(inner), second.weight, second.bias, padding=1)
    torch.testing.assert_close(encoder(image), torch.relu(features).flatten(1))
    assert [features.shape[1], *features.shape[2:]] == [64, 5, 5]
    assert encoder.num_features == 64 * 25


def test_layer_norm_lies_between_layer_and_activation():
    network = build(PLAIN._replace(layer_norm=True))
    mixed = torch.randn(4, network.num_state)
    hidden = network.advantage_head[0](mixed)
    normal = (hidden - hidden.mean(1, keepdim=True)) / torch.sqrt(hidden.var(1, correction=0, keepdim=True) + 1e-5)
    expected = network.advantage_head[3](functional.leaky_relu(normal, 0.01))
    torch.testing.assert_close(network.advantage_head(mixed), expected)
    assert isinstance(network.float_head[1], nn.LayerNorm)
    assert isinstance(network.float_head[4], nn.LayerNorm)
    plain = set(build(PLAIN).state_dict())
    assert plain < set(network.state_dict()), "linear layers keep their names"
