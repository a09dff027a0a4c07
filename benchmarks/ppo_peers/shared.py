"""What all sides of `benchmarks.ppo_peers` share: the rollouts, and the layers.

Imports nothing that the peers' environments lack. Dimensions: B batch, F floats, W trunk width.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from models.actor_critic import ActorCritic
from rulka.agents.networks import input_shape
from rulka.observation import reference_normalisation
from rulka.params import reference_params

CARS, ROLLOUT, BATCH, EPOCHS = 64, 64, 512, 3
NUM_ACTIONS = 12
STEPS_PER_UPDATE = CARS * ROLLOUT
LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, VALUE_WEIGHT, MAX_GRAD_NORM = 3e-4, 0.985, 0.98, 0.2, 0.5, 0.5


class Layers(nn.Module):
    """Rulka's encoder, float head and trunk, of the sizes in params.yaml, in float32; without heads.

    Attributes:
        num_features: W.
    """

    def __init__(self) -> None:
        super().__init__()
        params = reference_params()
        inputs = input_shape(params.observation, reference_normalisation())
        sizes = params.network
        self.network = ActorCritic(inputs, params.encoder, sizes.float_hidden, sizes.dense_hidden, NUM_ACTIONS)
        del self.network.policy_head, self.network.value_head  # the peers bring their own
        self.num_features = sizes.dense_hidden

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Maps `image` [B, 1, H, W] and `floats` [B, F] to [B, W]."""
        # In the order of memory that images have: to put channels last is Rulka's own way to be faster.
        image = (observation["image"].float() - 128.0) / 128.0
        return self.network.hidden(self.network.encoder(image), observation["floats"])
