"""What every network that acts has in common: it takes raw observations and turns them into one state vector.

Submodules carry the same names and shapes in all of them, so that weights are handed on by name.
Dimensions: B batch, L frames seen at once, oldest first, H x W pixels, F floats (184), E image features, D = E +
float_hidden numbers of the state.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from models.layers import LEAKY_GAIN, LEAKY_SLOPE, hidden_layers, initialise_all


class InputShape(NamedTuple):
    """What a network sees.

    Attributes:
        height: H.
        width: W.
        float_mean: [F] subtracted from the floats.
        float_std: [F] divides them.
        frames: L.
        frames_as: whether frames are channels of one image, or are encoded one by one and their features joined.
        withheld_floats: [F] bool, floats that the network is not shown; None shows all.
        shows_image: whether it is shown images.
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
        """Frames that the encoder takes at once."""
        return self.frames if self.frames_as == "channels" else 1


class Torso(nn.Module):
    """Base of the acting networks: `encoder` and `float_head`, and the normalisation as buffers.

    What is withheld, the networks see as zeros, whatever is there: parts then keep their shapes, and can be handed on.

    Attributes:
        inputs: what is seen.
        num_encoded: E, of all frames.
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
        *,
        layer_norm: bool = False,
    ) -> None:
        """Builds what all acting networks share.

        Args:
            inputs: what is seen.
            encoder: of the images.
            float_hidden: width of the float head.
            layer_norm: normalises the outputs of the float head's linear layers, Ba et al. 2016, arXiv:1607.06450.
        """
        super().__init__()
        self.register_buffer("float_mean", inputs.float_mean.detach().to(torch.float32).clone())
        self.register_buffer("float_std", inputs.float_std.detach().to(torch.float32).clone())
        shown = torch.ones_like(inputs.float_mean)
        if inputs.withheld_floats is not None:
            shown[inputs.withheld_floats] = 0.0
        self.register_buffer("float_shown", shown, persistent=False)
        self.encoder = build_encoder(encoder, inputs.height, inputs.width, inputs.channels)
        self.float_head = _float_head(inputs.float_mean.numel(), float_hidden, layer_norm=layer_norm)
        initialise_all(self.float_head, LEAKY_GAIN)
        self.inputs = inputs
        self.num_encoded = self.encoder.num_features * (inputs.frames // inputs.channels)
        self.num_state = self.num_encoded + float_hidden
        self._stored_dtype = torch.float32

    def encode(self, image: Tensor) -> Tensor:
        """Maps raw images [B, L, H, W] uint8 to image features [B, E]."""
        if not self.inputs.shows_image:
            return torch.zeros(len(image), self.num_encoded, dtype=self._compute_dtype(), device=image.device)
        seen = image.reshape(-1, self.inputs.channels, *image.shape[2:])
        return self.encoder(normalise_image(seen, self._compute_dtype())).reshape(len(image), self.num_encoded)

    def state(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [B, L, H, W] uint8, or what `encode` made of them [B, E], and raw floats [B, F] to [B, D]."""
        return self.join(image if image.is_floating_point() else self.encode(image), floats)

    def join(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Joins image features [B, E] and raw floats [B, F] to the state [B, D]."""
        normalised = (floats - self.float_mean) / self.float_std
        if self.inputs.withheld_floats is not None:
            normalised = normalised * self.float_shown
        normalised = normalised.to(self._compute_dtype())
        return torch.cat([encoded, hidden_layers(self.float_head.children(), normalised)], dim=1)

    def output_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the layers that end in logits or values; they always compute in float32."""
        raise NotImplementedError

    def to_bfloat16(self) -> None:
        """Stores and computes everything but the output layers in bfloat16; for acting only, in place."""
        torsos = [module for module in self.modules() if isinstance(module, Torso)]  # one may carry another
        layers: list[nn.Module] = [layer for torso in torsos for layer in torso.output_layers()]
        # Batch norms want weights in the precision of their statistics, and take inputs in any.
        layers += [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]
        exact = {id(parameter) for layer in layers for parameter in layer.parameters()}
        for parameter in self.parameters():
            if id(parameter) not in exact:
                parameter.data = parameter.data.to(torch.bfloat16)
        for torso in torsos:
            torso._stored_dtype = torch.bfloat16

    def _compute_dtype(self) -> torch.dtype:
        device = self.float_mean.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return self._stored_dtype


def _float_head(num_floats: int, hidden: int, *, layer_norm: bool) -> nn.Sequential:
    """Returns the float head; the linear layers are called 0 and 2 with layer norm too, as weights go by name."""
    head = nn.Sequential()
    for index, num_inputs in ((0, num_floats), (2, hidden)):
        head.add_module(str(index), nn.Linear(num_inputs, hidden))
        if layer_norm:
            head.add_module(f"norm_{index}", nn.LayerNorm(hidden))
        head.add_module(str(index + 1), nn.LeakyReLU(LEAKY_SLOPE, inplace=True))
    return head
