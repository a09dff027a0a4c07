"""What Level 0 can learn from: rebuilding frames (plain or variational), or telling views of frames apart.

Every objective owns an `encoder`, which is all that is kept, and the head that is thrown away.
Dimensions: B batch, H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from models.decoder import ConvDecoder
from models.encoder import ConvEncoder, normalise_image
from models.projector import Projector
from models.vae import VaeHead, sample
from rulka.losses.contrastive import nt_xent_loss
from rulka.losses.reconstruction import reconstruction_loss, vae_loss
from rulka.pretraining.augmentation import Augmentation, random_view

Task = Literal["autoencoder", "vae", "simclr"]


@dataclass(frozen=True)
class ObjectiveSettings:
    """Numbers of the objectives; each uses its own.

    Attributes:
        vae_latent: latent numbers of the variational autoencoder.
        kl_weight: weight of its divergence, summed over the latent numbers.
        projection: numbers of a SimCLR projection.
        temperature: of SimCLR; positive.
        augmentation: how SimCLR's views differ.
    """

    vae_latent: int
    kl_weight: float
    projection: int
    temperature: float
    augmentation: Augmentation


class Objective(nn.Module):
    """Base of the objectives.

    Attributes:
        encoder: what is being pretrained.
        compares_frames: whether the loss of a frame depends on the others of its batch, so that only losses of batches
            of one size can be compared.
    """

    compares_frames = False

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.encoder = ConvEncoder(height, width)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the mean loss [] of raw images [B, 1, H, W] uint8."""
        raise NotImplementedError

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns, for raw images [B, 1, H, W], normalised images that show a person what was learned."""
        raise NotImplementedError


class AutoencoderObjective(Objective):
    """Mean squared error of images rebuilt from their features."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__(height, width)
        self.decoder = ConvDecoder(self.encoder.num_features, height, width)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the reconstruction loss []; draws nothing."""
        target = normalise_image(image, torch.float32)
        return reconstruction_loss(target, self.decoder(self.encoder(target)))

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the rebuilt images."""
        return self.decoder(self.encoder(normalise_image(image, torch.float32)))


class VaeObjective(Objective):
    """Reconstruction from a noisy latent code, and the divergence of the code from a standard normal."""

    def __init__(self, height: int, width: int, num_latent: int, kl_weight: float) -> None:
        super().__init__(height, width)
        self.head = VaeHead(self.encoder.num_features, num_latent)
        self.decoder = ConvDecoder(num_latent, height, width)
        self.kl_weight = kl_weight

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the negative evidence bound [] up to constants."""
        target = normalise_image(image, torch.float32)
        latent = self.head(self.encoder(target))
        rebuilt = self.decoder(sample(latent, generator))
        return vae_loss(target, rebuilt, latent.mean.float(), latent.log_variance.float(), self.kl_weight)

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the images rebuilt from the means of their codes."""
        return self.decoder(self.head(self.encoder(normalise_image(image, torch.float32))).mean)


class SimclrObjective(Objective):
    """Finding the other view of the same frame among all views of a batch."""

    compares_frames = True

    def __init__(self, height: int, width: int, settings: ObjectiveSettings) -> None:
        super().__init__(height, width)
        self.projector = Projector(self.encoder.num_features, settings.projection)
        self.settings = settings

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the NT-Xent loss [] of two views of every image."""
        first, second = (self.projector(self.encoder(self.preview(image, generator))) for _ in range(2))
        return nt_xent_loss(first, second, self.settings.temperature)

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns one random view of every image."""
        return random_view(normalise_image(image, torch.float32), self.settings.augmentation, generator)


def build_objective(task: Task, height: int, width: int, settings: ObjectiveSettings) -> Objective:
    """Returns the objective of a task with fresh weights from torch's global generator."""
    if task == "autoencoder":
        return AutoencoderObjective(height, width)
    if task == "vae":
        return VaeObjective(height, width, settings.vae_latent, settings.kl_weight)
    return SimclrObjective(height, width, settings)
