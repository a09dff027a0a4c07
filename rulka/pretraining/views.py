"""Views of frames, which objectives compare: each image cropped, lit, blurred and made noisy by draws of its own.

torchvision's transforms draw once for a whole batch, so that views are made by torch's own sampling here. Called for
each image in turn, its RandomResizedCrop, GaussianBlur, ColorJitter and GaussianNoise left SimCLR 0.49 of its rate on
one core, and 0.45 in the thread that reads frames. Frames are never mirrored: left and right mean different actions.
Dimensions: B batch, C frames that the encoder takes at once, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rulka.params import ViewsParams

BLUR_REACH = 2.5
"""Of the kernel, in the largest standard deviations."""


def random_view(image: Tensor, views: ViewsParams, generator: torch.Generator) -> Tensor:
    """Crops, scales back, blurs, lights and disturbs every image differently.

    The peer draws one crop and one brightness for a whole batch and clamps to [0, 1], which makes half of the pixels of
    images in [-1, 1] black.

    Args:
        image: [B, C, H, W] normalised images in [-1, 1]; all frames of one are changed alike, but for the noise.
        views: how much of each at most.
        generator: of random numbers, on the images' device.

    Returns:
        [B, C, H, W] in [-1, 1].
    """
    seen = _cropped(image, views.crop_pixels, generator)
    if views.blur_pixels > 0.0:
        seen = _blurred(seen, views.blur_pixels, generator)
    factor = 1.0 + views.brightness * (2.0 * _draw(image, generator) - 1.0)
    seen = (seen + 1.0) * factor - 1.0
    if views.noise > 0.0:
        noise = torch.randn(image.shape, generator=generator, device=image.device)
        seen = seen + views.noise * _draw(image, generator) * noise
    return seen.clamp(-1.0, 1.0)


def _draw(image: Tensor, generator: torch.Generator) -> Tensor:
    """Returns [B, 1, 1, 1] uniform numbers."""
    return torch.rand(len(image), 1, 1, 1, generator=generator, device=image.device)


def _cropped(image: Tensor, most_pixels: float, generator: torch.Generator) -> Tensor:
    """Cuts off at most so many rows and columns, and scales back."""
    batch, _, height, width = image.shape
    draws = {"generator": generator, "device": image.device}
    cut = most_pixels * torch.rand(batch, **draws)
    scale = torch.stack([1.0 - cut / width, 1.0 - cut / height], dim=1)
    shift = (1.0 - scale) * (2.0 * torch.rand(batch, 2, **draws) - 1.0)
    transform = torch.cat([torch.diag_embed(scale), shift[:, :, None]], dim=2)
    grid = functional.affine_grid(transform, list(image.shape), align_corners=False)
    return functional.grid_sample(image, grid.to(image.dtype), padding_mode="border", align_corners=False)


def _blurred(image: Tensor, most_pixels: float, generator: torch.Generator) -> Tensor:
    """Blurs with a Gaussian of a standard deviation of at most so many pixels, along rows and then columns."""
    reach = max(1, round(BLUR_REACH * most_pixels))
    deviation = (most_pixels * _draw(image, generator)).clamp(min=1e-3)
    distance = torch.arange(-reach, reach + 1, device=image.device)
    kernel = torch.softmax(-0.5 * (distance / deviation).square(), dim=3)
    seen = functional.pad(image.transpose(0, 1), (reach,) * 4, mode="replicate")
    for shape in ((len(image), 1, 1, -1), (len(image), 1, -1, 1)):
        seen = functional.conv2d(seen, kernel.reshape(shape).to(image.dtype), groups=len(image))
    return seen.transpose(0, 1)
