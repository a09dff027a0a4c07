"""IQN's losses by hand and against loops: quantile regression, weights by self-loss, Munchausen targets, margins."""

from __future__ import annotations

import math

import pytest
import torch

from rulka.agents.iqn import (
    SelfLoss,
    margin_loss,
    munchausen_bonus,
    quantile_huber_loss,
    self_loss_weights,
    soft_value,
)


def slow_loss(quantile, tau, target, kappa) -> list[float]:
    """The formula, one number at a time."""
    losses = []
    for row in range(len(quantile)):
        total = 0.0
        for j in range(quantile.shape[1]):
            for i in range(target.shape[1]):
                error = float(target[row, i]) - float(quantile[row, j])
                rho = error**2 / (2 * kappa) if abs(error) < kappa else abs(error) - kappa / 2
                weight = float(tau[row, j]) if error >= 0 else 1 - float(tau[row, j])
                total += weight * rho / target.shape[1]
        losses.append(total)
    return losses


@pytest.mark.parametrize("kappa", [0.005, 1.0])
def test_equals_the_slow_twin(kappa: float):
    generator = torch.Generator().manual_seed(0)
    quantile = torch.randn(5, 8, generator=generator)
    target = torch.randn(5, 6, generator=generator)
    tau = torch.rand(5, 8, generator=generator)
    expected = torch.tensor(slow_loss(quantile, tau, target, kappa))
    torch.testing.assert_close(quantile_huber_loss(quantile, tau, target, kappa), expected, rtol=1e-5, atol=1e-6)


def test_no_gradient_flows_into_the_target():
    quantile = torch.zeros(1, 2, requires_grad=True)
    target = torch.ones(1, 2, requires_grad=True)
    quantile_huber_loss(quantile, torch.full((1, 2), 0.5), target, 1.0).sum().backward()
    assert target.grad is None
    assert quantile.grad is not None
    assert bool((quantile.grad < 0).all())


def test_self_loss_by_hand():
    """Widths 0.4 and 0.01; typical 0.99 * 0.2 + 0.01 * 0.205 = 0.20005; floor 0.0500125; so divisors 0.4, 0.0500125;
    typical divisor 0.99 * 0.2 + 0.01 * 0.22500625 = 0.2002500625.
    """
    weights, after = self_loss_weights(torch.tensor([0.16, 0.0001]), SelfLoss(0.2, 0.2), clamp_ratio=4.0)
    torch.testing.assert_close(weights, torch.tensor([0.2002500625 / 0.4, 0.2002500625 / 0.0500125]))
    assert after == pytest.approx((0.20005, 0.2002500625))


def test_bonus_by_hand():
    """Q = (0, ln 3) at temperature 1: pi = (1/4, 3/4). ln 1/4 = -1.3863 is cut at -1, ln 3/4 = -0.2877 is not."""
    value = torch.tensor([[0.0, math.log(3.0)]]).expand(2, -1)
    bonus = munchausen_bonus(value, torch.tensor([0, 1]), alpha=0.9, temperature=1.0, floor=-1.0)
    assert bonus.tolist() == pytest.approx([-0.9, 0.9 * math.log(0.75)])
    uncut = munchausen_bonus(value, torch.tensor([0, 1]), alpha=0.9, temperature=1.0, floor=-10.0)
    assert uncut.tolist() == pytest.approx([0.9 * math.log(0.25), 0.9 * math.log(0.75)])


def test_the_floor_bounds_the_scaled_logarithm():
    """Temperature 0.03: 0.03 log pi = Q(a) - max Q here, -0.5 and -2; the second is cut at -1."""
    value = torch.tensor([[0.0, -0.5, -2.0]]).expand(3, -1)
    bonus = munchausen_bonus(value, torch.arange(3), alpha=0.9, temperature=0.03, floor=-1.0)
    assert bonus.tolist() == pytest.approx([0.0, -0.45, -0.9], abs=1e-6)


@pytest.mark.parametrize("temperature", [0.03, 1.0])
def test_soft_value_against_a_loop(temperature: float):
    quantile = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = soft_value(quantile, temperature)
    for b in range(3):
        mean = [sum(float(quantile[b, s, a]) for s in range(4)) / 4 for a in range(5)]
        weights = [math.exp((m - max(mean)) / temperature) for m in mean]
        policy = [weight / sum(weights) for weight in weights]
        entropy = -sum(p * math.log(p) for p in policy if p > 0)
        for s in range(4):
            expected = sum(policy[a] * float(quantile[b, s, a]) for a in range(5)) + temperature * entropy
            assert float(value[b, s]) == pytest.approx(expected)


def test_by_hand() -> None:
    """Rows: another action is better; the demonstrated one leads by less than the margin; by more; by exactly it."""
    value = torch.tensor([[1.0, 3.0, 0.0], [1.0, 0.8, 0.0], [1.0, 0.2, 0.0], [0.0, 1.0, 0.5]])
    loss = margin_loss(value, torch.tensor([0, 0, 0, 1]), 0.5)
    torch.testing.assert_close(loss, torch.tensor([2.5, 0.3, 0.0, 0.0]))
    shifted = margin_loss(value + torch.tensor([[7.0], [-2.0], [0.5], [1.0]]), torch.tensor([0, 0, 0, 1]), 0.5)
    torch.testing.assert_close(shifted, loss)
