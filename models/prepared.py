"""Inference of simple networks with ONNX Runtime on one core, in float32 or int8: several times faster for few cars.

A simple network has the four-convolution encoder on one frame, concatenated with the floats, and an `ActingHead`. All
other networks act with torch, as they learn. The graph is rebuilt for each version of the weights, in about 5 ms.

In int8, weights are symmetric with one scale per output channel; inputs of layers are unsigned from zero with one scale
per layer. The negative outputs of a LeakyReLU, scaled by a hundredth, are less than a few quantisation steps and are
dropped. The first convolution, layers that see only floats, operations on the last hidden units, and outputs stay in
float32. Each layer is wrapped in quantise and dequantise nodes, which ONNX Runtime fuses into integer operators. (Its
own quantiser produces the same operators, in 120 ms instead of 10 per version.)
Dimensions: N observations, O output channels, H x W pixels, F floats, T fractions, D state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from models.encoders.base import normalise_image
from models.encoders.convolutions import ConvEncoder, SpectralConv2d
from models.fusion import Concat
from models.layers import LEAKY_SLOPE
from models.torso import ActingHead, Torso

WEIGHT_STEPS, ACTIVATION_STEPS = 127, 255
INPUT_SCALE, WEIGHT_SCALE = ".input_scale", ".weight_scale"
"""Suffixes of the names of published scales, after the layer's name."""

_OPSET, _IR_VERSION = 18, 10
_LEAST_HIGH = 1e-6
"""Lower bound of the highest input of a layer, for inputs that are all zero."""
_INT32 = np.iinfo(np.int32)

Scales = Mapping[str, Tensor]
"""Scale [] of the inputs of each int8 layer by name, in order of execution."""


def can_prepare(network: nn.Module) -> bool:
    """Returns whether a network is simple in the sense of this module, and on the CPU."""
    if not isinstance(network, Torso) or network.acting_head() is None:
        return False
    sees_one_frame = network.inputs.frames == 1 and network.inputs.shows_image
    layers = [*network.encoder.modules(), *network.float_head.modules()]
    has_extras = any(isinstance(layer, nn.AdaptiveMaxPool2d | nn.LayerNorm | SpectralConv2d) for layer in layers)
    is_plain = isinstance(network.encoder, ConvEncoder) and isinstance(network.fusion, Concat) and not has_extras
    return is_plain and sees_one_frame and network.float_mean.device.type == "cpu"


class Int8Weight(NamedTuple):
    """A weight [O, ...] int8 and the scale [O] float32 of each output channel."""

    steps: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        """Returns the weight in float32."""
        return self.steps.float() * _by_channel(self.scale, self.steps)


def quantised_weight(weight: Tensor) -> Int8Weight:
    """Quantises a weight [O, ...] symmetrically to 127 steps on either side of zero, per output channel."""
    largest = weight.detach().abs().flatten(1).amax(dim=1)
    scale = torch.where(largest > 0, largest / WEIGHT_STEPS, 1.0)
    steps = torch.round(weight / _by_channel(scale, weight)).clamp(-WEIGHT_STEPS, WEIGHT_STEPS)
    return Int8Weight(steps.to(torch.int8), scale)


def _by_channel(scale: Tensor, weight: Tensor) -> Tensor:
    return scale.view(-1, *(1,) * (weight.dim() - 1))


@torch.no_grad()
def input_scales(network: Torso, image: Tensor, floats: Tensor) -> dict[str, Tensor]:
    """Calibrates the input scales of all int8 layers to the highest input of each.

    Args:
        network: accepted by `can_prepare`.
        image: [N, 1, H, W] uint8, typical of the coming observations.
        floats: [N, F] raw.
    """
    head = network.acting_head()
    assert isinstance(network.encoder, ConvEncoder)
    assert head is not None
    names = {id(layer): name for name, layer in network.named_modules()}
    first, *others = network.encoder.convolutions()
    scales = {}
    rows = functional.leaky_relu(first(normalise_image(image, torch.float32)), LEAKY_SLOPE)
    for layer in others:
        scales[names[id(layer)]] = _scale_of(rows)
        rows = functional.leaky_relu(layer(rows), LEAKY_SLOPE)
    rows = network.join(rows.flatten(1), floats)
    for layer in head.hidden:
        scales[names[id(layer)]] = _scale_of(rows)
        rows = layer(rows).relu()
    return scales


