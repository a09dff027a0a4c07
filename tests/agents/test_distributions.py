"""Distributions of a policy against torch's own, by hand and by numerical integration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import AffineTransform, Categorical, Normal, TanhTransform, TransformedDistribution
from torch.distributions import kl_divergence as torch_kl

from rulka.actions import Choices, Intervals
from rulka.agents.distributions import Categoricals, SquashedGaussian

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
