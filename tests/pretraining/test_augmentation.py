"""Views of frames: drawn for each image on its own, in range, and small when asked to be."""

from __future__ import annotations

import math

import pytest
import torch

from rulka.pretraining.objectives import random_view
from rulka.pretraining.params import SimclrParams


def views(crop_pixels: float = 0.0, brightness: float = 0.0, **others: float) -> SimclrParams:
    values = {"crop_pixels": crop_pixels, "brightness": brightness, "blur_pixels": 0.0, "noise": 0.0} | others
    return SimclrParams(kind="simclr", projection=8, temperature=0.5, **values)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_image_gets_its_own_light_around_black() -> None:
    image = torch.full((64, 1, 34, 34), -0.5)  # half as far from black (-1) as grey (0)
    view = random_view(image, views(0.0, 0.2), generator())
    factor = (view[:, 0, 0, 0] + 1) / 0.5
    assert len(factor.unique()) > 32
    assert factor.min() >= 0.8 - 1e-5
    assert factor.max() <= 1.2 + 1e-5
    dark = random_view(torch.full((8, 1, 34, 34), -0.9), views(0.0, 0.2), generator())
    assert dark.max() < -0.85  # not clamped to [0, 1]


def test_light_stays_in_range() -> None:
    white = random_view(torch.ones(64, 1, 34, 34), views(0.0, 0.5), generator())
    assert white.max() == 1.0
    assert white.min() >= 2 * 0.5 - 1 - 1e-6
    black = random_view(torch.full((64, 1, 34, 34), -1.0), views(4.0, 0.5), generator())
    torch.testing.assert_close(black, torch.full_like(black, -1.0), atol=1e-5, rtol=0)


def test_crops_reach_every_side() -> None:
    """Of each side of some image something is cut off, and the kept part is as wide as it is high in share."""
    across = torch.linspace(-1, 1, 64).expand(128, 1, 64, 64)
    down = across.transpose(2, 3)
    seen = [random_view(image, views(8.0, 0.0), generator())[:, 0] for image in (across, down)]
    for first, last in ((seen[0][:, 32, 0], seen[0][:, 32, -1]), (seen[1][:, 0, 32], seen[1][:, -1, 32])):
        assert first.max() > -1 + 4 * 2 / 63
        assert last.min() < 1 - 4 * 2 / 63
    kept = [seen[0][:, 32, -1] - seen[0][:, 32, 0], seen[1][:, -1, 32] - seen[1][:, 0, 32]]
    torch.testing.assert_close(kept[0], kept[1], atol=0.01, rtol=0)


def test_every_image_gets_its_own_blur() -> None:
    """One place of each against a sum over the pixels around it."""
    image = torch.rand(8, 1, 34, 34, generator=generator(3)) * 2 - 1
    found = random_view(image, views(blur_pixels=1.0), generator())
    row, column = 9, 20
    for number, deviation in enumerate(torch.rand(8, generator=generator()).tolist()):
        weights = {k: math.exp(-0.5 * (k / deviation) ** 2) for k in range(-2, 3)}
        around = [(weights[i] * weights[j], image[number, 0, row + i, column + j]) for i in weights for j in weights]
        expected = sum(weight * float(pixel) for weight, pixel in around) / sum(weights.values()) ** 2
        assert float(found[number, 0, row, column]) == pytest.approx(expected, abs=1e-4)


def test_every_image_gets_its_own_noise() -> None:
    view = random_view(torch.zeros(64, 1, 34, 34), views(noise=0.2), generator())
    spread = view.flatten(1).std(dim=1)
    assert len(spread.unique()) == 64
    assert spread.max() <= 0.2 * 1.1
    assert 0.05 < spread.mean() < 0.15
    assert view.abs().max() <= 1.0
