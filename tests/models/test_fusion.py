"""Fusions: each against a naive twin, for what it sees, for gradients and precisions; tokens of every encoder."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn import functional

from models.actor_critic import ActorCritic
from models.encoders.backbone import BackboneEncoder
from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import (
    ArchitectureSource,
    ConvConfig,
    EncoderConfig,
    ImageConfig,
    ImpalaConfig,
    PatchConfig,
    ResolvedBackboneConfig,
)
from models.fusion_config import AnyFusion, FusionConfig
from models.torso import InputShape, Torso

READ: TypeAdapter[AnyFusion] = TypeAdapter(FusionConfig)
BLOCKS = {"width": 8, "depth": 2, "heads": 2}


def tokens_of(image: str, floats: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "token_sequence", "image": image, "floats": floats, **BLOCKS}


KINDS: dict[str, dict[str, Any]] = {
    "concat": {"kind": "concat"},
    "projected": {"kind": "projected"},
    "fused vector": {"kind": "fused_vector", "tokens": 3, **BLOCKS},
    "one image token, each float": tokens_of("one", {"kind": "each"}),
    "one image token, float head": tokens_of("one", {"kind": "head", "tokens": 1}),
    "all image tokens, raw floats": tokens_of("all", {"kind": "raw", "tokens": 2}),
    "all image tokens, float head": tokens_of("all", {"kind": "head", "tokens": 2}),
}
FUSIONS = pytest.mark.parametrize(
    "fusion", [pytest.param(READ.validate_python(one), id=key) for key, one in KINDS.items()]
)
CONV = ConvConfig(kind="conv", adaptive_pool=0)
PATCHES = PatchConfig(kind="patches", patch=24, width=8, depth=1, heads=2)
ENCODERS = pytest.mark.parametrize("encoder", [CONV, PATCHES], ids=["conv", "patches"])
INPUTS = InputShape(48, 48, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0]))


def torso(fusion: AnyFusion, encoder: EncoderConfig = CONV, inputs: InputShape = INPUTS) -> Torso:
    torch.manual_seed(0)
    return Torso(inputs, encoder, 6, fusion)


def seen(rows: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (rows, 1, 48, 48), generator=generator, dtype=torch.uint8)
    return image, 3.0 + torch.randn(rows, 5, generator=generator)


# Naive twins ----------------------------------------------------------------------------------------------------------


def naive_block(block: nn.Module, tokens: Tensor, heads: int) -> Tensor:
    """One block on tokens [T, W] of one observation, attention by torch's own module."""
    weight = dict(block.named_parameters())
    attention = nn.MultiheadAttention(tokens.shape[1], heads)
    joint, mix = "queries_keys_values", "mix"
    names = {"in_proj_weight": weight[f"{joint}.weight"], "in_proj_bias": weight[f"{joint}.bias"]}
    names |= {f"out_proj.{kind}": weight[f"{mix}.{kind}"] for kind in ("weight", "bias")}
    attention.load_state_dict(names)
    normal = naive_norm(weight, "attention_norm", tokens)
    tokens = tokens + attention(normal, normal, normal, need_weights=False)[0]
    hidden = naive_norm(weight, "mlp_norm", tokens) @ weight["mlp.0.weight"].T + weight["mlp.0.bias"]
    hidden = 0.5 * hidden * (1.0 + torch.erf(hidden / math.sqrt(2.0)))
    return tokens + hidden @ weight["mlp.2.weight"].T + weight["mlp.2.bias"]


