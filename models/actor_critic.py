"""The cloned policy (Level 1) and PPO's actor-critic, the same policy with a value head, as in the later peer.

Deviations from the peer: the float head has LeakyReLU, as in IQN, so that its weights have the same meaning everywhere;
initial weights are orthogonal, the policy output scaled by 0.01.
Dimensions: B batch, H x W pixels, F floats, E image features or flattened image tokens, W trunk width, A actions
or choices, D state, K dimensions of a decision, L stacked frames.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from models.encoders.config import EncoderConfig
from models.fusion_config import CONCAT, FusionConfig
from models.layers import LAST_GAIN, POLICY_GAIN, RELU_GAIN, initialise, initialise_all, output
from models.torso import ActingHead, InputShape, Torso


class PolicyAndValue(NamedTuple):
    """Outputs of a policy [B, P], logits or distribution parameters, and values [B], both float32."""

    outputs: Tensor
    value: Tensor


OutputsT = TypeVar("OutputsT", Tensor, PolicyAndValue)


class Policy(Torso, ABC, Generic[OutputsT]):
    """Base class of both: a trunk of two hidden layers after the fusion, and a policy head."""

    def __init__(
        self,
        inputs: InputShape,
        encoder: EncoderConfig,
        float_hidden: int,
        dense_hidden: int,
        num_actions: int,
        fusion: FusionConfig = CONCAT,
    ) -> None:
        super().__init__(inputs, encoder, float_hidden, fusion)
        self.trunk = nn.Sequential(
            nn.Linear(self.num_state, dense_hidden),
            nn.ReLU(inplace=True),
            nn.Linear(dense_hidden, dense_hidden),
            nn.ReLU(inplace=True),
        )
        initialise_all(self.trunk, RELU_GAIN)
        self.policy_head = nn.Linear(dense_hidden, num_actions)
        initialise(self.policy_head, POLICY_GAIN)
        self._add_heads(dense_hidden)

    def _add_heads(self, dense_hidden: int) -> None:
        """Adds further heads after a trunk of this width."""

    def forward(self, image: Tensor, floats: Tensor) -> OutputsT:
        """Maps raw images [B, L, H, W] uint8 and raw floats [B, F] to logits [B, A] float32, or these and a value."""
        return self.decide(self.encode(image), floats)

    def decide(self, encoded: Tensor, floats: Tensor) -> OutputsT:
        """Does the same from image features [B, E], for epochs with a frozen encoder."""
        return self.read_out(self.hidden(encoded, floats))

    def hidden(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps image features [B, E] and raw floats [B, F] to the trunk's output [B, W]."""
        return self.trunk(self.join(encoded, floats))

    @abstractmethod
    def read_out(self, hidden: Tensor) -> OutputsT:
        """Maps the trunk's output [B, W] to the outputs."""

    def acting_head(self) -> ActingHead:
        """Returns the trunk and the policy head."""
        hidden = tuple(layer for layer in self.trunk if isinstance(layer, nn.Linear))
        return ActingHead(hidden, 0.0, self.policy_head)


class ClonePolicy(Policy[Tensor]):
    """Observations to action logits."""

    @property
    def num_hidden(self) -> int:
        """W."""
        return self.policy_head.in_features

    def read_out(self, hidden: Tensor) -> Tensor:
        """Maps the trunk's output [B, W] to logits."""
        return output(self.policy_head, hidden)

    def output_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the policy head."""
        return (self.policy_head,)


class ActorCritic(Policy[PolicyAndValue]):
    """Observations to a policy and a value; can load all weights of a `ClonePolicy` by name."""

    def _add_heads(self, dense_hidden: int) -> None:
        self.value_head = nn.Linear(dense_hidden, 1)
        initialise(self.value_head, LAST_GAIN)

    def read_out(self, hidden: Tensor) -> PolicyAndValue:
        """Maps the trunk's output [B, W] to a policy and a value."""
        return PolicyAndValue(output(self.policy_head, hidden), output(self.value_head, hidden)[:, 0])

    def output_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the policy head and the value head."""
        return self.policy_head, self.value_head


AHEAD_HEADS = "ahead_heads."
"""Prefix of the tensor names of `CloningHeads.ahead`; the offset follows."""


class CloningHeads(nn.Module):
    """Auxiliary heads of Level 1, one per offset: each predicts the action that many decisions later.

    They make the trunk learn more than the current action. They never drive, and are not transferred.
    """

    def __init__(self, num_hidden: int, num_actions: int, offsets: Sequence[int]) -> None:
        """Builds the heads.

        Args:
            num_hidden: W.
            num_actions: A.
            offsets: in decisions, without 0 (the policy itself).
        """
        super().__init__()
        self.ahead_heads = nn.ModuleDict({str(offset): nn.Linear(num_hidden, num_actions) for offset in offsets})
        for head in self._heads().values():
            initialise(head, POLICY_GAIN)

    def ahead(self, hidden: Tensor) -> dict[int, Tensor]:
        """Maps the trunk's output [B, W] to logits [B, A] float32 for each offset."""
        return {offset: output(head, hidden) for offset, head in self._heads().items()}

    def _heads(self) -> dict[int, nn.Linear]:
        return {int(name): head for name, head in self.ahead_heads.items() if isinstance(head, nn.Linear)}


NUM_CRITICS = 2


class _Critic(nn.Module):
    def __init__(self, num_inputs: int, dense_hidden: int, num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(num_inputs, dense_hidden),
            nn.LayerNorm(dense_hidden),
            nn.ReLU(inplace=True),
            nn.Linear(dense_hidden, dense_hidden),
            nn.LayerNorm(dense_hidden),
            nn.ReLU(inplace=True),
        )
        initialise_all(self.body, RELU_GAIN)
        self.head = nn.Linear(dense_hidden, num_outputs)
        initialise(self.head, LAST_GAIN)

    def forward(self, inputs: Tensor) -> Tensor:
        return output(self.head, self.body(inputs))


class Critics(nn.Module):
    """Two critics with different initial weights: values of all choices in a state, or of one continuous decision.

    A layer norm after each hidden layer bounds the extrapolation to untried decisions, Ball et al. 2023,
    arXiv:2302.02948.
    """

    def __init__(self, num_state: int, dense_hidden: int, *, num_numbers: int, num_choices: int) -> None:
        """Builds both with weights from torch's global generator.

        Args:
            num_state: D.
            dense_hidden: width of both hidden layers.
            num_numbers: K, dimensions of the decision to evaluate; 0 evaluates all choices.
            num_choices: A; 1 if one decision is evaluated.
        """
        super().__init__()
        critics = (_Critic(num_state + num_numbers, dense_hidden, num_choices) for _ in range(NUM_CRITICS))
        self.each = nn.ModuleList(critics)

    def forward(self, state: Tensor, decision: Tensor | None = None) -> Tensor:
        """Maps states [B, D], and decisions [B, K] in [-1, 1] if continuous, to values [2, B, A] float32."""
        inputs = state if decision is None else torch.cat([state, decision.to(state.dtype)], dim=1)
        return torch.stack([critic(inputs) for critic in self.each])
