"""The cloned policy (Level 1): encoder and float head, a hidden trunk, one logit for each action.

Dimensions: B batch, H x W pixels, F floats, E image features, A actions.
"""

from __future__ import annotations

from torch import Tensor, nn

from models.initialisation import POLICY_GAIN, RELU_GAIN, initialise, initialise_all
from models.observer import InputShape, Observer, output


class ClonePolicy(Observer):
    """Observations to action logits; names and shapes are those of `ActorCritic`, less the value head."""

    def __init__(self, inputs: InputShape, float_hidden: int, dense_hidden: int, num_actions: int) -> None:
        super().__init__(inputs, float_hidden)
        self.trunk = build_trunk(self.num_state, dense_hidden)
        self.policy_head = nn.Linear(dense_hidden, num_actions)
        initialise(self.policy_head, POLICY_GAIN)

    def forward(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [B, 1, H, W] uint8 and raw floats [B, F] to logits [B, A] float32."""
        return self.decide(self.encode(image), floats)

    def decide(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """The same from image features [B, E]."""
        return output(self.policy_head, self.trunk(self.join(encoded, floats)))

    def output_layers(self) -> tuple[nn.Linear, ...]:
        """Returns the policy head."""
        return (self.policy_head,)


def build_trunk(num_inputs: int, dense_hidden: int) -> nn.Sequential:
    """Returns the two hidden layers of variant A."""
    trunk = nn.Sequential(
        nn.Linear(num_inputs, dense_hidden),
        nn.ReLU(inplace=True),
        nn.Linear(dense_hidden, dense_hidden),
        nn.ReLU(inplace=True),
    )
    initialise_all(trunk, RELU_GAIN)
    return trunk
