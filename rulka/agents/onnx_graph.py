"""Graphs for ONNX Runtime, node by node, and what runs them on one core.

Optional: `pip install 'rulka[onnx]'`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from models.layers import LEAKY_SLOPE
from models.torso import Torso

OPSET, IR_VERSION = 18, 10
ROWS = "N"
"""How many observations there are, in the shapes of inputs and outputs."""
CONTRIBUTED = "com.microsoft"
"""Domain of the operators that ONNX Runtime has beside those of the standard."""


def has_onnx() -> bool:
    """Whether ONNX Runtime and the package that writes its graphs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class Nodes:
    """Collects nodes and constants; every method that adds one returns the name of what it made."""

    def __init__(self) -> None:
        onnx = importlib.import_module("onnx")
        self._helper, self._to_proto = onnx.helper, onnx.numpy_helper.from_array
        self.types = onnx.TensorProto
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, value: Tensor | NDArray[Any]) -> str:
        """Adds an array."""
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._to_proto(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, *inputs: str, **settings: Any) -> str:
        """Adds an operator with one output."""
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(kind, list(inputs), [name], **settings))
        return name

    def linear(self, weight: Tensor, bias: Tensor, rows: str) -> str:
        """Adds a linear layer of weight [O, I] and bias [O]."""
        product = self.node("MatMul", rows, self.constant(weight.t()))
        return self.node("Add", product, self.constant(bias))

    def leaky(self, rows: str) -> str:
        """Adds a LeakyReLU."""
        return self.node("LeakyRelu", rows, alpha=LEAKY_SLOPE)

    def float_head(self, network: Torso) -> str:
        """Adds the two linear layers that see the input "floats", whose normalisation is part of the first one."""
        rows = "floats"
        for index, layer in enumerate(layer for layer in network.float_head if isinstance(layer, nn.Linear)):
            weight, bias = layer.weight.detach(), layer.bias.detach()
            if index == 0:  # to which what is withheld is zero
                weight = weight * network.float_shown / network.float_std
                bias = bias - weight @ network.float_mean
            rows = self.leaky(self.linear(weight, bias, rows))
        return rows

    def session(self, image_shape: Sequence[int], num_floats: int, output: str, num_outputs: int) -> Any:
        """Returns what runs the graph on one core: an `onnxruntime.InferenceSession`.

        Args:
            image_shape: of one image, the input "image", uint8.
            num_floats: F of the input "floats", float32.
            output: name of what is computed, float32.
            num_outputs: how many numbers that is.
        """
        make_info, types = self._helper.make_tensor_value_info, self.types
        inputs = [
            make_info("image", types.UINT8, [ROWS, *image_shape]),
            make_info("floats", types.FLOAT, [ROWS, num_floats]),
        ]
        outputs = [make_info(output, types.FLOAT, [ROWS, num_outputs])]
        graph = self._helper.make_graph(self._nodes, "network", inputs, outputs, self._constants)
        operators = [self._helper.make_opsetid("", OPSET), self._helper.make_opsetid(CONTRIBUTED, 1)]
        model = self._helper.make_model(graph, opset_imports=operators, ir_version=IR_VERSION)
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
