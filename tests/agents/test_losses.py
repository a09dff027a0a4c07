"""Losses and distributions of all algorithms: by hand, and against torch's own."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import AffineTransform, Categorical, Normal, TanhTransform, TransformedDistribution
from torch.distributions import kl_divergence as torch_kl

from rulka.actions import Choices, Intervals
from rulka.agents.advantages import explained_variance
from rulka.agents.distributions import Categoricals, SquashedGaussian
from rulka.agents.iqn import (
    SelfLoss,
    margin_loss,
    munchausen_bonus,
    quantile_huber_loss,
    self_loss_weights,
)
from rulka.agents.policy_gradient import clipped_policy_loss
from rulka.agents.ppo import clipped_value_loss
from rulka.agents.preferences import group_advantages, preference_loss


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


def test_margin_by_hand() -> None:
    """Rows: another action is better; the demonstrated one leads by less than the margin; by more; by exactly it."""
    value = torch.tensor([[1.0, 3.0, 0.0], [1.0, 0.8, 0.0], [1.0, 0.2, 0.0], [0.0, 1.0, 0.5]])
    loss = margin_loss(value, torch.tensor([0, 0, 0, 1]), 0.5)
    torch.testing.assert_close(loss, torch.tensor([2.5, 0.3, 0.0, 0.0]))
    shifted = margin_loss(value + torch.tensor([[7.0], [-2.0], [0.5], [1.0]]), torch.tensor([0, 0, 0, 1]), 0.5)
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


def torchs(outputs: torch.Tensor) -> TransformedDistribution:
    mean, log_std = outputs.double().chunk(2, dim=1)
    low, high = torch.tensor(STEER_AND_GAS.low).double(), torch.tensor(STEER_AND_GAS.high).double()
    transforms = [TanhTransform(cache_size=1), AffineTransform((high + low) / 2, (high - low) / 2)]
    return TransformedDistribution(Normal(mean, log_std.exp()), transforms)


def test_one_choice_equals_torchs_categorical():
    logits, action = torch.randn(6, 5, generator=generator()), torch.tensor([0, 1, 2, 3, 4, 0])
    ours, theirs = Categoricals(Choices(5)), Categorical(logits=logits)
    torch.testing.assert_close(ours.log_prob(logits, action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(logits), theirs.entropy())
    other = logits.flip(1)
    torch.testing.assert_close(ours.divergence(logits, other), torch_kl(theirs, Categorical(logits=other)))
    assert ours.greedy(logits).tolist() == logits.argmax(dim=1).tolist()


def test_several_places_add_up():
    logits, other = torch.randn(4, 6, generator=generator()), torch.randn(4, 6, generator=generator(1))
    action = torch.tensor([[0, 2], [1, 1], [2, 0], [0, 0]])
    both, one = Categoricals(Choices(3, 2)), Categoricals(Choices(3))
    places = [(logits[:, :3], other[:, :3], action[:, 0]), (logits[:, 3:], other[:, 3:], action[:, 1])]
    torch.testing.assert_close(both.log_prob(logits, action), sum(one.log_prob(here, a) for here, _, a in places))
    torch.testing.assert_close(both.entropy(logits), sum(one.entropy(here) for here, _, _ in places))
    torch.testing.assert_close(
        both.divergence(logits, other), sum(one.divergence(here, there) for here, there, _ in places)
    )
    assert both.greedy(logits).shape == both.sample(logits, generator()).shape == (4, 2)


def test_choices_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([[0.1, 0.6, 0.3, 0.8, 0.1, 0.1]]).log().expand(20_000, -1)
    drawn = Categoricals(Choices(3, 2)).sample(logits, generator())
    shares = torch.nn.functional.one_hot(drawn, 3).double().mean(dim=0)
    np.testing.assert_allclose(shares, [[0.1, 0.6, 0.3], [0.8, 0.1, 0.1]], atol=0.015)


def test_a_squashed_gaussian_equals_torchs_transformed_normal():
    outputs = moments(spread=0.5).double()
    action = SquashedGaussian(STEER_AND_GAS).sample(outputs, generator())
    ours = SquashedGaussian(STEER_AND_GAS).log_prob(outputs, action)
    torch.testing.assert_close(ours, torchs(outputs).log_prob(action).sum(dim=1))


def test_its_density_integrates_to_one_and_its_entropy_is_the_integral():
    """One interval of steering, by the midpoint rule over 200,000 places."""
    steer = SquashedGaussian(Intervals((-2.0,), (2.0,)))
    for mean, log_std in ((0.0, 0.0), (0.7, -1.0), (-1.5, 0.5)):
        places = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * 4.0 - 2.0
        outputs = torch.tensor([[mean, log_std]], dtype=torch.float64)
        log_density = steer.log_prob(outputs.expand(len(places), -1), places[:, None])
        width = 4.0 / len(places)
        assert float(log_density.exp().sum()) * width == pytest.approx(1.0, abs=2e-3)
        entropy = -float((log_density.exp() * log_density).sum()) * width
        assert float(steer.entropy(outputs)) == pytest.approx(entropy, abs=5e-3)


def test_the_divergence_of_squashed_gaussians_is_that_of_the_gaussians():
    first, now = moments(spread=0.5), moments(spread=0.5).flip(0)
    theirs = torch_kl(*(Normal(m, s.exp()) for m, s in (out.chunk(2, dim=1) for out in (first, now)))).sum(dim=1)
    torch.testing.assert_close(SquashedGaussian(STEER_AND_GAS).divergence(first, now), theirs)


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
    assert outputs.grad is not None
    assert bool(outputs.grad.isfinite().all())