def _scale_of(rows: Tensor) -> Tensor:
    return rows.amax().clamp(min=_LEAST_HIGH) / ACTIVATION_STEPS


def quantise(tensors: Mapping[str, Tensor], scales: Scales) -> dict[str, Tensor]:
    """Returns a network's weights by name; layers with a scale get int8 weights and both scales as extra entries."""
    published = dict(tensors)
    for name, scale in scales.items():
        weight = quantised_weight(tensors[f"{name}.weight"])
        published |= {f"{name}.weight": weight.steps, name + WEIGHT_SCALE: weight.scale, name + INPUT_SCALE: scale}
    return published


def dequantise(published: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Scales]:
    """Returns dequantised float32 weights and the input scales, from the output of `quantise`."""
    scales = {name.removesuffix(INPUT_SCALE): each for name, each in published.items() if name.endswith(INPUT_SCALE)}
    tensors = {name: each for name, each in published.items() if not name.endswith((INPUT_SCALE, WEIGHT_SCALE))}
    for name in scales:
        weight = Int8Weight(published[f"{name}.weight"], published[name + WEIGHT_SCALE])
        tensors[f"{name}.weight"] = weight.dequantised()
    return tensors, scales


class PreparedNetwork:
    """Snapshot of a network for inference; create another one when the weights change."""

    def __init__(self, network: Torso, head: ActingHead, scales: Scales | None = None) -> None:
        """Builds the graph.

        Args:
            network: accepted by `can_prepare`.
            head: its acting head, with factors.
            scales: input scales, for int8; None for float32.
        """
        graph, inputs = _Graph(scales or {}, network), network.inputs
        assert isinstance(network.encoder, ConvEncoder)
        first, *others = network.encoder.convolutions()
        rows = graph.first_convolution(first)
        for layer in others:
            rows = graph.convolve(layer, graph.quantised(layer, graph.activated(rows, LEAKY_SLOPE)))
        rows = graph.quantised(head.hidden[0], graph.activated(rows, LEAKY_SLOPE))
        seen = graph.quantised(head.hidden[0], graph.float_head(network))
        rows = graph.node("Concat", graph.node("Flatten", rows), seen, axis=1)
        factors, is_of_state = head.factors, head.factors is not None and head.factors.dim() == 2
        if factors is not None and is_of_state:  # [N, D] to one row per fraction, [N T, D]
            rows = graph.node("Unsqueeze", rows, graph.constant(np.array([1])))
            rows = graph.reshaped(graph.node("Mul", rows, graph.constant(factors)), -1, network.num_state)
        for index, layer in enumerate(head.hidden):
            rows = graph.linear(layer, graph.quantised(layer, rows))
            rows = graph.activated(rows, head.slope, is_last=index + 1 == len(head.hidden))
        if factors is not None and is_of_state:
            rows = graph.reshaped(rows, -1, len(factors), head.output.in_features)
            rows = graph.node("ReduceMean", rows, graph.constant(np.array([1])), keepdims=0)
        elif factors is not None:
            rows = graph.node("Mul", rows, graph.constant(factors))
        outputs = graph.linear(head.output, rows)
        shape = 1, inputs.height, inputs.width
        self._session = graph.session(shape, len(network.float_mean), outputs, head.output.out_features)

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, 1, H, W] uint8 and raw floats [N, F] to the outputs of the head, float32."""
        (outputs,) = self._session.run(None, {"image": image.numpy(), "floats": floats.numpy()})
        return torch.from_numpy(outputs)


class _Graph:
    """Builder of an ONNX graph; every method that adds a node or constant returns the name of its output.

    Layers with a scale compute in int8, and the LeakyReLUs before them become ReLUs.
    """

    def __init__(self, scales: Scales, network: nn.Module) -> None:
        self._scales = {id(network.get_submodule(name)): float(scale) for name, scale in scales.items()}
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: Tensor | NDArray[Any]) -> str:
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        name = f"constant_{len(self._constants)}"
        self._constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, **settings: Any) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(onnx.helper.make_node(kind, list(inputs), [name], **settings))
        return name

    def reshaped(self, rows: str, *shape: int) -> str:
        return self.node("Reshape", rows, self.constant(np.array(shape)))

    def first_convolution(self, layer: nn.Conv2d) -> str:
        """Adds the convolution of the input "image", with the normalisation (p - 128) / 128 folded in."""
        assert layer.bias is not None
        weight, bias = layer.weight / 128, layer.bias - layer.weight.sum(dim=(1, 2, 3))
        inputs = self.node("Cast", "image", to=onnx.TensorProto.FLOAT), self.constant(weight), self.constant(bias)
        return self.node("Conv", *inputs, strides=list(layer.stride))

    def convolve(self, layer: nn.Conv2d, rows: str) -> str:
        return self.node("Conv", rows, *self._parameters(layer), strides=list(layer.stride))

    def linear(self, layer: nn.Linear, rows: str) -> str:
        return self.node("Gemm", rows, *self._parameters(layer), transB=1)

    def activated(self, rows: str, slope: float, *, is_last: bool = False) -> str:
        if self._scales and not is_last:
            return self.node("Relu", rows)
        return self.node("LeakyRelu", rows, alpha=slope)  # also for slope 0: a Relu is only fused if quantised

    def quantised(self, layer: nn.Module, rows: str) -> str:
        """Adds the quantisation of a layer's inputs, if it computes in int8."""
        if id(layer) not in self._scales:
            return rows
        scale = self.constant(np.array(self._scales[id(layer)], np.float32)), self.constant(np.array(0, np.uint8))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", rows, *scale), *scale)

    def float_head(self, network: Torso) -> str:
        """Adds the linear layers on the input "floats", with the normalisation folded into the first."""
        rows = "floats"
        for index, layer in enumerate(layer for layer in network.float_head if isinstance(layer, nn.Linear)):
            weight, bias = layer.weight.detach(), layer.bias.detach()
            if index == 0:  # withheld floats get zero weights
                weight = weight * network.float_shown / network.float_std
                bias = bias - weight @ network.float_mean
            rows = self.node("Gemm", rows, self.constant(weight), self.constant(bias), transB=1)
            rows = self.node("LeakyRelu", rows, alpha=LEAKY_SLOPE)
        return rows

    def session(self, image_shape: tuple[int, ...], num_floats: int, output: str, num_outputs: int) -> Any:
        make_info, types, rows = onnx.helper.make_tensor_value_info, onnx.TensorProto, "N"
        inputs = [
            make_info("image", types.UINT8, [rows, *image_shape]),
            make_info("floats", types.FLOAT, [rows, num_floats]),
        ]
        outputs = [make_info(output, types.FLOAT, [rows, num_outputs])]
        graph = onnx.helper.make_graph(self._nodes, "network", inputs, outputs, self._constants)
        operators = [onnx.helper.make_opsetid("", _OPSET)]
        model = onnx.helper.make_model(graph, opset_imports=operators, ir_version=_IR_VERSION)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # This fusion would separate a linear layer from its dequantise node, and so keep it in float32.
        disabled = ["GemmActivationFusion"] if self._scales else []
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )

    def _parameters(self, layer: nn.Conv2d | nn.Linear) -> tuple[str, str]:
        assert layer.bias is not None
        if id(layer) not in self._scales:
            return self.constant(layer.weight), self.constant(layer.bias)
        weight = quantised_weight(layer.weight)
        scale = weight.scale.double() * self._scales[id(layer)]  # of the accumulator that the bias is added to
        bias = (layer.bias.detach().double() / scale).round().clamp(_INT32.min, _INT32.max).to(torch.int32)
        return self._dequantised(weight.steps, weight.scale), self._dequantised(bias, scale.float())

    def _dequantised(self, steps: Tensor, scale: Tensor) -> str:
        zero = torch.zeros(len(scale), dtype=steps.dtype)  # without a zero point linear layers stay in float32
        return self.node("DequantizeLinear", *map(self.constant, (steps, scale, zero)), axis=0)
