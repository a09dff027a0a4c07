"""Munchausen targets by hand and against a loop."""

from __future__ import annotations

import math

import pytest
import torch

from rulka.agents.iqn import munchausen_bonus, soft_value


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


def test_bonus_sees_advantages_alone():
    value = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    action = torch.tensor([0, 1, 2, 3, 0])
    shifted = value + torch.arange(5.0)[:, None]
    torch.testing.assert_close(
        munchausen_bonus(value, action, 0.9, 0.1, -1.0), munchausen_bonus(shifted, action, 0.9, 0.1, -1.0)
    )


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


def test_soft_value_of_a_tiny_temperature_is_that_of_the_best_action():
    """Probabilities underflow to 0 there; no logarithm of 0 may reach the result."""
    quantile = torch.tensor([[[1.0, 5.0], [3.0, 9.0]]])
    assert soft_value(quantile, 1e-4).tolist() == [[5.0, 9.0]]
