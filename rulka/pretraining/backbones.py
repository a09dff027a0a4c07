"""Sources of a backbone's architecture and initial weights: params.yaml, or a folder.

Stage `pretrain` reads them once and stores everything in its artifact, so that later stages need no folder and no
network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from models.encoders.backbone import BackboneEncoder, drop_pooler, load_transformers
from models.encoders.config import (
    ArchitectureSource,
    BackboneConfig,
    EncoderConfig,
    HubSource,
    ImageConfig,
    ResolvedBackboneConfig,
)
from rulka.contracts.observation_params import ObservationParams
from rulka.contracts.problems import did_you_mean
from rulka.machine.errors import UserError

CONFIG_FILE = "config.json"
PROCESSOR_FILE = "preprocessor_config.json"
WEIGHTS_FILES = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")

_PROBE_PIXELS = 97
"""Size of the images that probe a processor: no model's own size, so that an unchanged size is detectable."""
_NOT_OF_ARCHITECTURE = frozenset(
    ("_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "transformers_version")
)
"""Keys of a configuration that do not belong to the architecture: names, labels of a head, and the precision."""


@dataclass(frozen=True)
class FirstEncoder:
    """Initial configuration and weights of an encoder.

    Attributes:
        config: complete configuration of the encoder.
        tensors: its weights by name, without those of `refine`; None to initialise new ones.
        origin: plain JSON about the source of the weights, with their SHA-256; empty for new ones.
    """

    config: EncoderConfig
    tensors: Mapping[str, Tensor] | None = None
    origin: dict[str, Any] = field(default_factory=dict)


class _Processor(NamedTuple):
    """Effect of an image processor, see `ImageConfig`; `pixels` is None if it does not resize."""

    pixels: int | None
    mean: tuple[float, ...]
    std: tuple[float, ...]


def first_encoder(encoder: EncoderConfig, observation: ObservationParams) -> FirstEncoder:
    """Returns an encoder's complete configuration and initial weights.

    For an encoder that is not a backbone, this is the given configuration, with new weights.

    Raises:
        UserError: if a backbone is missing or unsuitable, or its weights do not fit.
    """
    if not isinstance(encoder, BackboneConfig):
        return FirstEncoder(encoder)
    source = encoder.source
    if isinstance(source, ArchitectureSource):
        config = _written_config(source)
        resolved = _resolved(encoder, config, None, observation)
        _build(resolved)
        return FirstEncoder(resolved)
    folder = downloaded(source) if isinstance(source, HubSource) else Path(source.path)
    config = _read_config(folder)
    resolved = _resolved(encoder, config, _read_processor(folder), observation)
    network = _build(resolved)
    network.backbone.load_state_dict(_read_weights(folder, config))
    origin = {"folder": folder.as_posix(), "weights_sha256": _hash_weights(folder)}
    tensors = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("refine.")}
    return FirstEncoder(resolved, tensors, origin)


def downloaded(source: HubSource) -> Path:
    """Returns the folder of a model of the Hugging Face Hub, which is downloaded if its cache lacks it.

    Raises:
        UserError: if it cannot be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    files = [CONFIG_FILE, PROCESSOR_FILE, *WEIGHTS_FILES]
    try:
        return Path(snapshot_download(source.id, revision=source.revision, allow_patterns=files))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        why = shorten(str(error), 200, placeholder=" ...")
        message = f"encoder.source.id: {source.id} ({source.revision}) cannot be had from the Hugging Face Hub: {why}"
        fetch = f"`hf download {source.id} --local-dir FOLDER`"
        hint = f"Check the name and the network; or {fetch} elsewhere, and {{kind: folder, path: FOLDER}} here."
        raise UserError(message, hint=hint) from error


def _written_config(source: ArchitectureSource) -> Any:
    """Returns the transformers configuration given in params.yaml."""
    written = source.config
    if "model_type" not in written:
        raise UserError("encoder.source.config has no model_type", hint="Add it, for example model_type: vit.")
    config = _checked_config(written, "encoder.source.config")
    known = type(config)().to_dict()  # defaults only: `config` also holds unknown keys
    for name in written:
        if name not in known:
            raise UserError(f"encoder.source.config: {config.model_type} has no {name}{did_you_mean(name, known)}")
    return config


def _read_config(folder: Path) -> Any:
    """Returns the transformers configuration in a folder."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        message = f"encoder.source.path: {folder.as_posix()} holds no {CONFIG_FILE}"
        hint = "Name a folder that `hf download NAME --local-dir FOLDER` or `save_pretrained` of transformers wrote."
        raise UserError(message, hint=hint)
    try:
        written = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise _unreadable(file, error) from error
    return _checked_config(written, file.as_posix())


def _unreadable(path: Path, why: object) -> UserError:
    message = f"{path.as_posix()} cannot be read: {why}"
    return UserError(message, hint="Take the folder from where it came from again.")


def _checked_config(written: Mapping[str, Any], where: str) -> Any:
    from huggingface_hub.errors import StrictDataclassError  # raised for values of a wrong type

    transformers = load_transformers()
    model_type = written.get("model_type")
    if model_type not in transformers.CONFIG_MAPPING:
        if "auto_map" in written:
            message = f"{where}: {model_type} needs Python code of its own (trust_remote_code), which is not run here"
            raise UserError(message, hint="Name a model whose code is part of transformers.")
        message = f"{where}: transformers {transformers.__version__} knows no model_type {model_type!r}"
        raise UserError(message + did_you_mean(str(model_type), transformers.CONFIG_MAPPING))
    try:
        return transformers.CONFIG_MAPPING[model_type].from_dict(dict(written))
    except (AttributeError, ImportError, KeyError, TypeError, ValueError, StrictDataclassError) as error:
        raise UserError(f"{where} is no configuration of {model_type}: {error}") from error


