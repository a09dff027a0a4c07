"""Linear layers whose weights carry noise of learned size, Fortunato et al. 2017, arXiv:1706.10295.

Factorised noise: W = mu + sigma * f(e_out) f(e_in)^T and b = mu + sigma * f(e_out) with f(x) = sign(x) sqrt(|x|). The
means are named `weight` and `bias` and start orthogonal like those of every other layer here (the paper: uniform);
the sigmas start at sigma_0 / sqrt(inputs), as in the paper. There is no noise until `draw_noise` is called.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class NoisyLinear(nn.Linear):
    """[..., I] to [..., O]; all rows of a batch see the same noise.

    Attributes:
        weight_sigma: [O, I] size of the noise on each weight.
        bias_sigma: [O] and on each bias.
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
        """Applies the layer with the noise drawn last."""
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
        """Makes the layer compute with its means alone."""
        self.noise_in.zero_()
        self.noise_out.zero_()


def draw_noise(network: nn.Module, generator: torch.Generator) -> None:
    """Draws new noise for every noisy layer of a network."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw_noise(generator)


def clear_noise(network: nn.Module) -> None:
    """Takes the noise out of every noisy layer of a network."""
    for layer in network.modules():
        if isinstance(layer, NoisyLinear):
            layer.clear_noise()
