"""Losses of Level 0."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from rulka.pretraining.objectives import (
    kl_from_standard_normal,
    nt_xent_loss,
    reconstruction_loss,
    vae_loss,
    vicreg_loss,
)


def test_reconstruction_loss_by_hand():
    image, made = torch.zeros(1, 1, 2, 2), torch.tensor([[[[1.0, 0.0], [0.0, -1.0]]]])
    assert float(reconstruction_loss(image, made)) == 0.5


def test_kl_equals_torchs_summed_over_latents_averaged_over_rows():
    generator = torch.Generator().manual_seed(0)
    mean, log_variance = torch.randn(4, 3, generator=generator), torch.randn(4, 3, generator=generator)
    exact = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(dim=1).mean()
    torch.testing.assert_close(kl_from_standard_normal(mean, log_variance), exact)


def test_vae_loss_weighs_the_divergence():
    """Error 1, divergence 0.5 * 2^2 = 2 a row."""
    mean = torch.full((3, 1), 2.0)
    loss = vae_loss(torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2), mean, torch.zeros(3, 1), kl_weight=0.25)
    assert float(loss) == pytest.approx(1.5)


def test_nt_xent_equals_the_slow_twin():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(4, 3, generator=generator), torch.randn(4, 3, generator=generator)
    views = [functional.normalize(x, dim=0) for x in (*first, *second)]
    losses = []
    for i in range(8):
        scores = [math.exp(float(views[i] @ views[k]) / 0.5) for k in range(8)]
        losses.append(-math.log(scores[(i + 4) % 8] / (sum(scores) - scores[i])))
    assert float(nt_xent_loss(first, second, 0.5)) == pytest.approx(sum(losses) / 8, abs=1e-5)


def test_vicreg_equals_the_slow_twin():
    generator = torch.Generator().manual_seed(0)
    first, second = (0.7 * torch.randn(5, 3, generator=generator) for _ in range(2))
    apart = sum((float(first[b, p]) - float(second[b, p])) ** 2 for b in range(5) for p in range(3)) / 15
    hinge = shared = 0.0
    for view in (first, second):
        mean = [sum(float(view[b, p]) for b in range(5)) / 5 for p in range(3)]
        cov = [
            [sum((float(view[b, p]) - mean[p]) * (float(view[b, q]) - mean[q]) for b in range(5)) / 4 for q in range(3)]
            for p in range(3)
        ]
        hinge += sum(max(0.0, 1.0 - math.sqrt(cov[p][p] + 1e-4)) for p in range(3)) / 3
        shared += sum(cov[p][q] ** 2 for p in range(3) for q in range(3) if p != q) / 3
    expected = 25.0 * apart + 25.0 * hinge / 2 + 2.0 * shared
    assert float(vicreg_loss(first, second, 25.0, 25.0, 2.0)) == pytest.approx(expected, rel=1e-5)


def test_vicreg_is_nothing_for_equal_views_that_vary_apart_from_each_other():
    views = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(vicreg_loss(views, views, 25.0, 25.0, 1.0)) == 0.0
    collapsed = torch.zeros(4, 2)
    assert float(vicreg_loss(collapsed, collapsed, 25.0, 25.0, 1.0)) == pytest.approx(25.0 * 0.99)