def naive_norm(weights: Mapping[str, Tensor], name: str, tokens: Tensor) -> Tensor:
    centred = tokens - tokens.mean(dim=1, keepdim=True)
    normal = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    return normal * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def naive_state(torso: Torso, config: dict[str, Any], encoded: Tensor, floats: Tensor) -> Tensor:
    """The state of one observation, of image features [E] and raw floats [F], written out."""
    shown, weights = (floats - INPUTS.float_mean) / INPUTS.float_std, dict(torso.state_dict())

    def linear(name: str, vector: Tensor) -> Tensor:
        return weights[f"{name}.weight"] @ vector + weights.get(f"{name}.bias", torch.zeros(()))

    def float_head() -> Tensor:
        hidden = functional.leaky_relu(linear("float_head.0", shown), 0.01)
        return functional.leaky_relu(linear("float_head.2", hidden), 0.01)

    if config["kind"] == "concat":
        return torch.cat([encoded, float_head()])
    if config["kind"] == "projected":
        return torch.cat([encoded, linear("fusion.project", float_head())])
    if config["kind"] == "fused_vector":
        joined = linear("fusion.tokens", torch.cat([encoded, float_head()]))
        tokens = [joined[8 * index : 8 * index + 8] for index in range(config["tokens"])]
    else:
        of_image = encoded.split(len(encoded) // len(weights["fusion.position"]))
        tokens = [
            linear("fusion.image", one) + place for one, place in zip(of_image, weights["fusion.position"], strict=True)
        ]
        if config["floats"]["kind"] == "each":
            for index, value in enumerate(shown):
                weight, bias = weights["float_head.0.weight"], weights["float_head.0.bias"]
                tokens.append(value * weight[:, index] + bias[:, index])
        else:
            is_raw = config["floats"]["kind"] == "raw"
            made = linear("float_head.0", shown) if is_raw else linear("fusion.floats", float_head())
            tokens += made.split(8)
    mixed = torch.stack(tokens)
    for block in torso.fusion.get_submodule("blocks").children():
        mixed = naive_block(block, mixed, 2)
    return naive_norm(weights, "fusion.norm", mixed).mean(dim=0)


@ENCODERS
@pytest.mark.parametrize("config", KINDS.values(), ids=list(KINDS))
@torch.no_grad()
def test_the_state_is_that_of_the_naive_twin(config: dict[str, Any], encoder: EncoderConfig) -> None:
    body, (image, floats) = torso(READ.validate_python(config), encoder).eval(), seen()
    for name, parameter in body.named_parameters():
        if name.endswith(("norm.weight", "norm.bias")):
            nn.init.uniform_(parameter)
    encoded = body.encode(image)
    expected = torch.stack([naive_state(body, config, *row) for row in zip(encoded, floats, strict=True)])
    state = body.state(image, floats)
    assert state.shape == (4, body.num_state)
    torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-5)


BERT = {"model_type": "bert"}
MODEL = BLOCKS | {"model": {"kind": "architecture", "config": BERT}}
WITH_MODEL = {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}, **MODEL}


@pytest.mark.parametrize("config", [WITH_MODEL, {"kind": "fused_vector", "tokens": 3, **MODEL}], ids=["all", "vector"])
def test_a_model_of_transformers_may_attend(config: dict[str, Any]) -> None:
    """It gets the tokens in place of words, learns, and drops nothing."""
    body, (image, floats) = torso(READ.validate_python(config)), seen()
    model, given = body.fusion.get_submodule("blocks.model"), []
    model.register_forward_pre_hook(lambda _, __, named: given.append(named["inputs_embeds"]), with_kwargs=True)
    state = body.train().state(image, floats)
    assert torch.equal(state, body.eval().state(image, floats))
    (tokens, _), plain = given, torso(READ.validate_python({**config, "model": None}))
    plain.load_state_dict(
        {name: tensor for name, tensor in body.state_dict().items() if "blocks" not in name}, strict=False
    )
    plain.fusion.blocks = nn.Identity()
    plain.fusion.norm = nn.Identity()
    torch.testing.assert_close(plain.state(image, floats), tokens.mean(dim=1))
    expected = body.fusion.norm(model(inputs_embeds=tokens).last_hidden_state).mean(dim=1)
    torch.testing.assert_close(state, expected)
    state.sum().backward()
    assert model.get_submodule("encoder.layer.1").attention.self.query.weight.grad is not None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BERT | {"max_position_embeddings": 5}, "network.fusion.model over 6 tokens of width 8 cannot be"),
        (BERT | {"hidden_size": 12}, "network.fusion.model over 6 tokens of width 8 cannot be"),
        ({"model_type": "vit"}, "network.fusion.model over 6 tokens of width 8 cannot be"),
    ],
)
def test_a_model_that_does_not_fit_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        torso(READ.validate_python(WITH_MODEL | {"model": {"kind": "architecture", "config": config}}))


def test_a_model_drops_nothing() -> None:
    with pytest.raises(ValueError, match=r"model needs dropout 0, as it drops nothing, but it is 0\.1"):
        READ.validate_python(WITH_MODEL | {"dropout": 0.1})


def test_a_fusion_may_have_a_float_head_of_its_own_width() -> None:
    for width in (None, 11):
        body = torso(READ.validate_python(KINDS["one image token, float head"] | {"float_hidden": width}))
        assert [layer.out_features for layer in body.float_head if isinstance(layer, nn.Linear)] == [width or 6] * 2
        assert body.state(*seen()).shape == (4, 8)


