"""Convolutions whose weight matrix has a largest singular value of 1, Miyato et al. 2018, arXiv:1802.05957."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_FIRST_ITERATIONS = 15
_EPSILON = 1e-12


class SpectralConv2d(nn.Conv2d):
    """A 3 x 3 convolution that keeps height and width, its weight [O, I 3 3] divided by the largest singular value.

    That value is followed by one step of the power iteration in each forward pass of training mode; in evaluation mode
    it is read off with the vectors of the last one. torch's own parametrization computes in the dtype of the weights,
    which bfloat16 is too coarse for.

    Attributes:
        left: [O] left singular vector, of length 1; part of the state, as the actor has to divide by the same number.
        right: [I 3 3] right singular vector.
    """

    left: Tensor
    right: Tensor

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs, 3, padding=1)
        self.register_buffer("left", functional.normalize(torch.randn(num_outputs), dim=0, eps=_EPSILON))
        self.register_buffer("right", functional.normalize(torch.randn(num_inputs * 9), dim=0, eps=_EPSILON))

    def forward(self, input: Tensor) -> Tensor:
        """Maps [B, I, H, W] to [B, O, H, W]."""
        if self.training:
            self.iterate()
        with torch.autocast(input.device.type, enabled=False):
            singular = self.largest_singular_value()
        weight = (self.weight / singular.to(self.weight.dtype)).to(input.dtype)
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return functional.conv2d(input, weight, bias, padding=1)

    def largest_singular_value(self) -> Tensor:
        """Returns u^T W v [], through which gradients flow into W alone, as in the paper."""
        # Copies, because the next iteration writes to the vectors while the graph still needs these.
        return self.left.clone() @ self.weight.float().flatten(1) @ self.right.clone()

    @torch.no_grad()
    def iterate(self, num_steps: int = 1) -> None:
        """Makes steps of the power iteration."""
        with torch.autocast(self.weight.device.type, enabled=False):
            weight = self.weight.float().flatten(1)
            for _ in range(num_steps):
                self.right.copy_(functional.normalize(weight.T @ self.left, dim=0, eps=_EPSILON))
                self.left.copy_(functional.normalize(weight @ self.right, dim=0, eps=_EPSILON))

    def settle(self) -> None:
        """Finds the singular vectors of weights that were just initialised."""
        self.iterate(_FIRST_ITERATIONS)
