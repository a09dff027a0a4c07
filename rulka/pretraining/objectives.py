"""What Level 0 can learn from: rebuilding frames (plain or variational), or telling views of frames apart.

Every objective owns an `encoder`, which is all that is kept, and the head that is thrown away.
Dimensions: B batch, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from models.pretraining_heads import ConvDecoder, Projector, VaeHead, sample
from rulka.losses.pretraining import nt_xent_loss, reconstruction_loss, vae_loss
from rulka.params import AutoencoderParams, ObjectiveParams, ObservationParams, SimclrParams, VaeParams


class Objective(nn.Module):
    """Base of the objectives.

    Attributes:
        encoder: what is being pretrained.
        compares_frames: whether the loss of a frame depends on the others of its batch, so that only losses of batches
            of one size can be compared.
    """

    compares_frames = False

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__()
        self.encoder = build_encoder(encoder, observation.height, observation.width)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the mean loss [] of raw images [B, 1, H, W] uint8."""
        raise NotImplementedError

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns, for raw images [B, 1, H, W], normalised images that show a person what was learned."""
        raise NotImplementedError


class AutoencoderObjective(Objective):
    """Mean squared error of images rebuilt from their features."""

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__(encoder, observation)
        self.decoder = ConvDecoder(self.encoder.num_features, observation.height, observation.width)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the reconstruction loss []; draws nothing."""
        target = normalise_image(image, torch.float32)
        return reconstruction_loss(target, self.decoder(self.encoder(target)))

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the rebuilt images."""
        return self.decoder(self.encoder(normalise_image(image, torch.float32)))


class VaeObjective(Objective):
    """Reconstruction from a noisy latent code, and the divergence of the code from a standard normal."""

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams, params: VaeParams) -> None:
        super().__init__(encoder, observation)
        self.head = VaeHead(self.encoder.num_features, params.num_latent)
        self.decoder = ConvDecoder(params.num_latent, observation.height, observation.width)
        self.kl_weight = params.kl_weight

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

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams, params: SimclrParams) -> None:
        super().__init__(encoder, observation)
        self.projector = Projector(self.encoder.num_features, params.projection)
        self.params = params

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the NT-Xent loss [] of two views of every image."""
        first, second = (self.projector(self.encoder(self.preview(image, generator))) for _ in range(2))
        return nt_xent_loss(first, second, self.params.temperature)

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns one random view of every image."""
        target = normalise_image(image, torch.float32)
        return random_view(target, self.params.crop_pixels, self.params.brightness, generator)


def random_view(image: Tensor, crop_pixels: float, brightness: float, generator: torch.Generator) -> Tensor:
    """Crops, scales back and lights every image differently.

    The peer draws one crop and one brightness for a whole batch and clamps to [0, 1], which makes half of the pixels of
    images in [-1, 1] black. Frames are never mirrored: left and right mean different actions.

    Args:
        image: [B, 1, H, W] normalised images in [-1, 1].
        crop_pixels: at most this many rows and columns are cut off before scaling back.
        brightness: the light is scaled by a factor from 1 - brightness to 1 + brightness; in [0, 1).
        generator: of random numbers, on the images' device.

    Returns:
        [B, 1, H, W] in [-1, 1].
    """
    batch, _, height, width = image.shape
    draws = {"generator": generator, "device": image.device}
    cut = crop_pixels * torch.rand(batch, **draws)
    scale = torch.stack([1.0 - cut / width, 1.0 - cut / height], dim=1)
    shift = (1.0 - scale) * (2.0 * torch.rand(batch, 2, **draws) - 1.0)
    transform = torch.cat([torch.diag_embed(scale), shift[:, :, None]], dim=2)
    grid = functional.affine_grid(transform, list(image.shape), align_corners=False)
    cropped = functional.grid_sample(image, grid.to(image.dtype), padding_mode="border", align_corners=False)
    factor = 1.0 + brightness * (2.0 * torch.rand(batch, 1, 1, 1, **draws) - 1.0)
    return ((cropped + 1.0) * factor - 1.0).clamp(-1.0, 1.0)


def build_objective(objective: ObjectiveParams, encoder: EncoderConfig, observation: ObservationParams) -> Objective:
    """Returns an objective with fresh weights from torch's global generator."""
    match objective:
        case AutoencoderParams():
            return AutoencoderObjective(encoder, observation)
        case VaeParams():
            return VaeObjective(encoder, observation, objective)
        case SimclrParams():
            return SimclrObjective(encoder, observation, objective)
