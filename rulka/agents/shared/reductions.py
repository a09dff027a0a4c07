"""Data-parallel learners: reductions over all of them, so that each makes the same step.

A *rank* is one learner with its own experience. A joint gradient step equals that of one learner on the union of the
batches if every statistic of the batch is reduced over all ranks: the gradient itself (a sum for losses that sum over
the batch, a row-weighted mean for those that average) and every mean, standard deviation and maximum in a loss.
A single learner is `ALONE`, whose reductions are the identity, bit for bit.
Dimensions: M rows of this rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ranks:
    """The group of data-parallel learners; this base class is a group of one.

    Every method is collective: all ranks call it in the same order, and it waits for all.

    Attributes:
        rank: index of this learner, from 0.
        size: number of learners.
    """

    rank: int = 0
    size: int = 1

    def total(self, numbers: Tensor) -> Tensor:
        """Returns the sum over all ranks of tensors of the same shape and dtype, bit-identical on each."""
        return numbers

    def largest(self, number: float) -> float:
        """Returns the maximum over all ranks."""
        return number


ALONE = Ranks()


def reduce_gradients(network: nn.Module, ranks: Ranks, num_rows: int | None = None) -> None:
    """All-reduces gradients, in a single exchange.

    Args:
        network: its gradients are replaced.
        ranks: all of them.
        num_rows: of this rank, for losses that are means over them: gradients become their row-weighted mean. None
            sums them, for losses that are sums over the batch.
    """
    if ranks.size == 1:
        return
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if num_rows is not None:  # the row count is summed along
        flat = torch.cat([flat * num_rows, flat.new_tensor([num_rows])])
    flat = ranks.total(flat)
    if num_rows is not None:
        flat = flat[:-1] / flat[-1]
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def mean_of(values: Tensor, ranks: Ranks) -> Tensor:
    """Returns the mean [] of the values [M] of all ranks."""
    if ranks.size == 1:
        return values.mean()
    total = ranks.total(torch.stack([values.double().sum(), _count(values)]))
    return (total[0] / total[1]).to(values.dtype)


def spread(values: Tensor) -> Tensor:
    """Returns the standard deviation [] of values [M]; 0 for a single value, if all others were resets."""
    return values.std() if len(values) > 1 else values.new_zeros(())


def standardised(values: Tensor, ranks: Ranks) -> Tensor:
    """Standardises values [M] by the mean and standard deviation over all ranks."""
    if ranks.size == 1:
        return (values - values.mean()) / (spread(values) + 1e-8)
    count = ranks.total(_count(values))
    centred = values - mean_of(values, ranks)
    deviation = (ranks.total(centred.double().square().sum()) / (count - 1.0).clamp(min=1.0)).sqrt().to(values.dtype)
    return centred / (deviation + 1e-8)


def fewest(count: int, ranks: Ranks) -> int:
    """Returns the smallest count over all ranks."""
    return int(-ranks.largest(-float(count)))


def seed_of_rank(seed: int, rank: int) -> int:
    """Returns the sampling seed of a rank: the run's own for rank 0, another for each of the rest."""
    return seed if rank == 0 else (seed + 0x9E3779B97F4A7C15 * rank) % (1 << 63)


def _count(values: Tensor) -> Tensor:
    return torch.tensor(float(len(values)), dtype=torch.float64, device=values.device)
