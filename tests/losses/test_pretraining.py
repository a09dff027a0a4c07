"""Losses of pretraining and cloning."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from rulka.losses.cloning import accuracy, soft_cross_entropy
from rulka.losses.contrastive import nt_xent_loss
from rulka.losses.reconstruction import kl_from_standard_normal, reconstruction_loss, vae_loss


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


def test_nt_xent_is_low_where_views_agree():
    views = torch.eye(6)
    assert float(nt_xent_loss(views, 3 * views, 0.1)) < 0.01
    assert float(nt_xent_loss(views, views.roll(1, 0), 0.1)) > 5.0


def test_soft_cross_entropy_by_hand():
    """Uniform logits over four actions cost log 4 whatever the target; a mixture pays for both its parts."""
    target = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(soft_cross_entropy(torch.zeros(1, 4), target), torch.tensor(math.log(4)))
    logits = torch.tensor([[0.3, 0.1, 0.4, 0.2]]).log()
    expected = -0.5 * (math.log(0.3) + math.log(0.1))
    torch.testing.assert_close(soft_cross_entropy(logits, target), torch.tensor(expected))


def test_soft_cross_entropy_with_hard_labels_is_torchs_and_weights_count():
    generator = torch.Generator().manual_seed(0)
    logits, action = torch.randn(5, 4, generator=generator), torch.tensor([0, 3, 1, 1, 2])
    hard = functional.one_hot(action, 4).float()
    torch.testing.assert_close(soft_cross_entropy(logits, hard), functional.cross_entropy(logits, action))
    first_only = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    expected = functional.cross_entropy(logits[:1], action[:1])
    torch.testing.assert_close(soft_cross_entropy(logits, hard, first_only), expected)


def test_accuracy():
    assert accuracy(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
