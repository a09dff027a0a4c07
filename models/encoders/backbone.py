"""Models of Hugging Face transformers: vision models as encoders, such as ViT and DINOv2, text models over tokens.

They are built from a configuration only; `rulka.pretraining.backbones` provides it and the initial weights.
Dimensions: B batch, H x W pixels, S x S pixels of the model's images, C their channels, T tokens, P patch tokens among
them, D token width and number of features.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.encoders.base import Encoder
from models.encoders.config import ArchitectureSource, AttendingConfig, ResolvedBackboneConfig
from models.encoders.patches import Block

_MODEL_ERRORS = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions of a model with unsuitable configuration values or images."""

MISSING = "operator torchvision::nms does not exist"
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_DEFINED: list[torch.library.Library] = []  # operators live as long as the object that defined them


def load_torchvision() -> ModuleType:
    """Imports and returns torchvision, also with a CPU build of torch. Call it before any other import of torchvision.

    The wheels of torchvision are linked to CUDA. With a CPU build of torch their compiled part does not load, which
    torchvision itself tolerates; but its Python part then registers shapes for two operators that only the compiled
    part defines, and `import torchvision` fails with "operator torchvision::nms does not exist". So do imports that
    depend on it, such as the vision models of transformers and timm.

    Without the compiled part, functions that need it raise when called: `ops.nms`, `io.read_image`.

    Raises:
        ImportError: if torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        # Only in this case: a loaded compiled part defines the operators, and a name can be defined only once.
        if str(error) != MISSING:
            raise
    library = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        library.define(operator)
    _DEFINED.append(library)
    return importlib.import_module("torchvision")


def load_transformers() -> ModuleType:
    """Imports transformers, which takes seconds, and returns it."""
    load_torchvision()  # transformers imports it without the workaround
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()  # it would print whole configurations
    transformers.logging.disable_progress_bar()
    return transformers


class BackboneEncoder(Encoder):
    """A backbone with its image processing, reduced to one feature vector per image.

    Grey images are resized to S x S without cropping, and copied to all channels with the model's own mean and standard
    deviation. Models that can do so interpolate their position embeddings if S is not their native size.

    It is always in evaluation mode: with dropout or batch statistics, learner and actor would compute different
    functions, which breaks PPO's ratios. Batch norms therefore keep their original statistics.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, config: ResolvedBackboneConfig) -> None:
        """Initialises the weights.

        Raises:
            ValueError: if the architecture is not a vision model for such images, or does not have the requested token.
        """
        super().__init__()
        transformers = load_transformers()
        architecture = transformers.AutoConfig.for_model(**config.architecture)
        try:
            self.backbone: nn.Module = transformers.AutoModel.from_config(architecture, dtype=torch.float32)
        except _MODEL_ERRORS as error:
            raise ValueError(f"transformers makes no model of this {architecture.model_type}: {error!r}") from error
        drop_pooler(self.backbone)
        self._pixels, patch = config.image.pixels, getattr(architecture, "patch_size", None)
        if isinstance(patch, int) and self._pixels % patch:
            sizes = f"{self._pixels} x {self._pixels} pixels cannot be cut into patches of {patch} pixels"
            raise ValueError(f"images of {sizes}: set encoder.pixels to a multiple of that")
        # (p / 255 - mean) / std, of an image (p - 128) / 128
        mean, std = torch.tensor(config.image.mean), torch.tensor(config.image.std)
        self.register_buffer("scale", (128 / 255 / std).view(-1, 1, 1), persistent=False)
        self.register_buffer("shift", ((128 / 255 - mean) / std).view(-1, 1, 1), persistent=False)
        accepted = inspect.signature(self.backbone.forward).parameters
        self._options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in accepted else {}
        self.refine: nn.Module = nn.Identity()
        self.eval()
        shape = self._try_out(architecture.model_type)
        self._first_patch = _first_patch(shape, patch, self._pixels)
        self._uses_class_token = config.token == "cls"
        if self._uses_class_token and self._first_patch == 0:
            raise ValueError(f"{architecture.model_type} has no class token: set encoder.token to mean")
        is_map = len(shape) == 4
        self.num_features = shape[1] if is_map else shape[-1]
        num_tokens = shape[2] * shape[3] if is_map else shape[1] - self._first_patch
        if (blocks := config.refine) is not None:
            layers = [nn.Linear(self.num_features, blocks.width), *(Block(blocks) for _ in range(blocks.depth))]
            self.refine, self.num_features = nn.Sequential(*layers, nn.LayerNorm(blocks.width)), blocks.width
        self.token_shape = (num_tokens, self.num_features)

    def train(self, mode: bool = True) -> BackboneEncoder:
        """Sets the mode, but keeps the backbone in evaluation mode, see above."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, image: Tensor) -> Tensor:
        """Maps images from `normalise_image` [B, 1, H, W] to features [B, D]."""
        tokens = self._all_tokens(image)
        return tokens[:, 0] if self._uses_class_token else tokens[:, self._first_patch :].mean(dim=1)

    def tokens(self, image: Tensor) -> Tensor:
        """Maps the same images to patch tokens, or to the positions of a map, [B, P, D]."""
        return self._all_tokens(image)[:, self._first_patch :]

    def _all_tokens(self, image: Tensor) -> Tensor:
        """Returns [B, T, D]; those before the patches first."""
        output = self._last_hidden_state(image)
        return self.refine(output.flatten(2).transpose(1, 2) if output.dim() == 4 else output)

    def _last_hidden_state(self, image: Tensor) -> Tensor:
        """Returns tokens [B, T, D], or a map [B, D, h, w] of a convolutional model."""
        seen = image.float()  # antialiasing does not support bfloat16
        if seen.shape[-2:] != (self._pixels, self._pixels):
            size = (self._pixels, self._pixels)
            seen = functional.interpolate(seen, size, mode="bilinear", align_corners=False, antialias=True)
        seen = (seen * self.scale + self.shift).to(image.dtype)
        return self.backbone(pixel_values=seen, **self._options).last_hidden_state

    @torch.no_grad()
    def _try_out(self, model_type: str) -> torch.Size:
        """Returns the shape of the output for one image."""
        try:
            shape = self._last_hidden_state(torch.zeros(1, 1, self._pixels, self._pixels)).shape
        except _MODEL_ERRORS as error:
            message = f"{model_type} makes no features of images of {self._pixels} x {self._pixels} pixels: {error}"
            raise ValueError(message) from error
        if len(shape) not in (3, 4):
            raise ValueError(f"{model_type} returns numbers {list(shape)} for an image, neither tokens nor a map")
        return shape


class TokenModel(nn.Module):
    """A text model of transformers over given tokens [B, T, W], always in evaluation mode, as `BackboneEncoder` is."""

    def __init__(self, source: ArchitectureSource, sizes: AttendingConfig, num_tokens: int) -> None:
        """Initialises the weights.

        Args:
            source: of the architecture.
            sizes: those that the source does not tell.
            num_tokens: T.

        Raises:
            ValueError: if the architecture is no model over so many tokens of this width.
        """
        super().__init__()
        width, transformers = sizes.width, load_transformers()
        what = f"network.fusion.model over {num_tokens} tokens of width {width}"
        common = {"hidden_size": width, "intermediate_size": sizes.ff_mult * width}
        common |= {"num_hidden_layers": sizes.depth, "num_attention_heads": sizes.heads}
        try:
            architecture = transformers.AutoConfig.for_model(**(common | source.config))
            self.model: Any = transformers.AutoModel.from_config(architecture, dtype=torch.float32)
            drop_pooler(self.model)
            self.model.set_input_embeddings(nn.Embedding(1, width))  # tokens come from elsewhere
            with torch.no_grad():
                shape = list(self.eval()(torch.zeros(1, num_tokens, width)).shape)
        except _MODEL_ERRORS as error:
            raise ValueError(f"{what} cannot be: {error}") from error
        if shape != [1, num_tokens, width]:
            raise ValueError(f"{what} returns {shape}, not as many tokens of this width")

    def train(self, mode: bool = True) -> TokenModel:
        """Sets the mode, but keeps the model in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, T, W] to the same shape."""
        return self.model(inputs_embeds=tokens).last_hidden_state


def drop_pooler(backbone: Any) -> None:
    """Removes a pooler that has weights, in place: nothing here uses it, and many checkpoints lack its weights."""
    pooler = getattr(backbone, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        backbone.pooler = None


def _first_patch(shape: torch.Size, patch_size: object, pixels: int) -> int:
    """Returns the number of tokens before the patch tokens, such as class token and registers; 0 for a map.

    Models that merge patches have fewer tokens than patches, and none before them.
    """
    if len(shape) == 4 or not isinstance(patch_size, int):
        return 0
    return max(0, shape[1] - (pixels // patch_size) ** 2)
