"""Networks of the plain kind with int8 weights and activations: which layers, what is published of them, and back.

Weights are symmetric, a scale for each output channel. Activations are unsigned and begin at zero, a scale for each
layer's inputs: what a LeakyReLU leaves of numbers below zero, a hundredth, is less than a few steps of these scales and
is left out. The floats' layers stay in float32, as their inputs are numbers of unlike size, and so do the output layers
and what is done with the outputs of the last hidden layer.
Dimensions: O output channels, B observations, H x W pixels, F floats, E image features, S steps of an activation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.encoders.base import normalise_image
from models.encoders.conv import ConvEncoder
from models.fusion import Concat
from models.layers import conv_leaky, hidden_layers
from models.noisy import NoisyLinear
from models.torso import Torso

WEIGHT_STEPS, ACTIVATION_STEPS = 127, 255
IMAGE_SCALE, IMAGE_ZERO = 1.0 / 128.0, 128
"""Of raw pixels, which are int8 activations already."""
FLOATS_SCALE = "float_head.output_scale"
"""Name under which the scale of the float head's outputs is published."""

_LEAST_HIGH = 1e-6
"""Taken for the highest activation of a layer whose outputs are all zero."""
_EXTRAS = (nn.AdaptiveMaxPool2d, nn.LayerNorm, NoisyLinear)


class Int8Layers(NamedTuple):
    """The layers of a network that compute in int8, in their order, and others that are stored so, by name.

    Attributes:
        convolutions: each followed by a LeakyReLU.
        hidden: the first one sees image features and floats; each but the last is followed by a ReLU.
        stored: layers that acting does not need, to save bytes.
    """

    convolutions: tuple[str, ...]
    hidden: tuple[str, ...]
    stored: tuple[str, ...] = ()


class Int8Weight(NamedTuple):
    """A weight [O, ...] int8 and the scale [O] float32 of each output channel."""

    steps: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        """Returns the weight in float32."""
        return self.steps.float() * _by_channel(self.scale, self.steps)


def int8_layers(network: nn.Module) -> Int8Layers | None:
    """Returns what computes in int8 of a network, or None where it is not of the plain kind.

    Plain are four convolutions of one frame, side by side with the floats; of IQN with fractions at the hidden units.
    """
    if not isinstance(network, Torso) or any(isinstance(layer, _EXTRAS) for layer in network.modules()):
        return None
    sees_one_frame = network.inputs.frames == 1 and network.inputs.shows_image
    if not (sees_one_frame and isinstance(network.encoder, ConvEncoder) and isinstance(network.fusion, Concat)):
        return None
    if (heads := network.int8_heads()) is None:
        return None
    names = {id(layer): name for name, layer in network.named_modules()}
    return Int8Layers(tuple(names[id(layer)] for layer in network.encoder.convolutions()), *heads)


def quantised_weight(weight: Tensor) -> Int8Weight:
    """Rounds a weight [O, ...] to 127 steps up and down from zero, for each output channel its own."""
    largest = weight.detach().abs().flatten(1).amax(dim=1)
    scale = torch.where(largest > 0, largest / WEIGHT_STEPS, 1.0)
    steps = torch.round(weight / _by_channel(scale, weight)).clamp(-WEIGHT_STEPS, WEIGHT_STEPS)
    return Int8Weight(steps.to(torch.int8), scale)


def activation_scales(network: Torso, layers: Int8Layers, image: Tensor, floats: Tensor) -> dict[str, Tensor]:
    """Returns the scales of all activations, by the names under which they are published.

    Args:
        network: float32, of the plain kind, on the CPU.
        layers: its layers.
        image: [B, 1, H, W] uint8, what the network is about to see.
        floats: [B, F] raw.
    """
    assert isinstance(network.encoder, ConvEncoder)
    scales = {}
    with torch.no_grad():
        features = normalise_image(image, torch.float32)
        for name, layer in zip((*layers.convolutions[1:], layers.hidden[0]), _convolutions(network), strict=True):
            features = conv_leaky(layer, features)
            scales[scale_name(name)] = _scale(features)
        normalised = (floats - network.float_mean) / network.float_std * network.float_shown
        seen = hidden_layers(network.float_head.children(), normalised)
        scales[FLOATS_SCALE] = _scale(seen)
        state = torch.cat([features.flatten(1), seen], dim=1)
        for name, before in zip(layers.hidden[1:], layers.hidden, strict=False):
            state = network.get_submodule(before)(state).relu_()
            scales[scale_name(name)] = _scale(state)
    return scales


def _convolutions(network: Torso) -> list[nn.Conv2d]:
    assert isinstance(network.encoder, ConvEncoder)
    return network.encoder.convolutions()


def scale_name(layer: str) -> str:
    """Returns the name under which the scale of a layer's inputs is published."""
    return f"{layer}.input_scale"


def quantised(
    tensors: Mapping[str, Tensor], layers: Int8Layers, num_encoded: int, scales: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns what is published of a version: int8 weights with their scales, `scales`, and all else as it is.

    Args:
        tensors: the weights of a network, by name.
        layers: its layers.
        num_encoded: E.
        scales: see `activation_scales`.
    """
    published = dict(tensors)
    for name in (*layers.convolutions, *layers.hidden, *layers.stored):
        weight = tensors[f"{name}.weight"]
        if name == layers.hidden[0]:  # integers of both are one vector: it has the scale of the image features
            weight = weight.clone()
            weight[:, num_encoded:] *= scales[FLOATS_SCALE] / scales[scale_name(name)]
        published[f"{name}.weight"], published[f"{name}.weight_scale"] = quantised_weight(weight)
    return published | dict(scales)


def dequantised(published: Mapping[str, Tensor], layers: Int8Layers, num_encoded: int) -> dict[str, Tensor]:
    """Returns the weights of the float32 network that is nearest to what `quantised` made, by name."""
    tensors = dict(published)
    for name in (*layers.convolutions, *layers.hidden, *layers.stored):
        weight = Int8Weight(published[f"{name}.weight"], tensors.pop(f"{name}.weight_scale")).dequantised()
        if name == layers.hidden[0]:
            weight[:, num_encoded:] *= published[scale_name(name)] / published[FLOATS_SCALE]
        tensors[f"{name}.weight"] = weight
    for name in _scale_names(layers):
        del tensors[name]
    return tensors


def _scale_names(layers: Int8Layers) -> Iterator[str]:
    yield FLOATS_SCALE
    yield from map(scale_name, (*layers.convolutions[1:], *layers.hidden))


def _scale(activations: Tensor) -> Tensor:
    return activations.amax().clamp(min=_LEAST_HIGH) / ACTIVATION_STEPS


def _by_channel(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, *(1,) * (weight.dim() - 1))
