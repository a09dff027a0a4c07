"""Where backbones come from: small ones in folders, and in a cache of the hub that is made here. All of it offline."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from models.encoders.backbone import load_transformers
from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG, BackboneConfig, ConvConfig, ResolvedBackboneConfig
from rulka.observation_params import ObservationParams
from rulka.pretraining.backbones import BackboneError, FirstEncoder, first_encoder
from tests.conftest import sees

OBSERVATION = sees(64, 64)
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8, "image_size": 64}
VIT = {"model_type": "vit", "intermediate_size": 64, **TINY}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with HF_HUB_OFFLINE=1, which is read where huggingface_hub is imported."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Returns a function that writes a small model as transformers does, with a processor where one is named."""

    def write(name: str = "ViTModel", processor: str | None = None, processed: Any = None, **changes: Any) -> Path:
        transformers = load_transformers()
        torch.manual_seed(7)
        values = {key: value for key, value in (VIT | changes).items() if key != "model_type"}
        model_class = getattr(transformers, name)
        model_class(model_class.config_class(**values)).save_pretrained(tmp_path / "model")
        if processor:
            getattr(transformers, processor)(**processed or {}).save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return write


def asked(source: dict[str, Any], token: str = "mean", pixels: int | None = None) -> BackboneConfig:
    values = {"kind": "backbone", "source": source, "pixels": pixels, "token": token}
    return BackboneConfig.model_validate(values)


def from_folder(folder: Path, **changes: Any) -> FirstEncoder:
    return first_encoder(asked({"kind": "folder", "path": folder.as_posix()}, **changes), OBSERVATION)


def from_config(observation: ObservationParams = OBSERVATION, pixels: int | None = None, **config: Any) -> FirstEncoder:
    return first_encoder(asked({"kind": "architecture", "config": config}, pixels=pixels), observation)


def config_of(first: FirstEncoder) -> ResolvedBackboneConfig:
    assert isinstance(first.config, ResolvedBackboneConfig)
    return first.config


def test_other_encoders_are_what_they_were() -> None:
    conv = ConvConfig(kind="conv", adaptive_pool=0)
    assert first_encoder(conv, OBSERVATION) == FirstEncoder(conv, None, {})


# Architectures --------------------------------------------------------------------------------------------------------


def test_an_architecture_is_written_out_whole() -> None:
    """So that another version's defaults make no other network."""
    first = from_config(**VIT)
    config = config_of(first)
    assert (first.tensors, first.origin) == (None, {})
    assert config.source == asked({"kind": "architecture", "config": VIT}).source
    assert config.architecture.items() >= VIT.items()
    assert config.architecture["layer_norm_eps"] == 1e-12
    assert (config.image.pixels, config.image.mean, config.image.std) == (64, (0.5,) * 3, (0.5,) * 3)
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    assert ENCODER_CONFIG.validate_python(stored) == config
    assert pickle.loads(pickle.dumps(config)) == config, "collectors are sent it"


@pytest.mark.parametrize(
    ("height", "pixels", "config", "expected"),
    [
        (64, None, VIT | {"image_size": 48}, 48),
        (64, 32, VIT, 32),
        (120, None, {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}, 120),
    ],
)
def test_images_have_the_size_that_is_asked_for_or_the_models_own(
    height: int, pixels: int | None, config: dict[str, Any], expected: int
) -> None:
    found = config_of(from_config(sees(height, 160), pixels, **config))
    assert found.image.pixels == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 32}, "encoder.source.config has no model_type"),
        (VIT | {"hiden_size": 32}, "encoder.source.config: vit has no hiden_size; did you mean hidden_size?"),
        ({"model_type": "vitt"}, "knows no model_type 'vitt'; did you mean vit?"),
        (VIT | {"hidden_size": "wide"}, "encoder.source.config is no configuration of vit: .*hidden_size"),
        ({"model_type": "timm_wrapper"}, "is no configuration of timm_wrapper: .*timm"),
        ({"model_type": "bert", "num_hidden_layers": 1}, "encoder: bert makes no features of images of 64 x 64"),
        (VIT | {"model_type": "vit_mae"}, "encoder: vit_mae draws random numbers"),
        (VIT | {"patch_size": 12}, "cannot be cut into patches of 12 pixels: set encoder.pixels"),
        (VIT | {"hidden_act": "none"}, r"encoder: transformers makes no model of this vit: KeyError\('none'\)"),
    ],
)
def test_wrong_architectures_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(BackboneError, match=f"(?s){message}"):
        from_config(**config)


