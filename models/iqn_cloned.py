"""IQN's network as a cloned policy: its mean values as logits, so that an agent can take over all of it.

A softmax does not know what all actions have in common, so that the value head, which adds just that, learns nothing:
it stays as it began.
Dimensions: B batch, E image features, F floats, A actions, W hidden units of the advantage head.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from models.encoders.config import EncoderConfig
from models.iqn import IqnNetwork, IqnSizes, fixed_fractions
from models.layers import output
from models.torso import InputShape

NUM_FRACTIONS = 32
"""Of returns, over which is meaned; as IQN acts (`iqn.num_quantiles_acting`), so that it acts as the clone does."""


class ClonedIqn(IqnNetwork):
    """Observations to action logits, in tensors of the names and shapes of an `IqnNetwork`.

    Attributes:
        tau: the fractions.
        dropout: share of the hidden units that are left out while learning, and never else.
    """

    tau: Tensor

    def __init__(self, inputs: InputShape, encoder: EncoderConfig, sizes: IqnSizes, num_actions: int) -> None:
        super().__init__(inputs, encoder, sizes, num_actions)
        self.register_buffer("tau", fixed_fractions(NUM_FRACTIONS), persistent=False)
        self.dropout = 0.0

    @property
    def num_hidden(self) -> int:
        """W."""
        return self.output_layers()[0].in_features

    def decide(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps image features [B, E] and raw floats [B, F] to logits [B, A] float32."""
        return self.read_out(self.hidden(encoded, floats))

    def hidden(self, encoded: Tensor, floats: Tensor) -> Tensor:
        """Maps image features [B, E] and raw floats [B, F] to the units [B, W], meaned over fractions."""
        hidden = self.advantage_units(encoded, floats, self.tau)
        return functional.dropout(hidden, self.dropout) if self.training and self.dropout else hidden

    def read_out(self, hidden: Tensor) -> Tensor:
        """Maps these to logits."""
        return output(self.output_layers()[0], hidden)
