"""Losses of Level 0: of autoencoders, plain and variational, and of telling views of images apart.

Sources: Kingma and Welling 2013, arXiv:1312.6114; Chen et al. 2020 (SimCLR), arXiv:2002.05709; Bardes et al. 2021
(VICReg), arXiv:2105.04906.
Dimensions: B images, C channels, H x W pixels, Z latent numbers, P numbers of a projection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

VICREG_EPSILON = 1e-4
"""Added to variances before their root is taken: a number that is always the same has a deviation of 0.01."""


def reconstruction_loss(image: Tensor, reconstruction: Tensor) -> Tensor:
    """Mean squared error [] of reconstructions [B, C, H, W] in the scale of the normalised images, [-1, 1].

    Divide by 4 to compare with errors of images in [0, 1].
    """
    return (reconstruction.float() - image.float()).square().mean()


def kl_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL divergence [] from N(mean, variance) to N(0, 1): summed over Z, averaged over B; both arguments [B, Z]."""
    return 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1).mean()


def vae_loss(image: Tensor, reconstruction: Tensor, mean: Tensor, log_variance: Tensor, kl_weight: float) -> Tensor:
    """Negative evidence bound [] up to constants: reconstruction loss plus `kl_weight` times the divergence."""
    return reconstruction_loss(image, reconstruction) + kl_weight * kl_from_standard_normal(mean, log_variance)


def nt_xent_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Cross-entropy [] of finding the other view of the same image among all 2 B - 1 other views.

    Args:
        first: [B, P] projections of one view of each image; any scale.
        second: [B, P] projections of another view of the same images.
        temperature: divides the cosine similarities; positive.
    """
    batch = len(first)
    views = functional.normalize(torch.cat([first, second]).float(), dim=1)
    similarity = views @ views.T / temperature
    similarity = similarity.masked_fill(torch.eye(2 * batch, dtype=torch.bool, device=views.device), -torch.inf)
    partner = torch.arange(2 * batch, device=views.device).roll(batch)
    return functional.cross_entropy(similarity, partner)


def vicreg_loss(first: Tensor, second: Tensor, invariance: float, variance: float, covariance: float) -> Tensor:
    """Weighted sum [] of VICReg's three terms, as the authors' code has them.

    Args:
        first: [B, P] projections of one view of each image, B at least 2; not normalised.
        second: [B, P] projections of another view of the same images.
        invariance: weight of the squared difference of two views of an image, mean over B and P.
        variance: weight of how much less than 1 a number's standard deviation over the batch is, mean over P and views.
        covariance: weight of the squared covariances of different numbers, divided by P, sum of both views.
    """
    first, second = first.float(), second.float()
    (spread, shared), (other_spread, other_shared) = (_variance_and_covariance(view) for view in (first, second))
    apart = (first - second).square().mean()
    return invariance * apart + 0.5 * variance * (spread + other_spread) + covariance * (shared + other_shared)


def _variance_and_covariance(view: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the mean hinge on standard deviations [], and the squared covariances off the diagonal over P []."""
    batch, numbers = view.shape
    centred = view - view.mean(dim=0)
    covariance = centred.T @ centred / (batch - 1)
    deviation = (covariance.diagonal() + VICREG_EPSILON).sqrt()
    off_diagonal = covariance.square().sum() - covariance.diagonal().square().sum()
    return functional.relu(1.0 - deviation).mean(), off_diagonal / numbers
