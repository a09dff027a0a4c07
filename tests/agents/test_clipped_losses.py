"""PPO's losses."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from rulka.agents.advantages import explained_variance
from rulka.agents.policy_gradient import clipped_policy_loss
from rulka.agents.ppo import clipped_value_loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # better and already too far: clipped to 1.2
        (0.5, 2.0, -1.0),  # worse: not clipped
        (1.5, -2.0, 3.0),  # worse: not clipped
        (0.5, -2.0, 1.6),  # better and already too far: clipped to 0.8
    ],
)
def test_surrogate_by_hand(ratio: float, advantage: float, expected: float):
    old = torch.tensor([-1.0])
    loss = clipped_policy_loss(old + math.log(ratio), old, torch.tensor([advantage]), clip=0.2)
    torch.testing.assert_close(loss.loss, torch.tensor(expected))
    assert float(loss.clip_fraction) == (0.0 if ratio == 1.0 else 1.0)
    assert float(loss.approx_kl) == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, 0.5 * 0.81),  # within the clip: plain error (1 - 0.1)^2
        (0.5, 0.5 * 0.64),  # towards the return but too far: held at 0.2, the larger error counts
        (-0.5, 0.5 * 2.25),  # away: the plain error is the larger one
    ],
)
def test_value_loss_by_hand(value: float, expected: float):
    loss = clipped_value_loss(torch.tensor([value]), torch.zeros(1), torch.ones(1), clip=0.2)
    torch.testing.assert_close(loss.loss, torch.tensor(expected))
    assert float(loss.clip_fraction) == float(abs(value) > 0.2)


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.full((3,), 2.0), returns) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones(3)) == 0.0
    with warnings.catch_warnings(action="error"):
        assert explained_variance(torch.ones(1), torch.zeros(1)) == 0.0
        assert math.isnan(explained_variance(torch.zeros(0), torch.zeros(0)))


def test_a_value_that_is_not_clipped_has_the_plain_error():
    loss = clipped_value_loss(torch.tensor([0.5]), torch.zeros(1), torch.ones(1), None)
    assert (float(loss.loss), float(loss.clip_fraction)) == (0.125, 0.0)