# Folders --------------------------------------------------------------------------------------------------------------


def test_a_folder_gives_weights_architecture_and_images(save: Save) -> None:
    """The features are those that transformers' own processor and model make of the same frames in colour."""
    transformers = load_transformers()
    processed = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "size": {"height": 64, "width": 64}}
    folder = save(processor="ViTImageProcessor", processed=processed)
    frames = torch.randint(0, 256, (3, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    processor, model = (
        getattr(transformers, name).from_pretrained(folder) for name in ("AutoImageProcessor", "AutoModel")
    )
    pixels = processor(images=list(frames.expand(-1, 3, -1, -1).numpy()), return_tensors="pt")["pixel_values"]
    expected = model.eval()(pixels).last_hidden_state[:, 0].detach()

    first = from_folder(folder, token="cls")
    assert (config_of(first).image.pixels, config_of(first).image.mean) == (64, (0.4, 0.5, 0.6))
    assert config_of(first).image.std == (0.2, 0.3, 0.4)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert first.origin == {"folder": folder.as_posix(), "weights_sha256": {"model.safetensors": digest}}
    shutil.rmtree(folder)
    encoder = build_encoder(config_of(first), 64, 64)
    assert first.tensors is not None
    encoder.load_state_dict(first.tensors)
    features = encoder(normalise_image(frames, torch.float32))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_the_head_of_a_checkpoint_is_left_and_its_lack_of_a_pooler_forgiven(save: Save) -> None:
    folder = save("ViTForImageClassification")
    stored = load_file(folder / "model.safetensors")
    assert "classifier.weight" in stored
    first = from_folder(folder)
    assert first.tensors is not None
    assert len(first.tensors) == len(stored) - 2
    assert torch.equal(first.tensors["backbone.embeddings.cls_token"], stored["vit.embeddings.cls_token"])


@pytest.mark.parametrize(
    ("processor", "processed", "pixels"),
    [
        ("BitImageProcessor", {"size": {"shortest_edge": 80}, "crop_size": {"height": 56, "width": 56}}, 56),
        ("ViTImageProcessor", {"do_resize": False}, 64),
    ],
)
def test_the_processor_says_how_large_images_are(
    save: Save, processor: str, processed: dict[str, Any], pixels: int
) -> None:
    """One that resizes nothing leaves it to the architecture."""
    folder = save(processor=processor, processed=processed)
    assert config_of(from_folder(folder)).image.pixels == pixels
    assert config_of(from_folder(folder, pixels=32)).image.pixels == 32


def test_weights_of_half_precision_are_widened(save: Save) -> None:
    folder = save()
    file = folder / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    first = from_folder(folder)
    assert first.tensors is not None
    assert {tensor.dtype for tensor in first.tensors.values()} == {torch.float32}


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


BREAKS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        "holds no config.json",
        "`save_pretrained` of transformers",
    ),
    "config is no JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json cannot be read",
        "from where it came from",
    ),
    "config is no object": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "config.json cannot be read: it is no object",
        "from where it came from",
    ),
    "own code": (
        lambda folder: edit(folder / "config.json", model_type="mine", auto_map={"AutoModel": "modeling_mine.Mine"}),
        r"mine needs Python code of its own \(trust_remote_code\), which is not run here",
        "whose code is part of transformers",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        r"holds no weights as safetensors \(model.safetensors\)$",
        "save_pretrained",
    ),
    "pickled weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "pytorch_model.bin may run code when read, and is not",
        "Where you trust its authors",
    ),
    "damaged weights": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100),
        "model cannot be read",
        "from where it came from",
    ),
    "too few layers": (
        lambda folder: edit(folder / "config.json", num_hidden_layers=1),
        "do not fit its config.json: layers.1.* and 12 more are unexpected$",
        "Take both files from the same place",
    ),
    "too many layers": (
        lambda folder: edit(folder / "config.json", num_hidden_layers=3),
        "do not fit its config.json: layers.2.* and 12 more are missing$",
        "Take both files from the same place",
    ),
    "one tensor missing": (
        lambda folder: edit_weights(folder, lambda tensors: tensors.pop("layernorm.weight")),  # pyright: ignore[reportArgumentType]
        "do not fit its config.json: layernorm.weight is missing",
        "Take both files from the same place",
    ),
    "another width": (
        lambda folder: edit(folder / "config.json", intermediate_size=48),
        "layers.0.mlp.fc1.bias, .* are of another shape",
        "Take both files from the same place",
    ),
    "processor is no JSON": (
        lambda folder: (folder / "preprocessor_config.json").write_text("{"),
        "preprocessor_config.json cannot be used",
        "set encoder.pixels",
    ),
    "processor of rectangles": (
        lambda folder: edit(folder / "preprocessor_config.json", size={"height": 64, "width": 80}),
        "makes images of 64 x 80 pixels, which are no square",
        "Name another model",
    ),
    "grey model": (
        lambda folder: edit(folder / "config.json", num_channels=1),
        "makes images of 3 channels, the model takes 1",
        "Take both files from the same place",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_wrong_with_a_folder_is_said_with_the_remedy(save: Save, name: str) -> None:
    folder = save(processor="ViTImageProcessor", processed={"size": {"height": 64, "width": 64}})
    from_folder(folder)
    do_break, message, hint = BREAKS[name]
    do_break(folder)
    with pytest.raises(BackboneError, match=message) as raised:
        from_folder(folder)
    assert hint in raised.value.hint


# The hub --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def from_hub(name: str = "somebody/tiny-vit", revision: str = "main") -> FirstEncoder:
    return first_encoder(asked({"kind": "hub", "name": name, "revision": revision}), OBSERVATION)


def test_what_was_downloaded_once_is_used_offline_and_its_commit_noted(save: Save, cache: Path) -> None:
    folder, expected = save(), from_folder(save())
    repository = cache / "models--somebody--tiny-vit"
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for revision in ("main", COMMIT):
        first = from_hub(revision=revision)
        digests = expected.origin["weights_sha256"]
        assert first.origin == {
            "hub": "somebody/tiny-vit",
            "revision": revision,
            "commit": COMMIT,
            "weights_sha256": digests,
        }
        assert config_of(first).architecture == config_of(expected).architecture
        assert first.tensors is not None
        assert expected.tensors is not None
        assert all(torch.equal(first.tensors[name], tensor) for name, tensor in expected.tensors.items())
    (repository / "snapshots" / COMMIT / "config.json").unlink()
    with pytest.raises(BackboneError, match=r"somebody/tiny-vit \(revision main\) holds no config.json"):
        from_hub()


def test_offline_says_what_to_do(cache: Path) -> None:
    with pytest.raises(
        BackboneError, match=r"\(revision main\) is not on this machine and cannot be downloaded: .*disabled"
    ) as raised:
        from_hub()
    assert "without HF_HUB_OFFLINE" in raised.value.hint
    assert "{kind: folder, path: ...}" in raised.value.hint
    assert not cache.exists()


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co"))


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (
            errors.LocalEntryNotFoundError("Got: ConnectError: refused\nmore"),
            "cannot be downloaded: Got: ConnectError: refused$",
            "a network",
        ),
        (errors.RepositoryNotFoundError("404", response=response(404)), "the hub does not give out", "hf auth login"),
        (errors.GatedRepoError("403", response=response(403)), "the hub does not give out", "hf auth login"),
        (errors.RevisionNotFoundError("404", response=response(404)), "the hub does not give out", "revision"),
        (errors.HfHubHTTPError("500 oh", response=response(500)), "cannot be downloaded: 500 oh", "Try again"),
        (httpx2.ProxyError("no proxy"), "cannot be downloaded: no proxy", "Try again"),
        (OSError("disk full"), "cannot be downloaded: disk full", "Try again"),
    ],
)
def test_what_the_hub_answers_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, hint: str
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(BackboneError, match=message) as raised:
        from_hub()
    assert hint in raised.value.hint


def test_names_on_the_hub_have_an_owner() -> None:
    with pytest.raises(ValidationError, match="name"):
        from_hub("https://huggingface.co/somebody/tiny-vit")
