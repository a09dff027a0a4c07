"""A network of the plain kind in int8, by ONNX Runtime; what is published of it is said in `models.int8_acting`.

Dimensions: N observations, H x W pixels, F floats, O output channels, I inputs, K kernel size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.int8_acting import (
    FLOATS_SCALE,
    IMAGE_SCALE,
    IMAGE_ZERO,
    Int8Layers,
    Int8Weight,
    dequantised,
    int8_layers,
    scale_name,
)
from models.torso import Torso
from rulka.agents.onnx_graph import CONTRIBUTED, Nodes
from rulka.agents.spec import AgentError

_INT32 = np.iinfo(np.int32)
_FOLD = 4
"""Pixels of a row that the first convolution takes for channels, where it can; see `_folded`."""


def layers_of(network: nn.Module) -> Int8Layers:
    """Returns what computes in int8 of a network.

    Raises:
        AgentError: if the network is not of the plain kind.
    """
    layers = int8_layers(network)
    if layers is None:
        message = "this network cannot act in int8, which knows encoder conv without pooling, fusion concat, "
        message += "one frame, and of iqn embedding_at hidden without layer_norm and noisy_sigma"
        raise AgentError(message, hint="Set train.acting_precision to bfloat16, or to nothing.")
    return layers


AddOutputs = Callable[[Nodes, str], tuple[str, int]]
"""Given the name of the last hidden layer's outputs, in float32 without activation, adds what follows them to a graph.

