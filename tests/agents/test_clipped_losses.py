"""PPO's losses."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.distributions import Categorical

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


def test_gradient_at_ratio_one_is_the_policy_gradient():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 4, generator=generator, requires_grad=True)
    action = torch.randint(4, (8,), generator=generator)
    advantage = torch.randn(8, generator=generator)
    log_prob = Categorical(logits=logits).log_prob(action)
    (ours,) = torch.autograd.grad(
        clipped_policy_loss(log_prob, log_prob.detach(), advantage, 0.2).loss, logits, retain_graph=True
    )
    (plain,) = torch.autograd.grad(-(log_prob * advantage).mean(), logits)
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.3, 1.0), (0.7, -1.0)])
def test_no_gradient_beyond_the_clip(ratio: float, advantage: float):
    log_prob = torch.tensor([math.log(ratio)], requires_grad=True)
    clipped_policy_loss(log_prob, torch.zeros(1), torch.tensor([advantage]), 0.2).loss.backward()
    assert log_prob.grad is not None
    assert float(log_prob.grad) == 0.0


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


def test_clipped_value_loss_is_never_below_the_plain_one():
    generator = torch.Generator().manual_seed(0)
    value, old, returns = (torch.randn(50, generator=generator) for _ in range(3))
    plain = 0.5 * (value - returns).square().mean()
    assert float(clipped_value_loss(value, old, returns, 0.2).loss) >= float(plain)


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.full((3,), 2.0), returns) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones(3)) == 0.0
    with warnings.catch_warnings(action="error"):
        assert explained_variance(torch.ones(1), torch.zeros(1)) == 0.0
        assert math.isnan(explained_variance(torch.zeros(0), torch.zeros(0)))


def test_weighted_surrogate_by_hand():
    """Ratios 1.5 and 1, weights 2 and 0.5: -(2 * min(1.5, 1.2) * 1 + 0.5 * 1 * 3) / 2 = -1.95."""
    old = torch.tensor([-1.0, -2.0])
    now, weight = old + torch.tensor([1.5, 1.0]).log(), torch.tensor([2.0, 0.5])
    loss = clipped_policy_loss(now, old, torch.tensor([1.0, 3.0]), 0.2, weight)
    torch.testing.assert_close(loss.loss, torch.tensor(-1.95))
    assert float(loss.clip_fraction) == 0.5


def test_a_value_that_is_not_clipped_has_the_plain_error():
    loss = clipped_value_loss(torch.tensor([0.5]), torch.zeros(1), torch.ones(1), None)
    assert (float(loss.loss), float(loss.clip_fraction)) == (0.125, 0.0)
