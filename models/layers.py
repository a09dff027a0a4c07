"""Layers that networks are made of: initial weights, a LeakyReLU in the kernel of the layer before it, float32 outputs.

Initial weights are orthogonal, Saxe et al. 2014, arXiv:1312.6120, with the gains that Linesight's IQN uses.

A layer and the LeakyReLU after it are one kernel of oneDNN, with gradients; plain torch where there is none. oneDNN
applies the activation while its result is still in registers, and the gradient takes the sign of the activation from
its output, so that the values before it are never written. torch offers these kernels without gradients, as
`torch.ops.mkldnn`; its compiler uses them. A first convolution over one channel is done over two channels of half the
width: the same memory and the same sums, for which oneDNN has a kernel 1.7 times as fast.
Dimensions: B batch, I and O channels or features, H x W pixels, K kernel size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
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

HAS_KERNELS = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this torch has oneDNN's fused kernels; they compute on CPUs only."""

# Without AVX-512, as many processors are, these kernels refuse bfloat16, which torch's own layers emulate.
_KNOWS_BFLOAT16 = HAS_KERNELS and torch.ops.mkldnn._is_mkldnn_bf16_supported()
KERNEL_DTYPES = (torch.float32, torch.bfloat16) if _KNOWS_BFLOAT16 else (torch.float32,)
"""Types of numbers that these kernels know on this processor."""

POST_OP: tuple[str, list[float], None] = ("leaky_relu", [LEAKY_SLOPE], None)
"""Arguments of the kernels that follow those of the layer."""

LEAST_ROWS = 64
"""With fewer rows or images torch's own layers cost less: these kernels lay the weights out anew in every call."""


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


def hidden_layers(layers: Iterable[nn.Module], rows: Tensor) -> Tensor:
    """Applies linear layers and what follows each to [..., I], a LeakyReLU right after one in the same kernel."""
    modules = [*layers]
    is_fused = False
    for layer, following in zip(modules, [*modules[1:], None], strict=True):
        if is_fused:
            is_fused = False
        elif type(layer) is nn.Linear and isinstance(following, nn.LeakyReLU):
            rows, is_fused = linear_leaky(layer, rows), True
        else:
            rows = layer(rows)
    return rows


def output(layer: nn.Linear, hidden: Tensor) -> Tensor:
    """Applies an output layer in float32, whatever the precision of the layers before it.

    The 8 bits of a bfloat16 logit or value are too few: two actions may differ by less.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        return layer(hidden.float())


def conv_leaky(layer: nn.Conv2d, image: Tensor) -> Tensor:
    """Applies an unpadded convolution and a LeakyReLU to [B, I, H, W].

    Under autocast it computes in autocast's precision, as the layer by itself would.

    Args:
        layer: without padding, dilation and groups.
        image: channels last.
    """
    image, weight, bias = _cast(image, layer)
    if not _has_kernel(image, len(image)):
        return functional.leaky_relu_(functional.conv2d(image, weight, bias, layer.stride), LEAKY_SLOPE)
    stride = list(layer.stride)
    if can_fold(image.shape[1], image.shape[3], weight, stride):
        image, weight, stride = fold_image(image), fold_weight(weight), [stride[0], stride[1] // 2]
    return _ConvLeaky.apply(image, weight.contiguous(memory_format=torch.channels_last), bias, stride)


def linear_leaky(layer: nn.Linear, rows: Tensor) -> Tensor:
    """Applies a linear layer and a LeakyReLU to [..., I]; under autocast in autocast's precision."""
    rows, weight, bias = _cast(rows, layer)
    if not _has_kernel(rows, rows.numel() // rows.shape[-1]):
        return functional.leaky_relu_(functional.linear(rows, weight, bias), LEAKY_SLOPE)
    return _LinearLeaky.apply(rows, weight, bias)


class _ConvLeaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor, stride: list[int]) -> Tensor:
        convolve = torch.ops.mkldnn._convolution_pointwise
        result = convolve(image, weight, bias, [0, 0], stride, [1, 1], 1, *POST_OP)
        ctx.save_for_backward(image, weight, result)
        ctx.stride = stride
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        image, weight, result = ctx.saved_tensors
        gradient = _before_activation(gradient, result)
        is_needed = list(ctx.needs_input_grad[:3])
        shape = [weight.shape[0]]
        settings = (shape, ctx.stride, [0, 0], [1, 1], False, [0, 0], 1, is_needed)
        return *torch.ops.aten.convolution_backward(gradient, image, weight, *settings), None


class _LinearLeaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        result = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, *POST_OP)
        ctx.save_for_backward(rows, weight, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, weight, result = ctx.saved_tensors
        gradient = _before_activation(gradient, result).flatten(0, -2)
        of_rows = (gradient @ weight).view(rows.shape) if ctx.needs_input_grad[0] else None
        of_weight = gradient.t() @ rows.flatten(0, -2) if ctx.needs_input_grad[1] else None
        return of_rows, of_weight, gradient.sum(dim=0) if ctx.needs_input_grad[2] else None


def _before_activation(gradient: Tensor, result: Tensor) -> Tensor:
    return torch.ops.aten.leaky_relu_backward(gradient, result, LEAKY_SLOPE, True)


def _cast(inputs: Tensor, layer: nn.Conv2d | nn.Linear) -> tuple[Tensor, Tensor, Tensor]:
    assert layer.bias is not None
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else layer.weight.dtype
    return inputs.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype)


def _has_kernel(inputs: Tensor, num_rows: int) -> bool:
    return num_rows >= LEAST_ROWS and HAS_KERNELS and inputs.device.type == "cpu" and inputs.dtype in KERNEL_DTYPES


def can_fold(channels: int, width: int, weight: Tensor, stride: list[int]) -> bool:
    """Whether a convolution of [O, I, K, K] can be done over images of twice the channels and half the width."""
    return channels == 1 and not (width % 2 or weight.shape[3] % 2 or stride[1] % 2)


def fold_image(image: Tensor) -> Tensor:
    """Returns [B, 1, H, W] as [B, 2, H, W / 2], channels last: neighbouring columns become channels, nothing moves."""
    batch, _, height, width = image.shape
    return image.reshape(batch, height, width // 2, 2).permute(0, 3, 1, 2)


def fold_weight(weight: Tensor) -> Tensor:
    """Returns the weights [O, 1, K, K] of a convolution as [O, 2, K, K / 2], for a folded image."""
    outputs, _, rows, columns = weight.shape
    return weight.reshape(outputs, rows, columns // 2, 2).permute(0, 3, 1, 2)
