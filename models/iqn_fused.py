"""IQN's heads as one differentiable function of the state, in bfloat16 on CPUs: few passes over the activations.

Learning needs the quantiles of one action only. Its value by a duelling network, V + A(a) - mean A, is one scalar
product of the hidden units of both heads with the weights w_V and W_A[a] - mean W_A, so that neither the values of the
other actions nor float32 copies of the hidden units are made.
Dimensions: B batch, T quantile fractions, D state, C cosines, H hidden units of one head, A actions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from models.iqn_kernels import action_values, action_values_backward, mix_backward
from models.layers import LEAKY_SLOPE, POST_OP

_SLOPE = np.float32(LEAKY_SLOPE)


class HeadWeights(NamedTuple):
    """Parameters between state and quantiles, float32.

    Attributes:
        embed: [D, C] weights of the embedding.
        embed_bias: [D].
        hidden: [2 H, D] weights of the hidden units of the value head, then of the advantage head.
        hidden_bias: [2 H].
        out: [B, 2 H] output weights of each row, of its action.
        out_bias: [B].
    """

    embed: Tensor
    embed_bias: Tensor
    hidden: Tensor
    hidden_bias: Tensor
    out: Tensor
    out_bias: Tensor


def quantiles_of_action(state: Tensor, cosine: Tensor, weights: HeadWeights) -> Tensor:
    """Maps states [B, D] and cosines of fractions [B, T, C], both bfloat16, to quantiles [B, T] float32."""
    embed, hidden = weights.embed.bfloat16(), weights.hidden.bfloat16()
    biases = weights.embed_bias.bfloat16(), weights.hidden_bias.bfloat16()
    values = _Heads.apply(state, cosine, embed, biases[0], hidden, biases[1], weights.out)
    return values + weights.out_bias[:, None]


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        state: Tensor,
        cosine: Tensor,
        embed: Tensor,
        embed_bias: Tensor,
        hidden: Tensor,
        hidden_bias: Tensor,
        out: Tensor,
    ) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        embedded = linear(cosine, embed, embed_bias, *POST_OP)
        mixed = embedded * state[:, None, :]
        units = linear(mixed, hidden, hidden_bias, *POST_OP)
        result = torch.empty(units.shape[:2])
        action_values(_bits(units), out.detach().numpy(), result.numpy())
        ctx.save_for_backward(state, cosine, embedded, mixed, hidden, units, out)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        state, cosine, embedded, mixed, hidden, units, out = ctx.saved_tensors
        of_units, of_out = torch.empty_like(units), torch.empty_like(out)
        factors = gradient.contiguous().numpy()
        action_values_backward(_bits(units), out.detach().numpy(), factors, _SLOPE, _bits(of_units), of_out.numpy())
        of_units = of_units.flatten(0, 1)
        of_mixed = (of_units @ hidden).view(mixed.shape)
        of_embedded, of_state = torch.empty_like(embedded), torch.empty(state.shape)
        mix_backward(_bits(of_mixed), _bits(embedded), _bits(state), _SLOPE, _bits(of_embedded), of_state.numpy())
        of_embedded = of_embedded.flatten(0, 1)
        return (
            of_state.bfloat16(),
            None,
            of_embedded.t() @ cosine.flatten(0, 1),
            of_embedded.sum(dim=0),
            of_units.t() @ mixed.flatten(0, 1),
            of_units.sum(dim=0),
            of_out,
        )


def _bits(tensor: Tensor) -> NDArray[np.uint16]:
    return tensor.detach().view(torch.uint16).numpy()
