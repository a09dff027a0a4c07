"""Implicit quantile network with duelling heads.

Sources: Dabney et al. 2018, arXiv:1806.06923; Wang et al. 2016 (duelling), arXiv:1511.06581. The embedding counts
cosines from i = 1, as Linesight does (the paper from 0, whose first cosine is a constant).
The paper multiplies an embedded fraction into the state, so that all behind it is computed for each fraction. Where it
is multiplied into the hidden units of both heads instead, only their output layers are, and the mean over
fractions, which acting takes, costs no more than one of them.
Dimensions: B batch, T quantile fractions, A actions, E image features, D state, G hidden units of both heads, L frames
seen at once, H x W pixels, F floats, C cosines.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.encoders.config import EncoderConfig
from models.fusion_config import CONCAT, FusionConfig
from models.guide import Guide
from models.iqn_fused import HeadWeights, quantiles_of_action
from models.layers import (
    KERNEL_DTYPES,
    LAST_GAIN,
    LEAKY_GAIN,
    LEAKY_SLOPE,
    TAU_GAIN,
    hidden_layers,
    initialise,
    output,
)
from models.noisy import NoisyLinear
from models.torso import InputShape, Int8Heads, Torso

EmbeddingPlace = Literal["state", "hidden"]


class IqnSizes(NamedTuple):
    """What an `IqnNetwork` is behind its encoder; layer norm and noise are of BTR, Clark et al. 2024, arXiv:2411.03820.

    Attributes:
        float_hidden: width of the float head; 256 in the reference.
        dense_hidden: of both heads together; 1024 in the reference.
        tau_embedding: cosines of the quantile embedding; 128 in the reference.
        layer_norm: between the linear layers and activations of the float head and of both heads.
        noisy_sigma: sigma_0 of the noisy layers of both heads; 0 for plain ones.
        embedding_at: what the embedded fractions are multiplied into.
        fusion: of image features and floats.
    """

    float_hidden: int
    dense_hidden: int
    tau_embedding: int
    layer_norm: bool = False
    noisy_sigma: float = 0.0
    embedding_at: EmbeddingPlace = "state"
    fusion: FusionConfig = CONCAT


class Quantiles(NamedTuple):
    """Return distribution of every action: `value` [B, T, A] float32 at the fractions `tau` [B, T] or [T]."""

    value: Tensor
    tau: Tensor


class IqnNetwork(Torso):
    """Return distribution of every action at quantile fractions chosen by the caller.

    1,051,805 parameters for 64 x 64 images, 184 floats, 12 actions and the reference sizes, a guide not counted.

    Attributes:
        guide: limits which actions are taken; None where there is none. Values and advantages are those of all actions.
    """

    frequency: Tensor

    def __init__(self, inputs: InputShape, encoder: EncoderConfig, sizes: IqnSizes, num_actions: int) -> None:
        super().__init__(inputs, encoder, sizes.float_hidden, sizes.fusion, layer_norm=sizes.layer_norm)
        frequency = math.pi * torch.arange(1, sizes.tau_embedding + 1, dtype=torch.float32)
        self.register_buffer("frequency", frequency, persistent=False)
        self.embedding_at: EmbeddingPlace = sizes.embedding_at
        num_factors = self.num_state if sizes.embedding_at == "state" else 2 * (sizes.dense_hidden // 2)
        self.tau_embed = nn.Sequential(
            nn.Linear(sizes.tau_embedding, num_factors), nn.LeakyReLU(LEAKY_SLOPE, inplace=True)
        )
        self.advantage_head = _head(self.num_state, num_actions, sizes)
        self.value_head = _head(self.num_state, 1, sizes)
        initialise(_linear(self.tau_embed, "0"), TAU_GAIN)
        self.guide: Guide | None = None

    def forward(self, image: Tensor, floats: Tensor, tau: Tensor) -> Quantiles:
        """Maps raw observations and fractions to returns.

        Args:
            image: [B, L, H, W] uint8; or features [B, E] that `encode` made of them.
            floats: [B, F] float32, raw.
            tau: [B, T] fractions in (0, 1); or [T], the same for all rows.
        """
        return Quantiles(self._values(self.state(image, floats), tau), tau)

    def advantages(self, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Mean advantage of every action, all that choosing one takes; the value head is never run.

        Args:
            image: [B, L, H, W] uint8; or features [B, E] that `encode` made of them.
            floats: [B, F] float32, raw.
            tau: [T] fractions, the same for all rows, see `fixed_fractions`.

        Returns:
            [B, A] float32; differs from the mean Q-values by one number for each row.
        """
        # The output layer is linear: the mean over fractions may be taken before it.
        return output(_linear(self.advantage_head, "2"), self.advantage_units(image, floats, tau))

    def advantage_units(self, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Hidden units [B, G / 2] of the advantage head, meaned over fractions; see `advantages`."""
        state, factors = self.state(image, floats), self.embed(tau)
        if self.embedding_at == "hidden":
            return _hidden(self.advantage_head, state) * self.of_advantage(factors).mean(dim=0)
        return _hidden(self.advantage_head, state[:, None, :] * factors).mean(dim=1)

    def of_action(self, image: Tensor, floats: Tensor, tau: Tensor, action: Tensor) -> Tensor:
        """Return distribution of one action for each observation, all that learning takes.

        Args:
            image: [B, L, H, W] uint8; or features [B, E] that `encode` made of them.
            floats: [B, F] float32, raw.
            tau: [B, T] fractions in (0, 1); or [T], the same for all rows, which costs far less where fractions are
                multiplied into the hidden units.
            action: [B] int64.

        Returns:
            [B, T] float32, the part of `forward(...).value` that belongs to the actions.
        """
        state = self.state(image, floats)
        if not self._has_plain_outputs() or (self.embedding_at == "state" and not self._has_fused_heads(state)):
            value_bta = self._values(state, tau)
            return value_bta.gather(2, action[:, None, None].expand(-1, tau.shape[-1], 1))[:, :, 0]
        # V + A(a) - mean A is one scalar product with the hidden units of both heads.
        advantage, value = self.output_layers()
        relative = advantage.weight - advantage.weight.mean(dim=0)
        out = torch.cat([value.weight.expand(len(action), -1), relative.index_select(0, action)], dim=1)
        out_bias = value.bias + advantage.bias[action] - advantage.bias.mean()
        if self.embedding_at == "hidden":
            units, factors = self._units(state), self.embed(tau)
            with torch.autocast(state.device.type, enabled=False):
                units, factors = units.float() * out, factors.float()
                if tau.dim() == 1:
                    return units @ factors.T + out_bias[:, None]
                return (factors @ units[:, :, None])[:, :, 0] + out_bias[:, None]
        hidden = [_linear(head, "0") for head in (self.value_head, self.advantage_head)]
        embed = _linear(self.tau_embed, "0")
        weights = HeadWeights(
            embed.weight,
            embed.bias,
            torch.cat([layer.weight for layer in hidden]),
            torch.cat([layer.bias for layer in hidden]),
            out,
            out_bias,
        )
        return quantiles_of_action(state, self._cosines(tau.expand(len(action), -1)), weights)

    def int8_heads(self) -> Int8Heads | None:
        """Returns the hidden layers of both heads, where fractions meet their outputs; acting needs one of them."""
        return Int8Heads(("advantage_head.0",), ("value_head.0",)) if self.embedding_at == "hidden" else None

    def output_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the last layers of the advantage head and of the value head."""
        return _linear(self.advantage_head, "2"), _linear(self.value_head, "2")

    def _values(self, state: Tensor, tau: Tensor) -> Tensor:
        factors = self.embed(tau)
        if self.embedding_at == "hidden":
            of_value, of_advantage = (self._units(state)[:, None, :] * factors).tensor_split(2, dim=2)
        else:
            mixed = state[:, None, :] * factors
            of_value, of_advantage = _hidden(self.value_head, mixed), _hidden(self.advantage_head, mixed)
        advantage = output(_linear(self.advantage_head, "2"), of_advantage)
        value = output(_linear(self.value_head, "2"), of_value)
        return value + advantage - advantage.mean(dim=2, keepdim=True)

    def embed(self, tau: Tensor) -> Tensor:
        """Maps fractions [...] to factors: [..., D] of the state, or [..., G] of the hidden units."""
        return hidden_layers(self.tau_embed.children(), self._cosines(tau))

    def of_advantage(self, factors: Tensor) -> Tensor:
        """Returns those [..., G / 2] of the factors [..., G] that belong to the units of the advantage head."""
        return factors.tensor_split(2, dim=-1)[1]

    def _units(self, state: Tensor) -> Tensor:
        """Maps states [B, D] to the hidden units [B, G] of the value head, then of the advantage head."""
        return torch.cat([_hidden(self.value_head, state), _hidden(self.advantage_head, state)], dim=1)

    def _cosines(self, tau: Tensor) -> Tensor:
        return torch.cos(tau[..., None] * self.frequency).to(self._compute_dtype())

    def _has_plain_outputs(self) -> bool:
        return all(type(layer) is nn.Linear for layer in self.output_layers())

    def _has_fused_heads(self, state: Tensor) -> bool:
        has_plain_heads = len(self.value_head) == 3
        is_on_cpu = state.device.type == "cpu"
        return has_plain_heads and is_on_cpu and state.dtype == torch.bfloat16 and torch.bfloat16 in KERNEL_DTYPES


def draw_fractions(batch: int, num_fractions: int, generator: torch.Generator) -> Tensor:
    """Draws stratified fractions for the lower half and mirrors them, so that their mean is one half.

    Args:
        batch: B.
        num_fractions: T, even.
        generator: source of randomness; its device is that of the result.

    Returns:
        [B, T] float32; column j < T / 2 is uniform on [j / T, (j + 1) / T), column T / 2 + j is one minus column j.
    """
    half = _half(num_fractions)
    uniform = torch.rand(batch, half, generator=generator, device=generator.device)
    lower = (torch.arange(half, device=generator.device) + uniform) / num_fractions
    return torch.cat([lower, 1.0 - lower], dim=1)


def fixed_fractions(num_fractions: int) -> Tensor:
    """Returns the middles [T] of the strata of `draw_fractions`, for acting; T must be even."""
    half = _half(num_fractions)
    lower = (torch.arange(half) + 0.5) / num_fractions
    return torch.cat([lower, 1.0 - lower])


def _half(num_fractions: int) -> int:
    if num_fractions < 2 or num_fractions % 2:
        message = f"the number of quantile fractions must be even and positive, got {num_fractions}"
        raise ValueError(message)
    return num_fractions // 2


def _head(num_inputs: int, num_outputs: int, sizes: IqnSizes) -> nn.Sequential:
    """Returns a head; its linear layers are called 0 and 2 whatever lies between."""
    hidden = sizes.dense_hidden // 2
    head = nn.Sequential()
    head.add_module("0", _layer(num_inputs, hidden, sizes.noisy_sigma))
    if sizes.layer_norm:
        head.add_module("norm_0", nn.LayerNorm(hidden))
    head.add_module("1", nn.LeakyReLU(LEAKY_SLOPE, inplace=True))
    head.add_module("2", _layer(hidden, num_outputs, sizes.noisy_sigma))
    initialise(_linear(head, "0"), LEAKY_GAIN)
    initialise(_linear(head, "2"), LAST_GAIN)
    return head


def _layer(num_inputs: int, num_outputs: int, noisy_sigma: float) -> nn.Linear:
    return NoisyLinear(num_inputs, num_outputs, noisy_sigma) if noisy_sigma else nn.Linear(num_inputs, num_outputs)


def _hidden(head: nn.Sequential, mixed: Tensor) -> Tensor:
    return hidden_layers([*head.children()][:-1], mixed)  # the output layer comes last


def _linear(layers: nn.Sequential, name: str) -> nn.Linear:
    layer = layers.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
