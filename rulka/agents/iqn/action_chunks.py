"""Values of action chunks, which one decision takes, out of the outputs of a network for single actions.

A decision of K actions has Q(s, a_1 .. a_K) = V(s) + sum over i of A_i(s, a_i), each A_i with a mean of 0 over its
actions: so the best chunk is the best action of each place. The advantage head has K A outputs, those of the first
place first. The network takes their common mean out; what each place still has of its own is taken out here.
Dimensions: B batch, T quantile fractions, K actions of a decision, A actions.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ChunkValues(NamedTuple):
    """Parts of the values of chunks: `state` [B, T], and `advantage` [B, T, K, A] of every action of every place."""

    state: Tensor
    advantage: Tensor

    def of(self, action: Tensor) -> Tensor:
        """Returns the values [B, T] of one chunk [B, K] for each row."""
        index = action[:, None, :, None].expand(*self.advantage.shape[:3], 1)
        return self.state + self.advantage.gather(3, index)[..., 0].sum(dim=2)

    def best(self) -> Tensor:
        """Returns the values [B, T] of each quantile's own best chunk."""
        return self.state + self.advantage.amax(dim=3).sum(dim=2)


def chunk_values(value: Tensor, num_places: int) -> ChunkValues:
    """Splits outputs [B, T, K A] of a dueling network for K = `num_places`."""
    state = value.mean(dim=2)
    places = value.unflatten(2, (num_places, -1))
    return ChunkValues(state, places - places.mean(dim=3, keepdim=True))


def by_place(advantage: Tensor, chunk_shape: tuple[int, ...]) -> Tensor:
    """Returns advantages [B, K A] as [B, K, A], of which the last dimension is compared; [B, A] where K is 1."""
    return advantage.unflatten(1, (*chunk_shape, -1)) if chunk_shape else advantage
