"""Fused layers and compiled loops against torch's own operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.iqn_kernels import action_values, action_values_backward, mix_backward
from models.layers import LEAST_ROWS, conv_leaky, linear_leaky

SLOPE = 0.01
EXACT_SLOPE = 2.0**-7
"""Products of it and of two bfloat16 numbers are exact in float32, in whatever order a compiler multiplies them."""
BATCH, TAUS, WIDTH = 5, 4, 37


def gradients(result: Tensor, *inputs: Tensor) -> list[Tensor]:
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad((result * weights).sum(), inputs))


@pytest.mark.parametrize("width", [20, 21])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("num_images", [3, LEAST_ROWS])
def test_convolution_with_its_activation(num_images: int, channels: int, width: int):
    """One channel of an even width is folded into two; the other cases are not, and few images go another way."""
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 6, 4, 2)
    image = torch.randn(num_images, channels, 18, width).contiguous(memory_format=torch.channels_last).requires_grad_()
    fused = conv_leaky(layer, image)
    expected = functional.leaky_relu(layer(image), SLOPE)
    torch.testing.assert_close(fused, expected, rtol=1e-5, atol=1e-6)
    inputs = (image, layer.weight, layer.bias)
    for ours, theirs in zip(gradients(fused, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_rows", [2, LEAST_ROWS])
def test_linear_layer_with_its_activation(num_rows: int):
    torch.manual_seed(0)
    layer, rows = nn.Linear(7, 5), torch.randn(num_rows, 3, 7, requires_grad=True)
    fused, expected = linear_leaky(layer, rows), functional.leaky_relu(layer(rows), SLOPE)
    torch.testing.assert_close(fused, expected, rtol=1e-5, atol=1e-6)
    inputs = (rows, layer.weight, layer.bias)
    for ours, theirs in zip(gradients(fused, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_autocast_is_followed():
    layer = nn.Linear(7, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear_leaky(layer, torch.ones(LEAST_ROWS, 7)).dtype == torch.bfloat16
    assert linear_leaky(layer, torch.ones(LEAST_ROWS, 7)).dtype == torch.float32
    assert linear_leaky(layer.double(), torch.ones(LEAST_ROWS, 7).double()).dtype == torch.float64, (
        "by torch's own layers"
    )


def bits(tensor: Tensor) -> np.ndarray:
    return tensor.view(torch.uint16).numpy()


def test_output_of_one_action_and_its_gradients():
    """What is rounded to bfloat16 is rounded as torch does it, to the bit."""
    torch.manual_seed(0)
    units, weight = torch.randn(BATCH, TAUS, WIDTH).bfloat16(), torch.randn(BATCH, WIDTH).bfloat16().float()
    result, gradient = torch.empty(BATCH, TAUS), torch.randn(BATCH, TAUS).bfloat16().float()
    action_values(bits(units), weight.numpy(), result.numpy())
    torch.testing.assert_close(result, (units.float() * weight[:, None]).sum(dim=2))
    of_units, of_weight = torch.empty_like(units), torch.empty_like(weight)
    action_values_backward(
        bits(units), weight.numpy(), gradient.numpy(), np.float32(EXACT_SLOPE), bits(of_units), of_weight.numpy()
    )
    slope = torch.where(units > 0, 1.0, EXACT_SLOPE)
    assert torch.equal(of_units, (gradient[:, :, None] * weight[:, None] * slope).bfloat16())
    torch.testing.assert_close(of_weight, (gradient[:, :, None] * units.float()).sum(dim=1))


def test_gradients_of_mixing():
    torch.manual_seed(0)
    gradient, embedded = torch.randn(2, BATCH, TAUS, WIDTH).bfloat16()
    state = torch.randn(BATCH, WIDTH).bfloat16()
    of_embedded, of_state = torch.empty_like(embedded), torch.empty(BATCH, WIDTH)
    mix_backward(
        bits(gradient), bits(embedded), bits(state), np.float32(EXACT_SLOPE), bits(of_embedded), of_state.numpy()
    )
    slope = torch.where(embedded > 0, 1.0, EXACT_SLOPE)
    assert torch.equal(of_embedded, (gradient.float() * state.float()[:, None] * slope).bfloat16())
    torch.testing.assert_close(of_state, (gradient.float() * embedded.float()).sum(dim=1))


def test_infinities_and_nans_are_kept():
    """A diverged network must stay visible."""
    units, weight = torch.ones(1, 3, 1).bfloat16(), torch.ones(1, 1)
    gradient = torch.tensor([[float("inf"), float("nan"), -float("inf")]])
    of_units, of_weight = torch.empty_like(units), torch.empty_like(weight)
    action_values_backward(
        bits(units), weight.numpy(), gradient.numpy(), np.float32(SLOPE), bits(of_units), of_weight.numpy()
    )
    assert of_units[0, 0, 0] == float("inf")
    assert of_units[0, 1, 0].isnan()
    assert of_units[0, 2, 0] == -float("inf")