# Tokens of encoders ---------------------------------------------------------------------------------------------------


REFINED = {"width": 24, "depth": 2, "heads": 3}


def backbone(model: dict[str, Any], token: str, refine: dict[str, Any] | None = None) -> ResolvedBackboneConfig:
    source = ArchitectureSource(kind="architecture", config=model)
    image = ImageConfig(pixels=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    known = {"source": source.model_dump(), "pixels": 32, "token": token, "refine": refine}
    return ResolvedBackboneConfig(kind="backbone", architecture=model, image=image, **known)


VIT = {"model_type": "vit", "image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1}
VIT |= {"num_attention_heads": 2, "intermediate_size": 32}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}


@pytest.mark.parametrize(
    ("encoder", "shape"),
    [
        (CONV, (4, 32)),
        (ConvConfig(kind="conv", adaptive_pool=3), (9, 32)),
        (ImpalaConfig(kind="impala", width=1, adaptive_pool=0, spectral_norm=False), (36, 32)),
        (ImpalaConfig(kind="impala", width=2, adaptive_pool=2, spectral_norm=True), (4, 64)),
        (PATCHES, (4, 8)),
        (PatchConfig(kind="patches", patch=12, width=8, depth=0, heads=2), (16, 8)),
        (backbone(VIT, "mean"), (16, 16)),
        (backbone(VIT, "cls"), (16, 16)),
        (backbone(RESNET, "mean"), (16, 16)),
        (backbone(VIT, "mean", REFINED), (16, 24)),
        (backbone(RESNET, "mean", REFINED), (16, 24)),
    ],
    ids=[
        "conv",
        "pooled",
        "impala",
        "pooled impala",
        "patches",
        "bare patches",
        "vit",
        "cls",
        "map",
        "refined",
        "both",
    ],
)
@torch.no_grad()
def test_features_are_made_of_tokens(encoder: EncoderConfig, shape: tuple[int, int]) -> None:
    """Of a map they are its numbers, place by place; of all else their mean, but where there is a class token."""
    torch.manual_seed(0)
    built = build_encoder(encoder, 48, 48).eval()
    image = normalise_image(seen()[0], torch.float32)
    tokens, features = built.tokens(image), built(image)
    assert built.token_shape == shape
    assert tokens.shape == (4, *shape)
    if isinstance(encoder, ConvConfig | ImpalaConfig):
        for place in range(shape[0]):
            assert torch.equal(tokens[:, place], features[:, place :: shape[0]])
    elif isinstance(built, BackboneEncoder) and encoder.token == "cls":  # pyright: ignore[reportAttributeAccessIssue]
        assert not torch.allclose(tokens.mean(dim=1), features)
    else:
        torch.testing.assert_close(tokens.mean(dim=1), features)


# Precision ------------------------------------------------------------------------------------------------------------


@FUSIONS
@ENCODERS
@torch.inference_mode()
def test_bfloat16_stays_near_and_is_what_the_heads_get(encoder: EncoderConfig, fusion: AnyFusion) -> None:
    torch.manual_seed(0)
    body, (image, floats) = ActorCritic(INPUTS, encoder, 6, 16, 3, fusion).eval(), seen(70)
    low = copy.deepcopy(body)
    low.store_in(torch.bfloat16)
    exact, rounded = body(image, floats).outputs, low(image, floats).outputs
    with torch.autocast("cpu", torch.bfloat16):
        cast, state = body(image, floats).outputs, body.state(image, floats)
    assert rounded.dtype == cast.dtype == torch.float32
    assert low.state(image, floats).dtype == torch.bfloat16
    if fusion.kind not in ("concat", "projected"):
        assert state.dtype == torch.bfloat16
    spread = float(exact.std())
    for other in (rounded, cast):
        difference = exact - other
        # A processor decides which number is the worst and by how much, not how far off they are together.
        assert 0.0 < float(difference.square().mean().sqrt()) < 0.05 * spread
        assert float(difference.abs().max()) < 0.3 * spread


def test_several_frames_have_a_token_each() -> None:
    several = INPUTS._replace(frames=2, frames_as="features")
    for inputs, count in ((INPUTS._replace(frames=2), 1), (several, 2)):
        fusion = torso(READ.validate_python(KINDS["one image token, each float"]), inputs=inputs).fusion
        assert fusion.position.shape == (count, 8)
