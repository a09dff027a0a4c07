"""Base of all acting networks: raw observations to one state vector.

Submodules have the same names and shapes in all of them, so that weights transfer by name.
Dimensions: B batch, L stacked frames, oldest first, H x W pixels, F floats (184), E image features or flattened tokens
of all frames, D state.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from models.fusion import build_float_head, build_fusion
from models.fusion_config import CONCAT, FusionConfig, TokensConfig, TokenSequenceConfig


class InputShape(NamedTuple):
    """Shape and normalisation of a network's observations.

    Attributes:
        height: H.
        width: W.
        float_mean: [F] means of the floats.
        float_std: [F] standard deviations of the floats.
        frames: L.
        frames_as: "channels": frames are channels of one image; "features": encoded separately and concatenated.
        withheld_floats: [F] bool, True for floats that are hidden from the network; None hides none.
        shows_image: whether the network uses images.
    """

    height: int
    width: int
    float_mean: Tensor
    float_std: Tensor
    frames: int = 1
    frames_as: Literal["channels", "features"] = "channels"
    withheld_floats: Tensor | None = None
    shows_image: bool = True

    @property
    def channels(self) -> int:
        """Number of input channels of the encoder, one per frame."""
        return self.frames if self.frames_as == "channels" else 1


class ActingHead(NamedTuple):
    """Layers between the fusion and an actor's outputs, if they are simple enough for `models.prepared`.

    Attributes:
        hidden: linear layers, each followed by an activation.
        slope: of the activations below zero; 0 for a ReLU.
        output: the last layer.
        factors: [H], multiplied into the last hidden units; or [T, D], multiplied into the state, and the hidden units
            are then averaged over T; or None.
    """

    hidden: tuple[nn.Linear, ...]
    slope: float
    output: nn.Linear
    factors: Tensor | None = None


class Torso(nn.Module):
    """Base of the acting networks: `encoder`, `float_head` and `fusion`, and the normalisation as buffers.

    Networks see zeros for withheld parts. Submodules thus keep their shapes, and their weights can be transferred.

    Attributes:
        inputs: observations.
        num_encoded: E.
        num_state: D.
    """

    float_mean: Tensor
    float_std: Tensor
    float_shown: Tensor

    def __init__(
        self,
        inputs: InputShape,
        encoder: EncoderConfig,
        float_hidden: int,
        fusion: FusionConfig = CONCAT,
        *,
        layer_norm: bool = False,
    ) -> None:
        """Builds the common part of all acting networks.

        Args:
            inputs: observations.
            encoder: of the images.
            float_hidden: width of the float head.
            fusion: of image features and floats.
            layer_norm: normalises the outputs of the float head's two layers.
        """
        super().__init__()
        self.register_buffer("float_mean", inputs.float_mean.detach().to(torch.float32).clone())
        self.register_buffer("float_std", inputs.float_std.detach().to(torch.float32).clone())
        shown = torch.ones_like(inputs.float_mean)
        if inputs.withheld_floats is not None:
            shown[inputs.withheld_floats] = 0.0
        self.register_buffer("float_shown", shown, persistent=False)
        self.encoder = build_encoder(encoder, inputs.height, inputs.width, inputs.channels)
        num_floats = inputs.float_mean.numel()
        if isinstance(fusion, TokensConfig):
            float_hidden = fusion.float_hidden or float_hidden
        self.float_head = build_float_head(fusion, num_floats, float_hidden, layer_norm=layer_norm)
        self._takes_tokens = isinstance(fusion, TokenSequenceConfig) and fusion.takes_all
        num_images = inputs.frames // inputs.channels
        num_tokens, num_numbers = self.encoder.token_shape if self._takes_tokens else (1, self.encoder.num_features)
        with torch.no_grad():
            num_joined = self.float_head(torch.zeros(1, num_floats)).shape[1]
        self.fusion = build_fusion(fusion, (num_images * num_tokens, num_numbers), num_joined)
        self.inputs = inputs
        self.num_encoded = num_images * num_tokens * num_numbers
        self.num_state = self.fusion.num_state
        self._stored_dtype = torch.float32

    def acting_head(self) -> ActingHead | None:
        """Returns the layers between the fusion and an actor's outputs; None if they do not fit `ActingHead`."""
        return None

    def encode(self, image: Tensor) -> Tensor:
        """Maps raw images [B, L, H, W] uint8 to image features or flattened tokens [B, E]."""
        if not self.inputs.shows_image:
            return torch.zeros(len(image), self.num_encoded, dtype=self._compute_dtype(), device=image.device)
        seen = normalise_image(image.reshape(-1, self.inputs.channels, *image.shape[2:]), self._compute_dtype())
        features = self.encoder.tokens(seen) if self._takes_tokens else self.encoder(seen)
        return features.reshape(len(image), self.num_encoded)

    def state(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps images [B, L, H, W] uint8, or their features [B, E] from `encode`, and raw floats [B, F] to [B, D]."""
        return self.join(self.encode(image) if image.dtype == torch.uint8 else image, floats)

    def join(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Joins image features [B, E] and raw floats [B, F] to the state [B, D]."""
        normalised = (floats - self.float_mean) / self.float_std
        if self.inputs.withheld_floats is not None:
            normalised = normalised * self.float_shown
        normalised = normalised.to(self._compute_dtype())
        return self.fusion(encoded, self.float_head(normalised))

    def output_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the layers that produce logits or values; they always compute in float32."""
        raise NotImplementedError

    def store_in(self, dtype: torch.dtype) -> None:
        """Stores and computes everything but the output layers in bfloat16 or float16; for acting only, in place."""
        torsos = [module for module in self.modules() if isinstance(module, Torso)]  # a torso may contain another
        layers: list[nn.Module] = [layer for torso in torsos for layer in torso.output_layers()]
        # Batch norms need weights in the precision of their statistics, and accept inputs in any.
        layers += [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]
        exact = {id(parameter) for layer in layers for parameter in layer.parameters()}
        for parameter in self.parameters():
            if id(parameter) not in exact:
                parameter.data = parameter.data.to(dtype)
        for torso in torsos:
            torso._stored_dtype = dtype

    def _compute_dtype(self) -> torch.dtype:
        device = self.float_mean.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return self._stored_dtype