It returns the name of what it puts out, and how many numbers that are.
"""


class Int8Network:
    """The outputs of a network in int8; its output layers, and those that see floats, are computed in float32."""

    def __init__(self, network: Torso, add_outputs: AddOutputs) -> None:
        """Finds the layers of a network; `load` has to follow.

        Args:
            network: into which `load` puts the float32 network that is nearest.
            add_outputs: adds what follows the last hidden layer, with the weights that the network then has.

        Raises:
            AgentError: if the network is not of the plain kind.
        """
        self._layers = layers_of(network)
        self._network, self._add_outputs = network, add_outputs
        self._image_shape: tuple[int, ...] = ()
        self._session: Any = None

    def load(self, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Takes a version as it was published; copies it, in some 6 ms.

        Returns:
            The weights of the float32 network that is nearest, which the network now has.
        """
        tensors = dequantised(published, self._layers, self._network.num_encoded)
        self._network.load_state_dict(tensors)
        nodes, height, width = Nodes(), self._network.inputs.height, self._network.inputs.width
        features, self._image_shape = _features(nodes, self._network, self._layers, published, height, width)
        seen = _Activations(nodes.float_head(self._network), float(published[FLOATS_SCALE]))
        state = nodes.node("Concat", features, nodes.node("QuantizeLinear", seen.name, *_scale(nodes, seen)), axis=1)
        hidden = _hidden(nodes, self._layers, published, state)
        output, num_outputs = self._add_outputs(nodes, hidden)
        num_floats = len(self._network.float_mean)
        self._session = nodes.session(self._image_shape, num_floats, output, num_outputs)
        return tensors

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, 1, H, W] uint8 and raw floats [N, F] to what the network puts out, float32.

        What these are, `add_outputs` says.
        """
        seen = image.numpy().reshape(len(image), *self._image_shape)
        return torch.from_numpy(self._session.run(None, {"image": seen, "floats": floats.numpy()})[0])


class _Activations(NamedTuple):
    """Integers in a graph: their name, what one of them stands for, and which of them is zero."""

    name: str
    scale: float
    zero: int = 0


def _features(
    nodes: Nodes, network: nn.Module, layers: Int8Layers, published: Mapping[str, Tensor], height: int, width: int
) -> tuple[str, tuple[int, ...]]:
    """Adds the convolutions; returns their flat outputs and the shape in which they want an image."""
    here, channels_last = _Activations("image", IMAGE_SCALE, IMAGE_ZERO), {"channels_last": 1, "domain": CONTRIBUTED}
    scale_names = [scale_name(name) for name in (*layers.convolutions[1:], layers.hidden[0])]
    shape: tuple[int, ...] = (height, width, 1)
    for index, (name, next_scale) in enumerate(zip(layers.convolutions, scale_names, strict=True)):
        layer = network.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        weight, bias, stride = _weight(published, name), published[f"{name}.bias"], list(layer.stride)
        columns = (width - layer.kernel_size[1]) // stride[1] + 1
        is_folded = index == 0 and _can_fold(layer, width)
        if is_folded:
            weight, bias, stride = *_folded(weight, bias), [stride[0], 1]
            shape = (height, width // _FOLD, _FOLD)
        out = _Activations("", float(published[next_scale]))
        name = nodes.node("QLinearConv", *_quantised(nodes, here, weight, bias, out), strides=stride, **channels_last)
        height = (height - layer.kernel_size[0]) // layer.stride[0] + 1
        width = columns
        if is_folded:
            width = 2 * (shape[1] - 1)
            name = nodes.node("Reshape", name, nodes.constant(np.array([0, height, width, layer.out_channels])))
        here = out._replace(name=name)
    # Features lie channel by channel in the network.
    return nodes.node("Flatten", nodes.node("Transpose", here.name, perm=[0, 3, 1, 2])), shape


def _can_fold(layer: nn.Conv2d, width: int) -> bool:
    """Whether the next layer, of the same size, sees all of the columns that `_folded` computes."""
    columns = (width - 4) // 2 + 1
    needed = 2 * ((columns - 4) // 2) + 4
    is_known = layer.in_channels == 1 and layer.kernel_size == (4, 4) and layer.stride == (2, 2)
    return is_known and width % _FOLD == 0 and needed <= 2 * (width // _FOLD - 1)


def _folded(weight: Int8Weight, bias: Tensor) -> tuple[Int8Weight, Tensor]:
    """Makes of a convolution [O, 1, 4, 4] with stride 2 one of stride 1 along rows that are four pixels wide.

    Four pixels become four channels, which is the same memory, and two neighbouring columns of outputs 2 O channels, so
    that ONNX Runtime copies eight pixels at once where it copied single ones, which took most of the time: 0.34 ms in
    place of 1.0 for 64 images. Half of the weights [2 O, 4, 4, 2] are zero, and the last column is left out.
    """
    count = len(weight.steps)
    wide = weight.steps.new_zeros(2, count, 4, 2 * _FOLD)
    wide[0, :, :, :4] = weight.steps[:, 0]
    wide[1, :, :, 2:6] = weight.steps[:, 0]
    steps = wide.view(2 * count, 4, 2, _FOLD).permute(0, 3, 1, 2)
    return Int8Weight(steps, weight.scale.repeat(2)), bias.repeat(2)


def _hidden(nodes: Nodes, layers: Int8Layers, published: Mapping[str, Tensor], state: str) -> str:
    """Adds the hidden layers; returns the outputs of the last one, in float32 and without activation."""
    name, followers = state, (*layers.hidden[1:], None)
    for layer, following in zip(layers.hidden, followers, strict=True):
        here = _Activations(name, float(published[scale_name(layer)]))
        out = None if following is None else _Activations("", float(published[scale_name(following)]))
        inputs = _quantised(nodes, here, _weight(published, layer), published[f"{layer}.bias"], out, is_gemm=True)
        name = nodes.node("QGemm", *inputs, transB=1, domain=CONTRIBUTED)
    return name


def _quantised(
    nodes: Nodes,
    here: _Activations,
    weight: Int8Weight,
    bias: Tensor,
    out: _Activations | None,
    *,
    is_gemm: bool = False,
) -> list[str]:
    """Adds the constants of a layer, and returns the inputs of its operator; without `out` it puts out float32."""
    scale = here.scale * weight.scale.double()
    steps = (bias.double() / scale).round().clamp(_INT32.min, _INT32.max).to(torch.int32)
    zeros = nodes.constant(np.zeros(len(scale), np.int8))
    inputs = [here.name, *_scale(nodes, here), nodes.constant(weight.steps), nodes.constant(weight.scale), zeros]
    after = [] if out is None else _scale(nodes, out)
    return [*inputs, nodes.constant(steps), *after] if is_gemm else [*inputs, *after, nodes.constant(steps)]


def _scale(nodes: Nodes, values: _Activations) -> list[str]:
    return [nodes.constant(np.array(values.scale, np.float32)), nodes.constant(np.array(values.zero, np.uint8))]


def _weight(published: Mapping[str, Tensor], layer: str) -> Int8Weight:
    return Int8Weight(published[f"{layer}.weight"], published[f"{layer}.weight_scale"])
