"""A value linear in features, fitted to its own lambda-returns: the value head's first weights.

Sources: Bradtke & Barto 1996 (LSTD); Boyan 1999 (LSTD(lambda)). Deviation from the latter: ridge regularisation, as a
network has more features than a few races can determine.
Dimensions: T decisions, N cars, W features, C columns (W features and a 1), M decisions without resets.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rulka.agents.shared.advantages import Endings, estimate_advantages

CARS_AT_ONCE = 32
"""Bounds memory to some five times the float64 features of this many cars."""


def solve_linear_value(
    feature: Tensor,
    reward: Tensor,
    endings: Endings,
    discount: float,
    gae_lambda: float,
    ridge: float,
    total: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Solves for the linear value that best fits, in least squares, its own lambda-returns (LSTD(lambda)).

    A value fitted to returns that bootstrap from an untrained one keeps a share of its error, however good the fit is.
    Here the returns bootstrap from the solution itself.

    Args:
        feature: [T + 1, N, W] of the observation before each decision, and of the last one.
        reward: [T, N] for each decision.
        endings: how each decision ended; at least one is not a reset.
        discount: gamma in [0, 1].
        gae_lambda: lambda in [0, 1].
        ridge: regularisation of the weights, as a share of the mean feature variance; not negative.
        total: sums tensors over all ranks, each with its own decisions; None for a single rank.

    Returns:
        Weight [W] and bias [] of the value, float64.
    """
    seen = feature[:-1][~endings.is_reset]
    mean = seen.mean(dim=0, dtype=torch.float64)
    if total is not None:
        sums = total(torch.cat([mean * len(seen), mean.new_tensor([len(seen)])]))
        mean = sums[:-1] / sums[-1]
    width = len(mean)
    matrix, paid = torch.zeros(width + 1, width + 1, dtype=torch.float64), torch.zeros(width + 1, dtype=torch.float64)
    squares = torch.zeros(width + 1, dtype=torch.float64)
    for cars in torch.arange(reward.shape[1]).split(CARS_AT_ONCE):
        flags = Endings(*(flag[:, cars] for flag in endings))
        centred = feature[:, cars].double() - mean
        # The column of ones is the bias: with the other columns centred, the ridge does not distort it.
        column = torch.cat([centred, torch.ones_like(centred[..., :1])], dim=2)
        here = column[:-1][~flags.is_reset]
        matrix += here.T @ (here - _returns_of(column, flags, discount, gae_lambda))
        nothing = torch.zeros(column.shape[:2], dtype=torch.float64)
        returns = estimate_advantages(reward[:, cars].double(), nothing, flags, discount, gae_lambda).returns
        paid += here.T @ returns[~flags.is_reset]
        squares += here.square().sum(dim=0)
    if total is not None:
        matrix, paid, squares = total(torch.cat([matrix, paid[None], squares[None]])).split([width + 1, 1, 1])
        paid, squares = paid[0], squares[0]
    matrix.diagonal()[:-1] += ridge * squares[:-1].mean()
    # Without a ridge, a feature that is always 0 makes the matrix singular: gelsd returns the minimum-norm solution.
    solution = torch.linalg.lstsq(matrix, paid[:, None], driver="gelsd").solution[:, 0]
    return solution[:-1], solution[-1] - solution[:-1] @ mean


def _returns_of(column: Tensor, endings: Endings, discount: float, gae_lambda: float) -> Tensor:
    """Returns lambda-returns [M, C], with each column [T + 1, N, C] as the value and without rewards.

    Returns are affine in the value, so these and those of the rewards alone give the returns of any linear value.
    """
    num_rows, num_cars, num_columns = column.shape
    each = Endings(*(flag.repeat_interleave(num_columns, dim=1) for flag in endings))
    unpaid = torch.zeros(num_rows - 1, num_cars * num_columns, dtype=column.dtype)
    returns = estimate_advantages(unpaid, column.flatten(1), each, discount, gae_lambda).returns
    return returns.unflatten(1, (num_cars, num_columns))[~endings.is_reset]
