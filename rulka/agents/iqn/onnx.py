"""An `IqnNetwork`'s advantages by ONNX Runtime: far less overhead for each layer, which is what few cars cost.

Optional: `pip install rulka[onnx]`. In float32, so that decisions stay those of torch but for the order of sums.
Dimensions: N observations, T quantile fractions, D state, A actions.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.encoders.conv import ConvEncoder
from models.iqn import IqnNetwork
from models.layers import LEAKY_SLOPE

OPSET, IR_VERSION = 18, 10


def has_onnx() -> bool:
    """Whether ONNX Runtime and the package that writes its graphs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class OnnxAdvantages:
    """A snapshot of a network's weights, as `models.iqn_acting.PreparedAdvantages`; make another when they change."""

    def __init__(self, network: IqnNetwork, tau: Tensor) -> None:
        """Builds the graph of a network that `can_prepare`, for the fractions tau [T]; takes some 20 ms."""
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = _graph(network, tau).SerializeToString()
        self._session: Any = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, 1, H, W] uint8 and raw floats [N, F] to mean advantages [N, A] float32."""
        (advantage,) = self._session.run(None, {"image": image.numpy(), "floats": floats.numpy()})
        return torch.from_numpy(advantage)


class _Nodes:
    """Collects nodes and constants; every method returns the name of what it made."""

    def __init__(self) -> None:
        onnx = importlib.import_module("onnx")
        self.helper, self._to_proto = onnx.helper, onnx.numpy_helper.from_array
        self.types = onnx.TensorProto
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Tensor | NDArray[Any]) -> str:
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._to_proto(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, **settings: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], **settings))
        return name

    def linear(self, weight: Tensor, bias: Tensor, rows: str) -> str:
        product = self.node("MatMul", rows, self.constant(weight.t()))
        return self.node("Add", product, self.constant(bias))

    def leaky(self, rows: str) -> str:
        return self.node("LeakyRelu", rows, alpha=LEAKY_SLOPE)


def _graph(network: IqnNetwork, tau: Tensor) -> Any:
    nodes = _Nodes()
    features = nodes.node("Cast", "image", to=nodes.types.FLOAT)
    assert isinstance(network.encoder, ConvEncoder)
    for index, layer in enumerate(network.encoder.convolutions()):
        weight, bias = _parameters(layer)
        if index == 0:  # (pixel - 128) / 128 becomes part of the convolution
            weight, bias = weight / 128.0, bias - weight.sum(dim=(1, 2, 3))
        features = nodes.node(
            "Conv", features, nodes.constant(weight), nodes.constant(bias), strides=list(layer.stride)
        )
        features = nodes.leaky(features)
    hidden = "floats"
    for index, layer in enumerate(layer for layer in network.float_head if isinstance(layer, nn.Linear)):
        weight, bias = _parameters(layer)
        if index == 0:  # and (x - mean) / std of the first linear layer, to which what is withheld is zero
            weight = weight * network.float_shown / network.float_std
            bias = bias - weight @ network.float_mean
        hidden = nodes.leaky(nodes.linear(weight, bias, hidden))
    state = nodes.node("Concat", nodes.node("Flatten", features), hidden, axis=1)
    axis, factors = nodes.constant(np.array([1])), network.embed(tau)
    first, last = (_parameters(network.advantage_head[index]) for index in (0, 2))
    if network.embedding_at == "hidden":
        mean_factor = nodes.constant(network.of_advantage(factors).mean(dim=0))
        mean = nodes.node("Mul", nodes.leaky(nodes.linear(*first, state)), mean_factor)
    else:
        mixed = nodes.node("Mul", nodes.node("Unsqueeze", state, axis), nodes.constant(factors[None]))
        mean = nodes.node("ReduceMean", nodes.leaky(nodes.linear(*first, mixed)), axis, keepdims=0)
    advantage = nodes.linear(*last, mean)
    make_info, types = nodes.helper.make_tensor_value_info, nodes.types
    inputs = [
        make_info("image", types.UINT8, ["N", 1, network.inputs.height, network.inputs.width]),
        make_info("floats", types.FLOAT, ["N", len(network.float_mean)]),
    ]
    outputs = [make_info(advantage, types.FLOAT, ["N", len(last[1])])]
    graph = nodes.helper.make_graph(nodes.nodes, "advantages", inputs, outputs, nodes.constants)
    return nodes.helper.make_model(graph, opset_imports=[nodes.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert layer.bias is not None
    return layer.weight.detach(), layer.bias.detach()
