"""Losses of Level 0: of autoencoders, plain and variational, and of telling views of images apart.

Sources: Kingma and Welling 2013, arXiv:1312.6114; Chen et al. 2020 (SimCLR), arXiv:2002.05709.
Dimensions: B images, C channels, H x W pixels, Z latent numbers, P numbers of a projection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
