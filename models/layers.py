"""Weight initialisation, output layers in float32, and noisy layers.

Initial weights are orthogonal, Saxe et al. 2014, arXiv:1312.6120, with the gains of Linesight's IQN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """Initialises a layer with orthogonal weights, scaled by `gain`, and zero bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def initialise_all(module: nn.Module, gain: float) -> None:
    """Applies `initialise` to every linear and convolutional layer below `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            initialise(layer, gain)


def output(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Applies an output layer in float32, regardless of the precision of the layers before it.

    The 8 significant bits of a bfloat16 logit or value are too few: two actions may differ by less.
    """
    if not torch.is_autocast_enabled(hidden.device.type):
        return layer(hidden.float())
    with torch.autocast(hidden.device.type, enabled=False):
        return layer(hidden.float())


class NoisyLinear(nn.Linear):
    """Linear layer [..., I] to [..., O] with noise of learned size on its weights, the same for all rows of a batch.

    Fortunato et al. 2017, arXiv:1706.10295, factorised: W = mu + sigma * f(e_out) f(e_in)^T and b = mu + sigma *
    f(e_out) with f(x) = sign(x) sqrt(|x|). The means are named `weight` and `bias` and start orthogonal like those of
    every other layer here (the paper: uniform); the sigmas start at sigma_0 / sqrt(inputs), as in the paper. There is
    no noise until `draw_noise` is called.

    Attributes:
        weight_sigma: [O, I] size of the noise on each weight.
        bias_sigma: [O] size of the noise on each bias.
        noise_in: [I] f(e_in); 0 without noise. Not part of the state.
        noise_out: [O] f(e_out).
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float) -> None:
        """Builds the layer; `sigma` is sigma_0, 0.5 in the paper."""
        super().__init__(num_inputs, num_outputs)
        size = sigma / math.sqrt(num_inputs)
        self.weight_sigma = nn.Parameter(torch.full((num_outputs, num_inputs), size))
        self.bias_sigma = nn.Parameter(torch.full((num_outputs,), size))
        self.register_buffer("noise_in", torch.zeros(num_inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(num_outputs), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Applies the layer with the current noise."""
        outer = torch.outer(self.noise_out, self.noise_in).to(self.weight.dtype)
        weight = self.weight + self.weight_sigma * outer
        bias = self.bias + self.bias_sigma * self.noise_out.to(self.bias.dtype)
        return functional.linear(input, weight, bias)

    @torch.no_grad()
    def draw_noise(self, generator: torch.Generator) -> None:
        """Draws new noise."""
        for noise in (self.noise_in, self.noise_out):
            normal = torch.randn(noise.shape, generator=generator, device=generator.device)
            noise.copy_(normal.sign() * normal.abs().sqrt())

    @torch.no_grad()
    def clear_noise(self) -> None:
        """Sets the noise to zero, so that the layer uses only its means."""
        self.noise_in.zero_()
        self.noise_out.zero_()


def draw_noise(network: nn.Module, generator: torch.Generator) -> None:
    """Draws new noise for every noisy layer of a network."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw_noise(generator)


def clear_noise(network: nn.Module) -> None:
    """Clears the noise of every noisy layer of a network."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.clear_noise()
