"""Two critics beside each other: what decisions are worth in a state, by networks that begin differently.

Behind each linear layer lies a layer norm, which bounds what a critic makes of decisions that nobody has tried, Ball et
al. 2023, arXiv:2302.02948. Dimensions: B batch, D numbers of the state, K numbers of a decision, A choices, Z numbers
for what each is worth.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers import LAST_GAIN, RELU_GAIN, initialise, initialise_all, output

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
    """Rates all choices in a state, or one decision of numbers."""

    def __init__(
        self, num_state: int, dense_hidden: int, *, num_numbers: int, num_choices: int, num_atoms: int
    ) -> None:
        """Builds both with weights from torch's global generator.

        Args:
            num_state: D.
            dense_hidden: width of both hidden layers.
            num_numbers: K, of the decision that is rated; 0 rates all choices.
            num_choices: A; 1 where one decision is rated.
            num_atoms: Z.
        """
        super().__init__()
        self._shape = num_choices, num_atoms
        critics = (_Critic(num_state + num_numbers, dense_hidden, num_choices * num_atoms) for _ in range(NUM_CRITICS))
        self.each = nn.ModuleList(critics)

    def forward(self, state: Tensor, decision: Tensor | None = None) -> Tensor:
        """Maps states [B, D], and decisions [B, K] in [-1, 1] where these are rated, to [2, B, A, Z] float32."""
        inputs = state if decision is None else torch.cat([state, decision.to(state.dtype)], dim=1)
        return torch.stack([critic(inputs).unflatten(1, self._shape) for critic in self.each])
