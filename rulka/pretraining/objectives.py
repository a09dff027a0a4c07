"""Objectives of Level 0: reconstruction of frames (plain or variational), or comparison of views of frames.

Both views show the same frame or, with `later`, a frame and a later one of its race; a predictor then maps the first
view's projection to the second's.

Every objective owns an `encoder`, which is kept, and a head, which is discarded. To add one: a class here with a line
in `OBJECTIVES`, and a section in `params.py`; see docs/extending.md.

Sources: Kingma and Welling 2013, arXiv:1312.6114; Chen et al. 2020 (SimCLR), arXiv:2002.05709; Bardes et al. 2021
(VICReg), arXiv:2105.04906; Stooke et al. 2020 (ATC), arXiv:2009.08319.
Dimensions: B batch, C channels (frames), H x W pixels, Z latent dimensions, P dimensions of a projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.encoders.base import normalise_image
from models.encoders.build import build_encoder
from models.encoders.config import EncoderConfig
from models.pretraining_heads import ConvDecoder, Predictor, Projector, VaeHead, sample
from rulka.contracts.observation_params import ObservationParams
from rulka.machine.errors import UserError
from rulka.pretraining.params import (
    AutoencoderParams,
    ObjectiveParams,
    SimclrParams,
    VaeParams,
    VicregParams,
    ViewsParams,
)

TRAINING_BYTES = 16
"""Memory per weight in training: the weight, its gradient, and two moments of AdamW."""
BLUR_REACH = 2.5
"""Radius of the blur kernel, in units of the largest standard deviation."""
VICREG_EPSILON = 1e-4
"""Added to variances before the square root: a constant dimension gets a standard deviation of 0.01."""


class Objective(nn.Module):
    """Base class of the objectives.

    Attributes:
        encoder: the pretrained encoder.
        compares_frames: whether the loss of a frame depends on the rest of its batch, so that losses are comparable
            only between batches of one size.
        later: decisions from a frame to the later one that its loss also needs; 0 if it needs none.
    """

    compares_frames = False
    later = 0

    def __init__(self, params: Any, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__()
        self.params = params
        self.encoder = build_encoder(encoder, observation.height, observation.width, observation.channels)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the mean loss [] of raw images [B, C, H, W] uint8, or [B, 2, C, H, W] with the later ones."""
        raise NotImplementedError

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns, for raw images [B, C, H, W], normalised images that visualise the learned representation."""
        raise NotImplementedError


# Rebuilding frames ----------------------------------------------------------------------------------------------------


class AutoencoderObjective(Objective):
    """Mean squared error of images reconstructed from their features."""

    def __init__(self, params: AutoencoderParams, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__(params, encoder, observation)
        self.decoder = _decoder(self.encoder.num_features, observation)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the reconstruction loss []; draws no random numbers."""
        return reconstruction_loss(_normal(image), self.preview(image, generator))

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the reconstructed images."""
        return self.decoder(self.encoder(_normal(image)))


class VaeObjective(Objective):
    """Reconstruction from a noisy latent code, and the divergence of the code from a standard normal."""

    def __init__(self, params: VaeParams, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__(params, encoder, observation)
        self.head = VaeHead(self.encoder.num_features, params.num_latent)
        self.decoder = _decoder(params.num_latent, observation)

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the negative evidence bound [] up to constants."""
        target = _normal(image)
        latent = self.head(self.encoder(target))
        rebuilt = self.decoder(sample(latent, generator))
        mean, log_variance = latent.mean.float(), latent.log_variance.float()
        # The KL divergence from N(mean, variance) to N(0, 1), summed over Z.
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1).mean()
        return reconstruction_loss(target, rebuilt) + self.params.kl_weight * divergence

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the images reconstructed from the means of their codes."""
        return self.decoder(self.head(self.encoder(_normal(image))).mean)


def _decoder(num_inputs: int, observation: ObservationParams) -> ConvDecoder:
    """Returns a decoder with newly initialised weights.

    Raises:
        UserError: if it does not fit in memory; its first layer grows fast with the image size.
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
        raise UserError(message, hint=hint)
    return ConvDecoder(num_inputs, *size)


