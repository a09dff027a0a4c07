"""What Level 1 has behind the trunk beside the policy, and transfer throws away: what is done later, analog controls.

They have the trunk learn more than the action of now, and never drive.
Dimensions: B batch, W trunk width, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from models.layers import POLICY_GAIN, initialise, output

AHEAD_HEADS = "ahead_heads."
"""How the names of the tensors of `CloningHeads.ahead` begin; the offset follows."""
CONTROLS_HEAD = "controls_head."
"""And those of `CloningHeads.controls`."""
NUM_CONTROLS = 3


class CloningHeads(nn.Module):
    """A head for each offset after now, the action that many decisions later, and one for steering, gas and brake."""

    def __init__(
        self, num_hidden: int, num_actions: int, offsets: Sequence[int] = (), *, is_analog: bool = False
    ) -> None:
        """Builds the heads.

        Args:
            num_hidden: W.
            num_actions: A.
            offsets: in decisions, 0 (the policy itself) left out.
            is_analog: whether there is one for controls.
        """
        super().__init__()
        self.ahead_heads = nn.ModuleDict({str(offset): nn.Linear(num_hidden, num_actions) for offset in offsets})
        for head in self._heads().values():
            initialise(head, POLICY_GAIN)
        self.controls_head = nn.Linear(num_hidden, NUM_CONTROLS) if is_analog else None
        if self.controls_head is not None:
            initialise(self.controls_head, POLICY_GAIN)

    def ahead(self, hidden: Tensor) -> dict[int, Tensor]:
        """Maps the trunk's output [B, W] to logits [B, A] float32 for each offset."""
        return {offset: output(head, hidden) for offset, head in self._heads().items()}

    def controls(self, hidden: Tensor) -> Tensor | None:
        """Maps the trunk's output [B, W] to steering, gas and brake [B, 3] float32; None without such a head."""
        return None if self.controls_head is None else output(self.controls_head, hidden)

    def _heads(self) -> dict[int, nn.Linear]:
        return {int(name): head for name, head in self.ahead_heads.items() if isinstance(head, nn.Linear)}
