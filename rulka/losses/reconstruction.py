"""Losses of the autoencoder and of the variational autoencoder, Kingma and Welling 2013, arXiv:1312.6114.

Dimensions: B batch, C channels, H x W pixels, Z latent numbers.
"""

from __future__ import annotations

from torch import Tensor


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