def _resolved(
    encoder: BackboneConfig, config: Any, processor: _Processor | None, observation: ObservationParams
) -> ResolvedBackboneConfig:
    """Returns the complete configuration, with the architecture as plain JSON."""
    num_channels, own_size = getattr(config, "num_channels", 3), getattr(config, "image_size", None)
    if processor is None:  # centre the colours: nearly the same images as for all other encoders
        processor = _Processor(None, (0.5,) * num_channels, (0.5,) * num_channels)
    if len(processor.mean) != num_channels:
        message = f"{PROCESSOR_FILE} makes images of {len(processor.mean)} channels, the model takes {num_channels}"
        raise UserError(message, hint="Take both files from the same place.")
    sizes = (encoder.pixels, processor.pixels, own_size if isinstance(own_size, int) else None, observation.height)
    pixels = next(size for size in sizes if size is not None)
    architecture = {name: value for name, value in config.to_dict().items() if name not in _NOT_OF_ARCHITECTURE}
    return ResolvedBackboneConfig(
        **encoder.model_dump(),
        architecture=json.loads(json.dumps(architecture)),
        image=ImageConfig(pixels=pixels, mean=processor.mean, std=processor.std),
    )


def _read_processor(folder: Path) -> _Processor | None:
    """Returns the effect of a folder's image processor; None if there is none.

    It is measured on a black and a white image, because processors differ in their settings.
    """
    if not (folder / PROCESSOR_FILE).is_file():
        return None
    transformers = load_transformers()
    black = np.zeros((_PROBE_PIXELS, _PROBE_PIXELS, 3), np.uint8)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        made: Tensor = processor(images=[black, ~black], return_tensors="pt")["pixel_values"]
        _, _, height, width = made.shape
    except (OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        message = f"{(folder / PROCESSOR_FILE).as_posix()} cannot be used: {error}"
        raise UserError(message, hint="Remove it, and set encoder.pixels: colours are then centred.") from error
    if height != width:
        message = (
            f"{(folder / PROCESSOR_FILE).as_posix()} makes images of {height} x {width} pixels, which are no square"
        )
        raise UserError(message, hint="Name another model.")
    at_black, at_white = made.double().mean(dim=(2, 3))
    std = 1.0 / (at_white - at_black)
    mean = -at_black * std
    rounded = (tuple(round(value, 6) for value in values.tolist()) for values in (mean, std))
    return _Processor(None if height == _PROBE_PIXELS else height, *rounded)


def _build(config: ResolvedBackboneConfig) -> BackboneEncoder:
    """Returns the network with new weights, after checking that it can serve as an encoder."""
    try:
        network = BackboneEncoder(config)
    except ValueError as error:
        message = f"encoder: {error}"
        hint = (
            "An encoder is a vision model that makes tokens, or a map, of images: ViT, DINOv2, ResNet and their like."
        )
        raise UserError(message, hint=hint) from error
    pixels = config.image.pixels
    image = torch.linspace(-1.0, 1.0, pixels * pixels).view(1, 1, pixels, pixels)
    with torch.no_grad():
        first, second = network(image), network(image)
    if not torch.equal(first, second):
        message = (
            f"encoder: {config.architecture['model_type']} draws random numbers, and so says other things each time"
        )
        raise UserError(message, hint="Name a model that hides no parts of its images, as masked autoencoders do.")
    return network


def _read_weights(folder: Path, config: Any) -> dict[str, Tensor]:
    """Returns the weights of the model without its head, named as in this version of transformers."""
    if not any((folder / name).is_file() for name in WEIGHTS_FILES[:2]):
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        found = f"; {', '.join(pickles)} may run code when read, and is not" if pickles else ""
        message = f"{folder.as_posix()} holds no weights as safetensors ({WEIGHTS_FILES[0]}){found}"
        hint = (
            "Where you trust its authors, load it with transformers elsewhere and `save_pretrained` it into a folder."
        )
        raise UserError(message, hint=hint)
    try:
        backbone, info = load_transformers().AutoModel.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # `_check_fit` reports them together with all other problems
            output_loading_info=True,
            dtype=torch.float32,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    _check_fit(folder, backbone, info)
    drop_pooler(backbone)
    return backbone.state_dict()


def _check_fit(folder: Path, backbone: nn.Module, info: Mapping[str, Any]) -> None:
    """Raises UserError unless every tensor of the model was loaded; additional ones may belong to a head."""
    own = {name for name, _ in backbone.named_children()} | {getattr(backbone, "base_model_prefix", "")}
    wrong = {
        "missing": [name for name in info["missing_keys"] if not name.startswith("pooler.")],
        "unexpected": [name for name in info["unexpected_keys"] if name.split(".")[0] in own],
        "of another shape": [name for name, *_ in info["mismatched_keys"]],
    }
    found = [f"{what}: {shorten(', '.join(sorted(names)), 120)}" for what, names in wrong.items() if names]
    if found:
        message = f"the weights in {folder.as_posix()} do not fit its {CONFIG_FILE}: {'; '.join(found)}"
        raise UserError(message, hint="Take both files from the same place.")


def _hash_weights(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every weights file, by its name."""
    files = sorted(path for pattern in WEIGHTS_FILES for path in folder.glob(pattern))
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
