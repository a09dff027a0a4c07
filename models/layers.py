"""Initial weights of layers, and output layers in float32.

Initial weights are orthogonal, Saxe et al. 2014, arXiv:1312.6120, with the gains that Linesight's IQN uses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LEAKY_SLOPE = 0.01
"""Slope of every LeakyReLU below zero."""

LEAKY_GAIN = nn.init.calculate_gain("leaky_relu", LEAKY_SLOPE)
"""1.41414, for layers followed by a LeakyReLU."""

TAU_GAIN = math.sqrt(2.0) * LEAKY_GAIN
"""2.0, for the layer that embeds quantile fractions."""

RELU_GAIN = math.sqrt(2.0)
LAST_GAIN = 1.0
"""For output layers."""

POLICY_GAIN = 0.01
"""For policy outputs: the first policy is almost uniform."""


def initialise(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Makes the weights of a layer orthogonal, scaled by `gain`, and its bias zero."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def initialise_all(module: nn.Module, gain: float) -> None:
    """Applies `initialise` to every linear and convolutional layer below `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            initialise(layer, gain)


def output(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Applies an output layer in float32, whatever the precision of the layers before it.

    The 8 bits of a bfloat16 logit or value are too few: two actions may differ by less.
    """
    if not torch.is_autocast_enabled(hidden.device.type):
        return layer(hidden.float())
    with torch.autocast(hidden.device.type, enabled=False):
        return layer(hidden.float())
