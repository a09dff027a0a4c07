"""Losses and distributions by hand; `test_twins.py` writes out whole updates, densities and entropies included."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from rulka.agents.iqn.extras import margin_loss, munchausen_bonus
from rulka.agents.iqn.learner import TypicalWidth, quantile_huber_loss, self_loss_weights
from rulka.agents.ppo.learner import clipped_value_loss
from rulka.agents.preferences.learner import group_advantages, preference_loss
from rulka.agents.shared.advantages import explained_variance
from rulka.agents.shared.distributions import Categoricals, SquashedGaussian
from rulka.agents.shared.policy_gradient import clipped_policy_loss
from rulka.contracts.actions import Choices, Intervals


def test_no_gradient_flows_into_the_target():
    quantile = torch.zeros(1, 2, requires_grad=True)
    target = torch.ones(1, 2, requires_grad=True)
    quantile_huber_loss(quantile, torch.full((1, 2), 0.5), target, 1.0).sum().backward()
    assert target.grad is None
    assert bool((quantile.grad < 0).all())


def test_self_loss_by_hand():
    """Widths 0.4 and 0.01; typical 0.99 * 0.2 + 0.01 * 0.205 = 0.20005; floor 0.0500125; so divisors 0.4, 0.0500125;
    typical divisor 0.99 * 0.2 + 0.01 * 0.22500625 = 0.2002500625.
    """
    running = TypicalWidth(*torch.full((2,), 0.2, dtype=torch.float64))
    weights, after = self_loss_weights(torch.tensor([0.16, 0.0001]), running, clamp_ratio=4.0)
    torch.testing.assert_close(weights, torch.tensor([0.2002500625 / 0.4, 0.2002500625 / 0.0500125]))
    assert [float(average) for average in after] == pytest.approx((0.20005, 0.2002500625))


@pytest.mark.parametrize(
    ("value", "temperature", "floor", "logarithm"),
    [
        # pi = (1/4, 3/4): ln 1/4 = -1.3863 is cut at -1, ln 3/4 = -0.2877 is not.
        ([0.0, math.log(3.0)], 1.0, -1.0, [-1.0, math.log(0.75)]),
        ([0.0, math.log(3.0)], 1.0, -10.0, [math.log(0.25), math.log(0.75)]),
        # 0.03 log pi = Q(a) - max Q here: the floor bounds the scaled logarithm.
        ([0.0, -0.5, -2.0], 0.03, -1.0, [0.0, -0.5, -1.0]),
    ],
)
def test_munchausen_bonus_by_hand(value, temperature, floor, logarithm):
    values = torch.tensor([value]).expand(len(value), -1)
    bonus = munchausen_bonus(
        values[:, None], torch.arange(len(value))[:, None], alpha=0.9, temperature=temperature, floor=floor
    )
    assert bonus.tolist() == pytest.approx([0.9 * each for each in logarithm], abs=1e-6)


def test_margin_by_hand() -> None:
    """Rows: another action is better; the demonstrated one leads by less than the margin; by more; by exactly it."""
    value = torch.tensor([[1.0, 3.0, 0.0], [1.0, 0.8, 0.0], [1.0, 0.2, 0.0], [0.0, 1.0, 0.5]])
    loss = margin_loss(value[:, None], torch.tensor([[0], [0], [0], [1]]), 0.5)
    torch.testing.assert_close(loss, torch.tensor([2.5, 0.3, 0.0, 0.0]))
    value = value + torch.tensor([[7.0], [-2.0], [0.5], [1.0]])
    shifted = margin_loss(value[:, None], torch.tensor([[0], [0], [0], [1]]), 0.5)
    torch.testing.assert_close(shifted, loss)


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
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, expected: float):
    old = torch.tensor([-1.0])
    loss = clipped_policy_loss(old + math.log(ratio), old, torch.tensor([advantage]), clip=0.2)
    torch.testing.assert_close(loss.loss, torch.tensor(expected))
    assert float(loss.clip_fraction) == (0.0 if ratio == 1.0 else 1.0)
    assert float(loss.approx_kl) == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


@pytest.mark.parametrize(
    ("value", "clip", "expected", "clip_fraction"),
    [
        (0.1, 0.2, 0.5 * 0.81, 0.0),  # within the clip: plain error (1 - 0.1)^2
        (0.5, 0.2, 0.5 * 0.64, 1.0),  # towards the return but too far: held at 0.2, the larger error counts
        (-0.5, 0.2, 0.5 * 2.25, 1.0),  # away: the plain error is the larger one
        (0.5, None, 0.5 * 0.25, 0.0),  # not clipped
    ],
)
def test_value_loss_by_hand(value: float, clip: float | None, expected: float, clip_fraction: float):
    loss = clipped_value_loss(torch.tensor([value]), torch.zeros(1), torch.ones(1), clip)
    torch.testing.assert_close(loss.loss, torch.tensor(expected))
    assert float(loss.clip_fraction) == clip_fraction


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.full((3,), 2.0), returns) == pytest.approx(0.0)
    assert explained_variance(returns, torch.ones(3)) == 0.0
    with warnings.catch_warnings(action="error"):
        assert explained_variance(torch.ones(1), torch.zeros(1)) == 0.0
        assert math.isnan(explained_variance(torch.zeros(0), torch.zeros(0)))


def test_advantages_of_groups_by_hand() -> None:
    """Returns 1, 2, 6: mean 3, centred -2, -1, 3; variance (4 + 1 + 9) / 2 = 7. The other group is all alike."""
    returns = torch.tensor([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]])
    expected = torch.tensor([[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(group_advantages(returns), expected / math.sqrt(7.0))


def test_gradient_weighs_pairs_by_how_wrong_they_are() -> None:
    """Section 4: the gradient of a pair is -beta sigmoid(-margin), toward the chosen and away from the rejected."""
    chosen, rejected = torch.tensor([0.0, 3.0], requires_grad=True), torch.tensor([0.0, -3.0], requires_grad=True)
    preference_loss(chosen, rejected, beta=0.5).loss.backward()
    expected = torch.tensor([-0.5 * 0.5, -0.5 / (1.0 + math.exp(3.0))]) / 2
    torch.testing.assert_close(chosen.grad, expected)
    torch.testing.assert_close(rejected.grad, -expected)


STEER_AND_GAS = Intervals((-1.0, 0.0), (1.0, 1.0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moments(rows: int = 6, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=generator(1)) * spread


def test_choices_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([[0.1, 0.6, 0.3, 0.8, 0.1, 0.1]]).log().expand(20_000, -1)
    drawn = Categoricals(Choices(3, 2)).sample(logits, generator())
    assert Categoricals(Choices(3, 2)).greedy(logits[:1]).tolist() == [[1, 0]]
    shares = torch.nn.functional.one_hot(drawn, 3).double().mean(dim=0)
    np.testing.assert_allclose(shares, [[0.1, 0.6, 0.3], [0.8, 0.1, 0.1]], atol=0.015)


def test_the_gradient_of_the_entropy_is_right_up_to_the_widest_gaussian():
    """Against 20,001 points: of tanh's slope, wide Gaussians see a bend at 0 that few points step over."""
    mean = torch.tensor([-4.0, -1.5, -0.3, 0.0, 0.7, 2.0, 5.0], dtype=torch.float64)
    points = torch.linspace(-10.0, 10.0, 20_001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * points.square(), dim=0)
    distribution = SquashedGaussian(Intervals((-1.0,), (1.0,)))
    for log_std in (-5.0, -1.0, 0.0, 1.0, 1.9):
        outputs = torch.stack([mean, torch.full_like(mean, log_std)], dim=1).requires_grad_()
        exact = outputs.detach().clone().requires_grad_()
        raw = exact[:, :1] + exact[:, 1:].exp() * points
        slope = 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))
        expected = exact[:, 1] + 0.5 * math.log(2.0 * math.pi * math.e) + slope @ weights
        entropy = distribution.entropy(outputs)
        torch.testing.assert_close(entropy, expected, rtol=1e-3, atol=1e-3)
        entropy.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(outputs.grad, exact.grad, rtol=5e-3, atol=2e-3)


def test_decisions_stay_within_their_intervals_and_have_finite_densities():
    """Means of 100 lie beyond what float32 tells from the end of the interval."""
    distribution = SquashedGaussian(STEER_AND_GAS)
    outputs = moments(1000, 100.0).requires_grad_()
    action = distribution.sample(outputs.detach(), generator())
    low, high = torch.tensor(STEER_AND_GAS.low), torch.tensor(STEER_AND_GAS.high)
    assert bool(((action >= low) & (action <= high)).all())
    log_prob = distribution.log_prob(outputs, action)
    (log_prob.sum() + distribution.entropy(outputs).sum()).backward()
    assert bool(log_prob.isfinite().all())
    assert bool(outputs.grad.isfinite().all())
