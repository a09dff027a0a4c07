"""Projection head of SimCLR, Chen et al. 2020, arXiv:2002.05709."""

from __future__ import annotations

from torch import Tensor, nn

_HIDDEN = 256


class Projector(nn.Module):
    """Encoder features [B, E] to [B, P], where views are compared; 164,224 parameters for E = 512, P = 128."""

    def __init__(self, num_inputs: int, num_outputs: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, _HIDDEN), nn.ReLU(inplace=True), nn.Linear(_HIDDEN, num_outputs)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Maps encoder features [B, E] to [B, P], not normalised."""
        return self.layers(features)
