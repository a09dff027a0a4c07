"""Implicit quantile network with duelling heads.

Sources: Dabney et al. 2018, arXiv:1806.06923; Wang et al. 2016 (duelling), arXiv:1511.06581. The embedding counts
cosines from i = 1, as Linesight does (the paper from 0, whose first cosine is a constant).
The paper multiplies an embedded fraction into the state, so that all later layers run once per fraction. If it is
multiplied into the hidden units of both heads instead, only their output layers do, and the mean over fractions, used
for acting, costs no more than a single fraction.
Dimensions: B batch, T quantile fractions, A actions, K actions per decision, E image features, D state, G hidden units
of both heads, L stacked frames, H x W pixels, F floats, C cosines.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from models.actor_critic import ClonePolicy
from models.encoders.config import EncoderConfig
from models.fusion_config import CONCAT, FusionConfig
from models.layers import LAST_GAIN, LEAKY_GAIN, LEAKY_SLOPE, TAU_GAIN, NoisyLinear, initialise, output
from models.torso import ActingHead, InputShape, Torso

EmbeddingPlace = Literal["state", "hidden"]


class IqnSizes(NamedTuple):
    """Sizes of an `IqnNetwork` after its encoder; layer norm and noise are BTR's, Clark et al. 2024, arXiv:2411.03820.

    Attributes:
        float_hidden: width of the float head; 256 in the reference.
        dense_hidden: hidden units of both heads together; 1024 in the reference.
        tau_embedding: cosines of the quantile embedding; 128 in the reference.
        layer_norm: whether layer norms follow the hidden linear layers of the float head and of both heads.
        noisy_sigma: sigma_0 of the noisy layers of both heads; 0 for plain ones.
        embedding_at: where the embedded fractions are multiplied in.
        fusion: of image features and floats.
        actions_per_decision: K.
    """

    float_hidden: int
    dense_hidden: int
    tau_embedding: int
    layer_norm: bool = False
    noisy_sigma: float = 0.0
    embedding_at: EmbeddingPlace = "state"
    fusion: FusionConfig = CONCAT
    actions_per_decision: int = 1


class Guide(nn.Module):
    """Frozen cloned policy inside an agent, which masks actions that the clone considers unlikely.

    An action is allowed if its probability is at least a share (`floor`) of that of the likeliest action, Fujimoto et
    al. 2019 (discrete BCQ), arXiv:1910.01708. With 1 only the likeliest one is allowed, so that the agent drives like
    the clone; with 0 all are. Values of untried actions thus affect neither acting nor learning. The K actions of a
    decision are masked independently.

    Attributes:
        policy: frozen.
        actions_per_decision: K.
        floor: share of the likeliest action's probability, 0 to 1; part of the weights, so that a network that loads
            these has the same mask.
    """

    floor: Tensor

    def __init__(self, policy: ClonePolicy, actions_per_decision: int = 1) -> None:
        super().__init__()
        self.actions_per_decision = actions_per_decision
        self.policy = policy.requires_grad_(False)
        self.register_buffer("floor", torch.zeros(()))

    def log_probs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [B, L, H, W] uint8 and raw floats [B, F] to log-probabilities [B, K, A] float32."""
        return self.policy(image, floats).unflatten(1, (self.actions_per_decision, -1)).log_softmax(dim=2)

    def limit(self, preference: Tensor, log_probs: Tensor) -> Tensor:
        """Returns preferences [..., K, A] with minus infinity for masked actions."""
        is_allowed = log_probs >= log_probs.amax(dim=-1, keepdim=True) + self.floor.log()
        return preference.masked_fill(~is_allowed, -torch.inf)


