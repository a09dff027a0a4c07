"""Contrastive loss of SimCLR, Chen et al. 2020, arXiv:2002.05709.

Dimensions: B images, P numbers of a projection.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
