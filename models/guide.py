"""The cloned policy inside an agent: it limits which actions the agent may take.

An action is left where the policy gives it at least a share (`floor`) of the probability of its likeliest action,
Fujimoto et al. 2019 (discrete BCQ), arXiv:1910.01708: 1 leaves the likeliest one alone, so that the agent drives as the
clone, and 0 leaves all. Values of actions that nobody has tried yet can so neither be driven by nor be learned from.
Of decisions with several places each place is limited by itself.
Dimensions: B batch, H x W pixels, F floats, K places of a decision, A actions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.actor_critic import ClonePolicy


class Guide(nn.Module):
    """A frozen policy, and how much of what it finds likely is left to the agent.

    Attributes:
        policy: never learns.
        num_places: K.
        floor: share of the likeliest action's probability, 0 to 1; a part of the weights, so that whoever takes these
            over acts within the same limits.
    """

    floor: Tensor

    def __init__(self, policy: ClonePolicy, num_places: int = 1) -> None:
        super().__init__()
        self.num_places = num_places
        self.policy = policy.requires_grad_(False)
        self.register_buffer("floor", torch.zeros(()))

    def log_probs(self, image: Tensor, floats: Tensor) -> Tensor:
        """Maps raw images [B, L, H, W] uint8 and raw floats [B, F] to log-probabilities [B, K A] float32."""
        return self._by_place(self.policy(image, floats)).log_softmax(dim=2).flatten(1)

    def limit(self, preference: Tensor, log_probs: Tensor) -> Tensor:
        """Returns preferences [B, K A] with minus infinity for the actions that are not left."""
        likely = self._by_place(log_probs)
        is_left = likely >= likely.amax(dim=2, keepdim=True) + self.floor.log()
        return preference.masked_fill(~is_left.flatten(1), -torch.inf)

    def _by_place(self, values: Tensor) -> Tensor:
        return values.unflatten(1, (self.num_places, -1))