class IqnNetwork(Torso):
    """Return distribution of every action at quantile fractions chosen by the caller.

    1,051,805 parameters for 64 x 64 images, 184 floats, 12 actions and the reference sizes, without a guide.

    Attributes:
        guide: masks actions; None if there is none. Values and advantages include masked actions.
    """

    frequency: Tensor

    def __init__(self, inputs: InputShape, encoder: EncoderConfig, sizes: IqnSizes, num_outputs: int) -> None:
        super().__init__(inputs, encoder, sizes.float_hidden, sizes.fusion, layer_norm=sizes.layer_norm)
        frequency = math.pi * torch.arange(1, sizes.tau_embedding + 1, dtype=torch.float32)
        self.register_buffer("frequency", frequency, persistent=False)
        self.embedding_at: EmbeddingPlace = sizes.embedding_at
        self.actions_per_decision = sizes.actions_per_decision
        num_factors = self.num_state if sizes.embedding_at == "state" else 2 * (sizes.dense_hidden // 2)
        self.tau_embed = nn.Sequential(
            nn.Linear(sizes.tau_embedding, num_factors), nn.LeakyReLU(LEAKY_SLOPE, inplace=True)
        )
        self.advantage_head = _head(self.num_state, num_outputs, sizes)
        self.value_head = _head(self.num_state, 1, sizes)
        initialise(_linear(self.tau_embed, 0), TAU_GAIN)
        self._is_noisy = sizes.noisy_sigma > 0.0
        self.guide: Guide | None = None

    def forward(self, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Maps raw observations and fractions to quantiles of the return.

        The return of a decision is the sum over its K actions: Q(s, a_1 .. a_K) = sum over k of value[k, a_k]. So the
        best decision consists of the best actions.

        Args:
            image: [B, L, H, W] uint8; or their features [B, E] from `encode`.
            floats: [B, F] float32, raw.
            tau: [B, T] fractions in (0, 1); or [T], the same for all rows.

        Returns:
            [B, T, K, A] float32.
        """
        return self._values(self.state(image, floats), tau)

    def quantiles_of_action(self, image: Tensor, floats: Tensor, tau: Tensor, action: Tensor) -> Tensor:
        """Computes the return distribution of one decision per observation, as needed for learning.

        Args:
            image: [B, L, H, W] uint8; or their features [B, E] from `encode`.
            floats: [B, F] float32, raw.
            tau: [B, T] fractions in (0, 1); or [T], the same for all rows.
            action: [B, K] int64.

        Returns:
            [B, T] float32, `forward(...)` gathered at the actions and summed over them.
        """
        state = self.state(image, floats)
        if self.embedding_at == "state" or tau.dim() > 1 or self._is_noisy:
            index = action[:, None, :, None].expand(-1, tau.shape[-1], -1, 1)
            return self._values(state, tau).gather(3, index)[..., 0].sum(dim=2)
        # Everything after the hidden units is linear: V + A(a) - mean A for all fractions is one matrix product,
        # without values of other actions and without hidden units [B, T, G]. This saves a sixth of the update.
        advantage, value = self.output_layers()
        by_action = advantage.weight.unflatten(0, (self.actions_per_decision, -1))
        relative = (by_action - by_action.mean(dim=1, keepdim=True)).flatten(0, 1)
        row = action + by_action.shape[1] * torch.arange(self.actions_per_decision, device=action.device)
        taken = relative.index_select(0, row.flatten()).unflatten(0, row.shape).sum(dim=1)
        weight = torch.cat([value.weight.expand(len(action), -1), taken], dim=1)
        num_taken = self.actions_per_decision  # the mean over all outputs is a K-th of the sum of each action's mean
        bias = value.bias + advantage.bias[row].sum(dim=1) - num_taken * advantage.bias.mean()
        units, factors = torch.cat([_hidden(head, state) for head in self._heads()], dim=1), self.embed(tau)
        with torch.autocast(state.device.type, enabled=False):  # as in `models.layers.output`
            return (units.float() * weight) @ factors.float().T + bias[:, None]

    def q_advantages(self, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
        """Computes the mean advantage of every action, as needed for acting; does not run the value head.

        Args:
            image: [B, L, H, W] uint8; or their features [B, E] from `encode`.
            floats: [B, F] float32, raw.
            tau: [T] fractions, the same for all rows, see `fixed_fractions`.

        Returns:
            [B, K, A] float32; differs from the mean Q-values by a constant per row and action of the decision.
        """
        outputs = self.q_advantages_by(self.acting_factors(tau), image, floats)
        return outputs.unflatten(1, (self.actions_per_decision, -1))

    def q_advantages_by(self, factors: Tensor, image: Tensor, floats: Tensor) -> Tensor:
        """Returns them as outputs [B, K A], from precomputed `acting_factors`, which depend only on the weights."""
        # The output layer is linear, so the mean over fractions may be taken before it.
        state = self.state(image, floats)
        return output(self.output_layers()[0], self._advantage_units(factors, state))

    def acting_factors(self, tau: Tensor) -> Tensor:
        """Returns factors [T, D] of the state; or factors [G / 2] of the advantage head's units, averaged over T."""
        factors = self.embed(tau)
        return factors.tensor_split(2, dim=-1)[1].mean(dim=0) if self.embedding_at == "hidden" else factors

    def acting_head(self, tau: Tensor | None = None) -> ActingHead | None:
        """Returns the layers of `q_advantages`; None if they include noise or a layer norm."""
        if self._is_noisy or len(self.advantage_head) > 3:
            return None
        factors = None if tau is None else self.acting_factors(tau)
        return ActingHead((_linear(self.advantage_head, 0),), LEAKY_SLOPE, self.output_layers()[0], factors)

    def output_layers(self) -> tuple[nn.Linear, nn.Linear]:
        """Returns the last layers of the advantage head and of the value head."""
        return _linear(self.advantage_head, -1), _linear(self.value_head, -1)

    def embed(self, tau: Tensor) -> Tensor:
        """Maps fractions [...] to factors: [..., D] of the state, or [..., G] of the hidden units."""
        return self.tau_embed(torch.cos(tau[..., None] * self.frequency).to(self._compute_dtype()))

    def _values(self, state: Tensor, tau: Tensor) -> Tensor:
        factors = self.embed(tau)
        if self.embedding_at == "hidden":
            by_head = factors.tensor_split(2, dim=-1)
            units = [_hidden(head, state)[:, None, :] * own for head, own in zip(self._heads(), by_head, strict=True)]
        else:
            mixed = state[:, None, :] * factors
            units = [_hidden(head, mixed) for head in self._heads()]
        value, advantage = (output(_linear(head, -1), own) for head, own in zip(self._heads(), units, strict=True))
        advantage = advantage.unflatten(2, (self.actions_per_decision, -1))
        return value[..., None] / self.actions_per_decision + advantage - advantage.mean(dim=3, keepdim=True)

    def _heads(self) -> tuple[nn.Sequential, nn.Sequential]:
        """Returns the value head and the advantage head, in the order of their hidden units and factors."""
        return self.value_head, self.advantage_head

    def _advantage_units(self, factors: Tensor, state: Tensor) -> Tensor:
        """Returns the hidden units [B, G / 2] of the advantage head, averaged over fractions."""
        if self.embedding_at == "hidden":
            return _hidden(self.advantage_head, state) * factors
        return _hidden(self.advantage_head, state[:, None, :] * factors).mean(dim=1)


NUM_CLONED_FRACTIONS = 32
"""Fractions that a `ClonedIqn` averages over, as IQN does for acting (`iqn.num_quantiles_acting`): both act alike."""


class ClonedIqn(IqnNetwork):
    """IQN's network as a cloned policy, with its mean advantages as logits, so that an agent can load all of it.

    A softmax is invariant to a constant shared by all actions. The value head adds only such a constant, so it is not
    trained and keeps its initial weights.

    Attributes:
        tau: the fractions.
    """

    tau: Tensor

    def __init__(self, inputs: InputShape, encoder: EncoderConfig, sizes: IqnSizes, num_outputs: int) -> None:
        super().__init__(inputs, encoder, sizes, num_outputs)
        self.register_buffer("tau", fixed_fractions(NUM_CLONED_FRACTIONS), persistent=False)

    @property
    def num_hidden(self) -> int:
        """Number of hidden units of the advantage head."""
        return self.output_layers()[0].in_features

    def decide(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps image features [B, E] and raw floats [B, F] to logits [B, K A] float32."""
        return self.read_out(self.hidden(encoded, floats))

    def hidden(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps image features [B, E] and raw floats [B, F] to hidden units [B, G / 2], averaged over fractions."""
        return self._advantage_units(self.acting_factors(self.tau), self.join(encoded, floats))

    def read_out(self, hidden: Tensor) -> Tensor:
        """Maps hidden units [B, G / 2] to logits [B, K A]."""
        return output(self.output_layers()[0], hidden)


def draw_fractions(batch: int, num_fractions: int, generator: torch.Generator) -> Tensor:
    """Draws stratified fractions for the lower half and mirrors them, so that their mean is one half.

    Args:
        batch: B.
        num_fractions: T, even.
        generator: of random numbers; the result is on its device.

    Returns:
        [B, T] float32; column j < T / 2 is uniform on [j / T, (j + 1) / T), column T / 2 + j is one minus column j.
    """
    half = _half(num_fractions)
    uniform = torch.rand(batch, half, generator=generator, device=generator.device)
    lower = (torch.arange(half, device=generator.device) + uniform) / num_fractions
    return torch.cat([lower, 1.0 - lower], dim=1)


def fixed_fractions(num_fractions: int) -> Tensor:
    """Returns the midpoints [T] of the strata of `draw_fractions`, for acting; T must be even."""
    half = _half(num_fractions)
    lower = (torch.arange(half) + 0.5) / num_fractions
    return torch.cat([lower, 1.0 - lower])


def _half(num_fractions: int) -> int:
    if num_fractions < 2 or num_fractions % 2:
        raise ValueError(f"the number of quantile fractions must be even and positive, got {num_fractions}")
    return num_fractions // 2


def _head(num_inputs: int, num_outputs: int, sizes: IqnSizes) -> nn.Sequential:
    """Returns a head; its linear layers are always named 0 and 2."""
    hidden = sizes.dense_hidden // 2
    head = nn.Sequential()
    head.add_module("0", _layer(num_inputs, hidden, sizes.noisy_sigma))
    if sizes.layer_norm:
        head.add_module("norm_0", nn.LayerNorm(hidden))
    head.add_module("1", nn.LeakyReLU(LEAKY_SLOPE, inplace=True))
    head.add_module("2", _layer(hidden, num_outputs, sizes.noisy_sigma))
    initialise(_linear(head, 0), LEAKY_GAIN)
    initialise(_linear(head, -1), LAST_GAIN)
    return head


def _layer(num_inputs: int, num_outputs: int, noisy_sigma: float) -> nn.Linear:
    return NoisyLinear(num_inputs, num_outputs, noisy_sigma) if noisy_sigma else nn.Linear(num_inputs, num_outputs)


def _hidden(head: nn.Sequential, rows: Tensor) -> Tensor:
    """Applies a head without its output layer."""
    return head[:-1](rows)


def _linear(layers: nn.Sequential, index: int) -> nn.Linear:
    layer = layers[index]
    assert isinstance(layer, nn.Linear)
    return layer
