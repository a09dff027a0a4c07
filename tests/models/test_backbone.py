"""Vision models of transformers as encoders, beside what transformers computes with the same weights."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.encoders import backbone
from models.encoders.backbone import BackboneEncoder
from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG, AttendingConfig, BackboneConfig, ResolvedBackboneConfig
from tests.waiting import PATIENCE_S

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8, "image_size": 64}
VIT: dict[str, Any] = {"model_type": "vit", "intermediate_size": 64, **TINY}
DINO: dict[str, Any] = {"model_type": "dinov2", **TINY}
REGISTERS: dict[str, Any] = {"model_type": "dinov2_with_registers", "num_register_tokens": 4, **TINY}
SIGLIP: dict[str, Any] = {"model_type": "siglip_vision_model", "intermediate_size": 64, **TINY}
SWIN: dict[str, Any] = {
    "model_type": "swin",
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
RESNET: dict[str, Any] = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}


def resolved(
    architecture: dict[str, Any], token: str = "mean", pixels: int = 64, num_channels: int = 3, **image: Any
) -> ResolvedBackboneConfig:
    values = {"pixels": pixels, "mean": [0.5] * num_channels, "std": [0.5] * num_channels} | image
    source = {"kind": "architecture", "config": architecture}
    asked = {"kind": "backbone", "source": source, "pixels": None, "token": token}
    return ENCODER_CONFIG.validate_python(asked | {"architecture": architecture, "image": values})


def build(config: ResolvedBackboneConfig) -> BackboneEncoder:
    torch.manual_seed(0)
    return build_encoder(config, 64, 64)


def frames(height: int = 64, width: int = 64) -> Tensor:
    return torch.randint(0, 256, (3, 1, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def tokens_of(encoder: BackboneEncoder, image: Tensor, mean: list[float], std: list[float]) -> Tensor:
    """What the model makes of images [B, 1, S, S] from 0 to 1, standardised by hand."""
    channels = [(image[:, 0] - own_mean) / own_std for own_mean, own_std in zip(mean, std, strict=True)]
    return encoder.backbone(pixel_values=torch.stack(channels, dim=1)).last_hidden_state


@pytest.mark.parametrize(
    ("architecture", "token", "first", "num_features"),
    [
        (VIT, "cls", 1, 32),
        (DINO, "mean", 1, 32),
        (REGISTERS, "mean", 5, 32),
        (SIGLIP, "mean", 0, 32),
        (SWIN, "mean", 0, 32),
    ],
)
def test_features_are_those_of_the_tokens(
    architecture: dict[str, Any], token: str, first: int, num_features: int
) -> None:
    """`first` tokens are no patches: the class token, and four registers."""
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    encoder, image = build(resolved(architecture, token, mean=mean, std=std)), frames()
    tokens = tokens_of(encoder, image.float() / 255, mean, std)
    expected = tokens[:, 0] if token == "cls" else tokens[:, first:].mean(dim=1)
    assert encoder.num_features == num_features
    torch.testing.assert_close(encoder(normalise_image(image, torch.float32)), expected, rtol=1e-4, atol=1e-5)


def test_blocks_may_refine_the_tokens_of_a_model() -> None:
    """All of them, the class token too."""
    config = resolved(VIT, "cls").model_copy(update={"refine": AttendingConfig(width=16, depth=1, heads=2)})
    encoder, image = build(config), frames()
    assert encoder.num_features == 16
    assert encoder.token_shape == (64, 16)
    project, block, norm = encoder.refine
    expected = norm(block(project(tokens_of(encoder, image.float() / 255, [0.5] * 3, [0.5] * 3))))
    seen = normalise_image(image, torch.float32)
    torch.testing.assert_close(encoder(seen), expected[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder.tokens(seen), expected[:, 1:], rtol=1e-4, atol=1e-5)


def test_images_of_any_shape_become_squares_and_position_codes_follow() -> None:
    """Codes are of 8 x 8 patches, images of 6 x 6."""
    encoder, image = build(resolved(VIT, "cls", pixels=48)), frames(120, 160)
    small = functional.interpolate(image.float() / 255, (48, 48), mode="bilinear", antialias=True)
    seen = ((small - 0.5) / 0.5).expand(-1, 3, -1, -1)
    expected = encoder.backbone(pixel_values=seen, interpolate_pos_encoding=True).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder(normalise_image(image, torch.float32)), expected, rtol=1e-4, atol=1e-5)


def test_training_is_the_same_function_as_acting() -> None:
    """Dropout of a half would show, and so would the statistics of a batch."""
    for architecture in (VIT | {"hidden_dropout_prob": 0.5}, RESNET):
        encoder, image = build(resolved(architecture)), normalise_image(frames(), torch.float32)
        acting = encoder.eval()(image)
        before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
        learning = encoder.train()(image)
        assert encoder.training
        assert torch.equal(acting, learning)
        assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
        learning.sum().backward()
        assert any(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (resolved(RESNET, "cls"), "resnet has no class token: set encoder.token to mean"),
        (resolved(SIGLIP, "cls"), "siglip_vision_model has no class token"),
        (resolved(VIT, pixels=60), r"60 x 60 pixels cannot be cut into patches of 8 pixels: set encoder.pixels"),
        (resolved({"model_type": "bert", "num_hidden_layers": 1}), "bert makes no features of images of 64 x 64"),
        (resolved(VIT | {"return_dict": False}), "vit makes no features of images"),
    ],
)
def test_what_cannot_be_an_encoder_is_refused(config: ResolvedBackboneConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_encoder(config, 64, 64)


def test_what_is_asked_for_is_not_enough_to_build() -> None:
    source = {"kind": "folder", "path": "vit"}
    asked = BackboneConfig.model_validate({"kind": "backbone", "source": source, "pixels": None, "token": "mean"})
    with pytest.raises(ValueError, match=r"stage pretrain has not looked yet at what encoder.source names \(folder\)"):
        build_encoder(asked, 64, 64)


def test_an_error_of_torchvisions_import_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        message = "torch and torchvision do not fit"
        raise RuntimeError(message)

    monkeypatch.setattr(backbone.importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="torch and torchvision do not fit"):
        backbone.load_torchvision()


def test_other_encoders_import_no_transformers() -> None:
    """It takes seconds, in every process that acts."""
    code = (
        "import sys, torch\n"
        "import rulka.agents.load, tasks.pretrain\n"
        "from models.encoders.build import build_encoder\n"
        "from models.encoders.config import ENCODER_CONFIG\n"
        "for config in ({'kind': 'conv', 'adaptive_pool': 0},\n"
        "               {'kind': 'impala', 'width': 1, 'adaptive_pool': 2, 'spectral_norm': True},\n"
        "               {'kind': 'patches', 'patch': 8, 'width': 16, 'depth': 1, 'heads': 2}):\n"
        "    build_encoder(ENCODER_CONFIG.validate_python(config), 64, 64)(torch.zeros(1, 1, 64, 64))\n"
        "print([name for name in ('transformers', 'huggingface_hub') if name in sys.modules])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "[]\n"
