"""Random views of frames for contrastive learning, drawn for each image on its own.

The peer draws one crop and one brightness for a whole batch and clamps to [0, 1], which makes half of the pixels of
images in [-1, 1] black. Frames are never mirrored: left and right mean different actions.
Dimensions: B batch, H x W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def random_view(image: Tensor, crop_pixels: float, brightness: float, generator: torch.Generator) -> Tensor:
    """Crops, scales back and lights every image differently.

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
