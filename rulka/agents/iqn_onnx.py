"""An `IqnNetwork`'s advantages by ONNX Runtime: far less overhead for each layer, which is what few cars cost.

Optional: `pip install rulka[onnx]`. In float32, so that decisions stay those of torch but for the order of sums.
Dimensions: N observations, T quantile fractions, D state, A actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.encoders.conv import ConvEncoder
from models.iqn import IqnNetwork
from rulka.agents.onnx_graph import Nodes


class OnnxAdvantages:
    """A snapshot of a network's weights, as `models.iqn_acting.PreparedAdvantages`; make another when they change."""

    def __init__(self, network: IqnNetwork, tau: Tensor) -> None:
        """Builds the graph of a network that `can_prepare`, for the fractions tau [T]; takes some 20 ms."""
        self._session = _session(network, tau)

    def __call__(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [N, 1, H, W] uint8 and raw floats [N, F] to mean advantages [N, A] float32."""
        (advantage,) = self._session.run(None, {"image": image.numpy(), "floats": floats.numpy()})
        return torch.from_numpy(advantage)


def _session(network: IqnNetwork, tau: Tensor) -> Any:
    nodes = Nodes()
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
    state = nodes.node("Concat", nodes.node("Flatten", features), nodes.float_head(network), axis=1)
    factors = network.embed(tau)
    first, last = (_parameters(network.advantage_head[index]) for index in (0, 2))
    if network.embedding_at == "hidden":
        mean_factor = nodes.constant(network.of_advantage(factors).mean(dim=0))
        mean = nodes.node("Mul", nodes.leaky(nodes.linear(*first, state)), mean_factor)
    else:
        axis = nodes.constant(np.array([1]))
        mixed = nodes.node("Mul", nodes.node("Unsqueeze", state, axis), nodes.constant(factors[None]))
        mean = nodes.node("ReduceMean", nodes.leaky(nodes.linear(*first, mixed)), axis, keepdims=0)
    advantage = nodes.linear(*last, mean)
    image_shape = (1, network.inputs.height, network.inputs.width)
    return nodes.session(image_shape, len(network.float_mean), advantage, len(last[1]))


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    assert layer.bias is not None
    return layer.weight.detach(), layer.bias.detach()
