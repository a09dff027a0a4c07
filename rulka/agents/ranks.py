"""Several learners that learn as one: what they add up over all of them, so that each makes the same step.

A *rank* is one of them, with experience of its own. A gradient step of them all equals that of one learner whose batch
is the union of theirs, if everything that a loss takes over its batch is taken over the union: the gradient itself
(a sum for losses that sum over the batch, a mean weighed by rows for those that average) and every mean, deviation and
largest value that goes into a loss. One learner is `ALONE`, for which all of that is what it has anyway, bit for bit.
Dimensions: M rows of this rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Ranks:
    """All learners that learn as one; as it is, the only one there is.

    Every method is called by all of them, in the same order, and waits for all.

    Attributes:
        rank: which of them this one is, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def total(self, numbers: Tensor) -> Tensor:
        """Returns the sum over all ranks of tensors of the same shape and type, the same bits on each."""
        return numbers

    def largest(self, number: float) -> float:
        """Returns the largest of the numbers of all ranks."""
        return number


ALONE = Ranks()


def sum_gradients(network: nn.Module, ranks: Ranks) -> None:
    """Gives every rank the sum of their gradients, for losses that are sums over the batch."""
    if ranks.size > 1:
        _share_out(_gradients(network), ranks, None)


def average_gradients(network: nn.Module, num_rows: int, ranks: Ranks) -> None:
    """Gives every rank the mean of their gradients, for losses that are means over `num_rows` rows of each."""
    if ranks.size > 1:
        _share_out(_gradients(network), ranks, num_rows)


def mean_of(values: Tensor, ranks: Ranks) -> Tensor:
    """Returns the mean [] of the values [M] of all ranks."""
    if ranks.size == 1:
        return values.mean()
    total = ranks.total(torch.stack([values.double().sum(), _count(values)]))
    return (total[0] / total[1]).to(values.dtype)


def spread(values: Tensor) -> Tensor:
    """Returns the standard deviation [] of values [M]; a single one, where all else was resets, has none."""
    return values.std() if len(values) > 1 else values.new_zeros(())


def standardised(values: Tensor, ranks: Ranks) -> Tensor:
    """Returns values [M] less the mean of all ranks' values, over their standard deviation."""
    if ranks.size == 1:
        return (values - values.mean()) / (spread(values) + 1e-8)
    count = ranks.total(_count(values))
    centred = values - mean_of(values, ranks)
    deviation = (ranks.total(centred.double().square().sum()) / (count - 1.0).clamp(min=1.0)).sqrt().to(values.dtype)
    return centred / (deviation + 1e-8)


def fewest(count: int, ranks: Ranks) -> int:
    """Returns the smallest count of all ranks."""
    return int(-ranks.largest(-float(count)))


def seed_of_rank(seed: int, rank: int) -> int:
    """Returns the seed of the order in which a rank learns: the run's own for the first, others for the rest."""
    return seed if rank == 0 else (seed + 0x9E3779B97F4A7C15 * rank) % (1 << 63)


def _gradients(network: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


def _share_out(gradients: Iterable[Tensor], ranks: Ranks, num_rows: int | None) -> None:
    """Replaces gradients by their sum over ranks, or by their mean weighed by rows: one exchange for all of them."""
    gradients = list(gradients)
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if num_rows is not None:  # the rows travel along, to be added up as well
        flat = torch.cat([flat * num_rows, flat.new_tensor([num_rows])])
    flat = ranks.total(flat)
    if num_rows is not None:
        flat = flat[:-1] / flat[-1]
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _count(values: Tensor) -> Tensor:
    return torch.tensor(float(len(values)), dtype=torch.float64, device=values.device)
