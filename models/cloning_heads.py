"""Heads of Level 1 beside the policy: actions of later decisions.

They have the trunk learn more than the action of now, never drive, and are not transferred.
Dimensions: B batch, W trunk width, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from models.layers import POLICY_GAIN, initialise, output

AHEAD_HEADS = "ahead_heads."
"""How the names of the tensors of `CloningHeads.ahead` begin; the offset follows."""


class CloningHeads(nn.Module):
    """A head for each offset after now: the action that many decisions later."""

    def __init__(self, num_hidden: int, num_actions: int, offsets: Sequence[int]) -> None:
        """Builds the heads.

        Args:
            num_hidden: W.
            num_actions: A.
            offsets: in decisions, 0 (the policy itself) left out.
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