def reconstruction_loss(image: Tensor, reconstruction: Tensor) -> Tensor:
    """Mean squared error [] of reconstructions [B, C, H, W] in the scale of the normalised images, [-1, 1].

    Divide by 4 to compare with errors of images in [0, 1].
    """
    return (reconstruction.float() - image.float()).square().mean()


# Comparing views of frames --------------------------------------------------------------------------------------------


class ViewsObjective(Objective):
    """Comparison of two views of every frame, or of a frame and a later one, in a projected space."""

    compares_frames = True

    def __init__(self, params: ViewsParams, encoder: EncoderConfig, observation: ObservationParams) -> None:
        super().__init__(params, encoder, observation)
        self.later = params.later
        self.projector = Projector(self.encoder.num_features, params.projection)
        self.predictor = Predictor(params.projection) if params.later else nn.Identity()

    def loss(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the loss [] between two views of every image; with `later`, one of them shows the later image."""
        frames = image.unbind(1) if self.later else (image, image)
        first, second = (self.projector(self.encoder(self.preview(each, generator))).float() for each in frames)
        with torch.autocast(image.device.type, enabled=False):  # autocast would multiply in bfloat16
            return self.compare(self.predictor(first), second)

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the loss [] of the projections [B, P] of two views, float32."""
        raise NotImplementedError

    def blind_loss(self, num_frames: int) -> float:
        """Returns the loss of a collapsed network, which maps all views to the same projection."""
        alike = torch.ones(num_frames, self.params.projection)
        return float(self.compare(alike, alike))

    def preview(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Returns one random view of every image."""
        with torch.autocast(image.device.type, enabled=False):  # bfloat16 coordinates are half a pixel off
            return random_view(_normal(image), self.params, generator)


class SimclrObjective(ViewsObjective):
    """SimCLR: finds the partner of each view among all views of a batch."""

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the NT-Xent loss []."""
        return nt_xent_loss(first, second, self.params.temperature)


class VicregObjective(ViewsObjective):
    """VICReg: similar views of a frame, in dimensions that all vary and are decorrelated."""

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the weighted sum [] of the three terms."""
        return vicreg_loss(first, second, self.params.invariance, self.params.variance, self.params.covariance)


def nt_xent_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Cross-entropy [] of finding the other view of the same image among all 2 B - 1 other views.

    Args:
        first: [B, P] projections of one view of each image; any scale.
        second: [B, P] projections of another view of the same images.
        temperature: divides the cosine similarities; positive.
    """
    batch = len(first)
    views = functional.normalize(torch.cat([first, second]), dim=1)
    similarity = views @ views.T / temperature
    similarity = similarity.masked_fill(torch.eye(2 * batch, dtype=torch.bool, device=views.device), -torch.inf)
    partner = torch.arange(2 * batch, device=views.device).roll(batch)
    return functional.cross_entropy(similarity, partner)


def vicreg_loss(first: Tensor, second: Tensor, invariance: float, variance: float, covariance: float) -> Tensor:
    """Weighted sum [] of VICReg's three terms, as in the authors' code.

    Args:
        first: [B, P] projections of one view of each image, B at least 2; not normalised.
        second: [B, P] projections of another view of the same images.
        invariance: weight of the squared difference of two views of an image, mean over B and P.
        variance: weight of the hinge max(0, 1 - std) of each dimension over the batch, mean over P and views.
        covariance: weight of the squared off-diagonal covariances, divided by P, sum of both views.
    """
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


def random_view(image: Tensor, views: ViewsParams, generator: torch.Generator) -> Tensor:
    """Crops, rescales, blurs, brightens or darkens, and adds noise, differently for every image.

    torchvision's transforms draw once per batch, so this uses torch's own sampling. Called once per image, its
    RandomResizedCrop, GaussianBlur, ColorJitter and GaussianNoise reduced SimCLR's throughput to 0.49 on one core, and
    to 0.45 in the thread that reads frames. Frames are never mirrored: left and right mean different actions.

    The peer draws one crop and one brightness per batch and clamps to [0, 1], which makes half of the pixels of images
    in [-1, 1] black.

    Args:
        image: [B, C, H, W] normalised images in [-1, 1]; all frames of one image change equally, except for noise.
        views: the largest amount of each change.
        generator: of random numbers, on the images' device.

    Returns:
        [B, C, H, W] in [-1, 1].
    """
    seen = image
    if views.crop_pixels > 0.0:
        seen = _cropped(seen, views.crop_pixels, generator)
    if views.blur_pixels > 0.0:
        seen = _blurred(seen, views.blur_pixels, generator)
    factor = 1.0 + views.brightness * (2.0 * _draw(image, generator) - 1.0)
    seen = (seen + 1.0) * factor - 1.0
    if views.noise > 0.0:
        noise = torch.randn(image.shape, generator=generator, device=image.device)
        seen = seen + views.noise * _draw(image, generator) * noise
    return seen.clamp(-1.0, 1.0)


def _draw(image: Tensor, generator: torch.Generator) -> Tensor:
    """Draws uniform numbers [B, 1, 1, 1]."""
    return torch.rand(len(image), 1, 1, 1, generator=generator, device=image.device)


def _cropped(image: Tensor, most_pixels: float, generator: torch.Generator) -> Tensor:
    """Cuts off at most `most_pixels` rows and columns, and rescales."""
    batch, _, height, width = image.shape
    draws = {"generator": generator, "device": image.device}
    cut = most_pixels * torch.rand(batch, **draws)
    scale = torch.stack([1.0 - cut / width, 1.0 - cut / height], dim=1)
    shift = (1.0 - scale) * (2.0 * torch.rand(batch, 2, **draws) - 1.0)
    transform = torch.cat([torch.diag_embed(scale), shift[:, :, None]], dim=2)
    grid = functional.affine_grid(transform, list(image.shape), align_corners=False)
    return functional.grid_sample(image, grid.to(image.dtype), padding_mode="border", align_corners=False)


def _blurred(image: Tensor, most_pixels: float, generator: torch.Generator) -> Tensor:
    """Blurs with a Gaussian of standard deviation up to `most_pixels`, along rows and then columns."""
    reach = max(1, round(BLUR_REACH * most_pixels))
    deviation = (most_pixels * _draw(image, generator)).clamp(min=1e-3)
    distance = torch.arange(-reach, reach + 1, device=image.device)
    kernel = torch.softmax(-0.5 * (distance / deviation).square(), dim=3)
    seen = functional.pad(image.transpose(0, 1), (reach,) * 4, mode="replicate")
    for shape in ((len(image), 1, 1, -1), (len(image), 1, -1, 1)):
        seen = functional.conv2d(seen, kernel.reshape(shape).to(image.dtype), groups=len(image))
    return seen.transpose(0, 1)


# All of them ----------------------------------------------------------------------------------------------------------

OBJECTIVES: Mapping[type[ObjectiveParams], type[Objective]] = {
    AutoencoderParams: AutoencoderObjective,
    VaeParams: VaeObjective,
    SimclrParams: SimclrObjective,
    VicregParams: VicregObjective,
}


def build_objective(objective: ObjectiveParams, encoder: EncoderConfig, observation: ObservationParams) -> Objective:
    """Returns an objective with new weights from torch's global generator.

    Raises:
        UserError: if images are too large for it.
    """
    return OBJECTIVES[type(objective)](objective, encoder, observation)


def _normal(image: Tensor) -> Tensor:
    return normalise_image(image, torch.float32)
