"""Where backbones come from: params.yaml, and small ones in folders."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.encoders.backbone import load_transformers
from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import ENCODER_CONFIG, BackboneConfig
from rulka.contracts.observation_params import ObservationParams
from rulka.machine.errors import UserError
from rulka.pretraining.backbones import FirstEncoder, first_encoder
from tests.conftest import sees

OBSERVATION = sees(64, 64)
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8, "image_size": 64}
VIT = {"model_type": "vit", "intermediate_size": 64, **TINY}
Save = Callable[..., Path]


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


def test_a_model_of_the_hub_is_downloaded_once(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file but configuration and safetensors is fetched: a repository may hold pickles too."""
    folder, calls = save(), []

    def download(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        calls.append((name, revision, allow_patterns))
        return folder.as_posix()

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    first = first_encoder(asked({"kind": "hub", "id": "someone/tiny"}), OBSERVATION)
    expected = from_folder(folder)
    assert first.tensors is not None
    assert expected.tensors is not None
    torch.testing.assert_close(dict(first.tensors), dict(expected.tensors))
    ((name, revision, files),) = calls
    assert (name, revision) == ("someone/tiny", "main")
    assert all(each.endswith((".json", ".safetensors")) for each in files)


def test_blocks_behind_a_model_begin_fresh(save: Save) -> None:
    """So that a seed decides on them."""
    folder = {"kind": "folder", "path": save().as_posix()}
    refined = BackboneConfig.model_validate(asked(folder).model_dump() | {"refine": {"width": 16, "heads": 2}})
    first = first_encoder(refined, OBSERVATION)
    encoder = build_encoder(first.config, 64, 64)
    assert first.tensors is not None
    missing = encoder.load_state_dict(first.tensors, strict=False)
    assert not missing.unexpected_keys
    assert {name.split(".")[0] for name in missing.missing_keys} == {"refine"}


@pytest.mark.parametrize("name", ["someone/tiny", "no name at all"])
def test_a_model_that_cannot_be_had_is_named_with_the_remedy(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"encoder.source.id: {name}.*cannot be had") as caught:
        first_encoder(asked({"kind": "hub", "id": name}), OBSERVATION)
    assert "hf download" in caught.value.hint


# Architectures --------------------------------------------------------------------------------------------------------


def test_an_architecture_is_written_out_whole() -> None:
    """So that another version's defaults make no other network."""
    first = from_config(**VIT)
    config = first.config
    assert (first.tensors, first.origin) == (None, {})
    assert config.source == asked({"kind": "architecture", "config": VIT}).source
    assert config.architecture.items() >= VIT.items()
    assert config.architecture["layer_norm_eps"] == 1e-12
    assert (config.image.pixels, config.image.mean, config.image.std) == (64, (0.5,) * 3, (0.5,) * 3)
    stored = json.loads(json.dumps(config.model_dump(mode="json")))
    assert ENCODER_CONFIG.validate_python(stored) == config
    assert pickle.loads(pickle.dumps(config)) == config, "collectors are sent it"


WRONG = {
    "encoder.source.config has no model_type": {"hidden_size": 32},
    "encoder.source.config: vit has no hiden_size; did you mean hidden_size?": VIT | {"hiden_size": 32},
    "encoder.source.config is no configuration of vit: .*hidden_size": VIT | {"hidden_size": "wide"},
    "encoder: bert makes no features of images of 64 x 64": {"model_type": "bert", "num_hidden_layers": 1},
    "encoder: vit_mae draws random numbers": VIT | {"model_type": "vit_mae"},
    "cannot be cut into patches of 12 pixels: set encoder.pixels": VIT | {"patch_size": 12},
    r"encoder: transformers makes no model of this vit: KeyError\('none'\)": VIT | {"hidden_act": "none"},
}


def test_wrong_architectures_are_named() -> None:
    for message, config in WRONG.items():
        with pytest.raises(UserError, match=f"(?s){message}"):
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
    assert (first.config.image.pixels, first.config.image.mean) == (64, (0.4, 0.5, 0.6))
    assert first.config.image.std == (0.2, 0.3, 0.4)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert first.origin == {"folder": folder.as_posix(), "weights_sha256": {"model.safetensors": digest}}
    shutil.rmtree(folder)
    encoder = build_encoder(first.config, 64, 64)
    encoder.load_state_dict(first.tensors)
    features = encoder(normalise_image(frames, torch.float32))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_the_head_of_a_checkpoint_is_left_and_its_lack_of_a_pooler_forgiven(save: Save) -> None:
    folder = save("ViTForImageClassification")
    stored = load_file(folder / "model.safetensors")
    assert "classifier.weight" in stored
    halves = {name: tensor.half() for name, tensor in stored.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    first = from_folder(folder)
    assert len(first.tensors) == len(stored) - 2
    found, expected = first.tensors["backbone.embeddings.cls_token"], halves["vit.embeddings.cls_token"]
    assert torch.equal(found, expected.float()), "half precision is widened"


def test_the_processor_says_how_large_images_are(save: Save) -> None:
    """One that resizes nothing leaves it to the architecture."""
    cropping = {"size": {"shortest_edge": 80}, "crop_size": {"height": 56, "width": 56}}
    for processor, processed, pixels in (
        ("BitImageProcessor", cropping, 56),
        ("ViTImageProcessor", {"do_resize": False}, 64),
    ):
        folder = save(processor=processor, processed=processed)
        assert from_folder(folder).config.image.pixels == pixels
        assert from_folder(folder, pixels=32).config.image.pixels == 32
    resnet = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    assert from_config(sees(120, 160), **resnet).config.image.pixels == 120, "or the observation, as the last"


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_config(folder: Path, **changes: Any) -> None:
    edit(folder / "config.json", **changes)


TOGETHER, AGAIN = "Take both files from the same place", "from where it came from"
BREAKS: tuple[tuple[Callable[[Path], object], str, str], ...] = (
    (lambda model: (model / "config.json").unlink(), "holds no config.json", "`hf download NAME"),
    (lambda model: (model / "config.json").write_text("{"), "config.json cannot be read", AGAIN),
    (
        lambda model: edit_config(model, model_type="mine", auto_map={"AutoModel": "modeling_mine.Mine"}),
        r"mine needs Python code of its own \(trust_remote_code\), which is not run here",
        "whose code is part of transformers",
    ),
    (
        lambda model: (model / "model.safetensors").rename(model / "pytorch_model.bin"),
        r"holds no weights as safetensors \(model.safetensors\); pytorch_model.bin may run code when read, and is not",
        "Where you trust its authors",
    ),
    (lambda model: (model / "model.safetensors").write_bytes(b"\0" * 100), "model cannot be read", AGAIN),
    (lambda model: edit_config(model, num_hidden_layers=3), r"do not fit .*missing: layers\.2\.", TOGETHER),
    (lambda model: edit_config(model, intermediate_size=48), r"of another shape: layers\.0\.mlp", TOGETHER),
    (
        lambda model: (model / "preprocessor_config.json").write_text("{"),
        "preprocessor_config.json cannot be used",
        "set encoder.pixels",
    ),
    (
        lambda model: edit(model / "preprocessor_config.json", size={"height": 64, "width": 80}),
        "makes images of 64 x 80 pixels, which are no square",
        "Name another model",
    ),
    (lambda model: edit_config(model, num_channels=1), "makes images of 3 channels, the model takes 1", TOGETHER),
)


def test_what_is_wrong_with_a_folder_is_said_with_the_remedy(save: Save) -> None:
    for do_break, message, hint in BREAKS:
        folder = save(processor="ViTImageProcessor", processed={"size": {"height": 64, "width": 64}})
        do_break(folder)
        with pytest.raises(UserError, match=message) as raised:
            from_folder(folder)
        assert hint in raised.value.hint
        shutil.rmtree(folder)
