"""The advantages of an `IqnNetwork` at fixed fractions, with all that depends on the weights alone done beforehand.

The fractions are embedded once, weights are laid out once as oneDNN wants them, the value head is left out, and the
scale of the image is part of the first convolution (a power of two, so nothing is rounded by it).
Dimensions: N observations, T quantile fractions, D state, A actions, H x W pixels, F floats.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.encoders.conv import ConvEncoder
from models.fusion import Concat
from models.iqn import IqnNetwork
from models.layers import HAS_KERNELS, POST_OP, can_fold, fold_image, fold_weight
from models.noisy import NoisyLinear

EXTRAS = (nn.AdaptiveMaxPool2d, nn.LayerNorm, NoisyLinear)


def can_prepare(network: IqnNetwork) -> bool:
    """Whether a network is of the plain kind that `PreparedAdvantages` knows, on a CPU whose torch has oneDNN."""
    has_extras = any(isinstance(layer, EXTRAS) for layer in network.modules())
    sees_one_frame = network.inputs.frames == 1 and network.inputs.shows_image
    sees_plainly = isinstance(network.encoder, ConvEncoder) and isinstance(network.fusion, Concat)
    is_plain = sees_plainly and sees_one_frame and not has_extras
    return HAS_KERNELS and is_plain and network.float_mean.device.type == "cpu"


class PreparedAdvantages:
    """A snapshot of a network's weights; make another one when they change.

    Attributes:
        dtype: float32 or bfloat16, of all but the output layer.
    """

    def __init__(self, network: IqnNetwork, tau: Tensor, dtype: torch.dtype) -> None:
        """Prepares a network.

        Args:
            network: one that `can_prepare`.
            tau: [T] fractions that advantages are averaged over.
            dtype: float32 or bfloat16.
        """
        assert isinstance(network.encoder, ConvEncoder)
        self.dtype = dtype
        self._convolutions = []
        width = network.inputs.width
        shape = [1, 1, network.inputs.height, width]
        for index, layer in enumerate(network.encoder.convolutions()):
            weight, stride = layer.weight.detach().to(dtype), list(layer.stride)
            if index == 0:
                weight = weight / 128.0
                self._is_folded = can_fold(1, width, weight, stride)
                if self._is_folded:
                    weight, stride = fold_weight(weight), [stride[0], stride[1] // 2]
                    shape = [1, 2, network.inputs.height, width // 2]
            weight = weight.contiguous(memory_format=torch.channels_last)
            rows, columns = ((shape[2 + i] - weight.shape[2 + i]) // stride[i] + 1 for i in (0, 1))
            weight = torch.ops.mkldnn._reorder_convolution_weight(weight, [0, 0], stride, [1, 1], 1, shape)
            shape = [1, layer.out_channels, rows, columns]
            self._convolutions.append((weight, layer.bias.detach().to(dtype), stride))  # pyright: ignore[reportOptionalMemberAccess]
        first, *others = (layer for layer in network.float_head if isinstance(layer, nn.Linear))
        self._floats = [_packed(first, dtype, 1, network.float_shown), *(_packed(layer, dtype, 1) for layer in others)]
        self._mean, self._std = network.float_mean.detach().clone(), network.float_std.detach().clone()
        factors = network.embed(tau).detach()
        self._is_at_hidden = network.embedding_at == "hidden"
        if self._is_at_hidden:
            factors = network.of_advantage(factors).mean(dim=0)
        self._factors = factors.to(dtype)
        self._hidden = _packed(network.advantage_head[0], dtype, 1 if self._is_at_hidden else len(tau))
        self._output = _parameters(network.advantage_head[2], torch.float32)

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, 1, H, W] uint8 and raw floats [N, F] to mean advantages [N, A] float32."""
        convolve, linear = torch.ops.mkldnn._convolution_pointwise.default, torch.ops.mkldnn._linear_pointwise.default
        batch, _, height, width = image.shape
        # Flipping the highest bit and reading the byte as signed subtracts 128.
        features = (image ^ 128).view(torch.int8).to(self.dtype)
        if self._is_folded:
            features = fold_image(features)
        else:
            features = features.reshape(batch, height, width, 1).permute(0, 3, 1, 2)
        for weight, bias, stride in self._convolutions:
            features = convolve(features, weight, bias, [0, 0], stride, [1, 1], 1, *POST_OP)
        hidden = ((floats - self._mean) / self._std).to(self.dtype)
        for weight, bias in self._floats:
            hidden = linear(hidden, weight, bias, *POST_OP)
        state = torch.cat([features.flatten(1), hidden], dim=1)
        if self._is_at_hidden:
            mean = linear(state, *self._hidden, *POST_OP) * self._factors
        else:
            mean = linear(state[:, None, :] * self._factors, *self._hidden, *POST_OP).mean(dim=1)
        return nn.functional.linear(mean.float(), *self._output)


def _packed(
    layer: nn.Module, dtype: torch.dtype, num_rows: int, is_shown: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of a linear layer, the weight as oneDNN wants it for about so many rows.

    Where `is_shown` [I] is 0, the layer does not see its inputs.
    """
    weight, bias = _parameters(layer, dtype)
    if is_shown is not None:
        weight = weight * is_shown.to(dtype)
    return torch.ops.mkldnn._reorder_linear_weight(weight, num_rows), bias


def _parameters(layer: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Linear)
    return layer.weight.detach().to(dtype).clone(), layer.bias.detach().to(dtype).clone()
