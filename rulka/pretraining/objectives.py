"""What Level 0 can learn from: rebuilding frames (plain or variational), or comparing views of frames.

Every objective owns an `encoder`, which is all that is kept, and the head that is thrown away.
Dimensions: B batch, C frames that the encoder takes at once, H x W pixels.
"""

from __future__ import annotations

import psutil
import torch
from torch import Tensor, nn

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from models.pretraining_heads import ConvDecoder, Projector, VaeHead, sample
from rulka.errors import UserError
from rulka.params import (
    AutoencoderParams,
    ObjectiveParams,
    ObservationParams,
    SimclrParams,
    VaeParams,
    VicregParams,
    ViewsParams,
)
from rulka.pretraining.losses import nt_xent_loss, reconstruction_loss, vae_loss, vicreg_loss
from rulka.pretraining.views import random_view

TRAINING_BYTES = 16
"""Of a weight in training: itself, its gradient, and two moments of AdamW."""


class ObjectiveError(UserError):
    """An objective cannot be learned from images of this size."""


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
        self.encoder = build_encoder(encoder, observation.height, observation.width, observation.channels)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the mean loss [] of raw images [B, C, H, W] uint8."""
        raise NotImplementedError

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns, for raw images [B, C, H, W], normalised images that show a person what was learned."""
        raise NotImplementedError


class AutoencoderObjective(Objective):
    """Mean squared error of images rebuilt from their features."""

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__(encoder, observation)
        self.decoder = _decoder(self.encoder.num_features, observation)

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
        self.decoder = _decoder(params.num_latent, observation)
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


class ViewsObjective(Objective):
    """Comparing two views of every frame, in the numbers of a projection."""

    compares_frames = True

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams, params: ViewsParams) -> None:
        super().__init__(encoder, observation)
        self.projector = Projector(self.encoder.num_features, params.projection)
        self._views = params

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the loss [] of two views of every image."""
        return self.compare(*(self.projector(self.encoder(self.preview(image, generator))) for _ in range(2)))

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the loss [] of the projections [B, P] of two views."""
        raise NotImplementedError

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns one random view of every image."""
        return random_view(normalise_image(image, torch.float32), self._views, generator)


class SimclrObjective(ViewsObjective):
    """Finding the other view of the same frame among all views of a batch."""

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams, params: SimclrParams) -> None:
        super().__init__(encoder, observation, params)
        self.temperature = params.temperature

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the NT-Xent loss []."""
        return nt_xent_loss(first, second, self.temperature)


class VicregObjective(ViewsObjective):
    """Views of a frame that are alike, in numbers that all vary and have little in common."""

    def __init__(self, encoder: EncoderConfig, observation: ObservationParams, params: VicregParams) -> None:
        super().__init__(encoder, observation, params)
        self.weights = params.invariance, params.variance, params.covariance

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the weighted sum [] of the three terms."""
        return vicreg_loss(first, second, *self.weights)


def _decoder(num_inputs: int, observation: ObservationParams) -> ConvDecoder:
    """Returns a decoder with fresh weights.

    Raises:
        ObjectiveError: if it is larger than the memory of this machine, as its first layer soon is with large images.
    """
    size = observation.height, observation.width, observation.channels
    with torch.device("meta"):
        num_weights = sum(weight.numel() for weight in ConvDecoder(num_inputs, *size).parameters())
    needed, free = TRAINING_BYTES * num_weights, psutil.virtual_memory().available
    if needed > free:
        message = (
            f"to rebuild images of {size[0]} x {size[1]} pixels from {num_inputs:,} features takes a decoder of "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free"
        )
        hint = (
            "Pool the features (encoder.adaptive_pool), make images smaller, or take an objective that compares views."
        )
        raise ObjectiveError(message, hint=hint)
    return ConvDecoder(num_inputs, *size)


def build_objective(objective: ObjectiveParams, encoder: EncoderConfig, observation: ObservationParams) -> Objective:
    """Returns an objective with fresh weights from torch's global generator.

    Raises:
        ObjectiveError: if images are too large for it.
    """
    match objective:
        case AutoencoderParams():
            return AutoencoderObjective(encoder, observation)
        case VaeParams():
            return VaeObjective(encoder, observation, objective)
        case SimclrParams():
            return SimclrObjective(encoder, observation, objective)
        case VicregParams():
            return VicregObjective(encoder, observation, objective)
