"""Views of frames: drawn for each image on its own, in range, and small when asked to be."""

from __future__ import annotations

import torch

from rulka.pretraining.objectives import random_view


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nothing_asked_for_changes_nothing() -> None:
    image = torch.rand(3, 1, 64, 48, generator=generator()) * 2 - 1
    view = random_view(image, 0.0, 0.0, generator())
    torch.testing.assert_close(view, image, atol=1e-5, rtol=0)


def test_every_image_gets_its_own_crop() -> None:
    image = torch.linspace(-1, 1, 64).expand(64, 1, 64, 64)
    view = random_view(image, 8.0, 0.0, generator())
    left, right = view[:, 0, 32, 0], view[:, 0, 32, -1]
    assert len(left.unique()) > 32
    # 8 of 64 columns are lost at most, and a column is worth 2 / 63.
    assert (left >= -1).all()
    assert (right <= 1).all()
    assert (right - left).min() >= 2 - 8.5 * 2 / 63


def test_every_image_gets_its_own_light_around_black() -> None:
    image = torch.full((64, 1, 34, 34), -0.5)  # half as far from black (-1) as grey (0)
    view = random_view(image, 0.0, 0.2, generator())
    factor = (view[:, 0, 0, 0] + 1) / 0.5
    assert len(factor.unique()) > 32
    assert factor.min() >= 0.8 - 1e-5
    assert factor.max() <= 1.2 + 1e-5
    dark = random_view(torch.full((8, 1, 34, 34), -0.9), 0.0, 0.2, generator())
    assert dark.max() < -0.85  # not clamped to [0, 1]


def test_light_stays_in_range() -> None:
    """Half of the factors are above 1 and would carry white beyond the range; black stays black under any."""
    white = random_view(torch.ones(64, 1, 34, 34), 0.0, 0.5, generator())
    assert white.max() == 1.0
    assert 16 < (white.flatten(1).amax(dim=1) == 1.0).sum() < 48, "some are lit and clamped, the others are darker"
    assert white.min() >= 2 * 0.5 - 1 - 1e-6
    black = random_view(torch.full((64, 1, 34, 34), -1.0), 4.0, 0.5, generator())
    torch.testing.assert_close(black, torch.full_like(black, -1.0), atol=1e-5, rtol=0)


def test_left_stays_left_and_up_stays_up() -> None:
    ramp = torch.linspace(-1, 1, 64)
    for image in (ramp.expand(32, 1, 64, 64), ramp[:, None].expand(32, 1, 64, 64)):
        view = random_view(image, 8.0, 0.2, generator())
        assert (view[:, 0, 0, 0] < view[:, 0, -1, -1]).all()


def test_crops_reach_every_side() -> None:
    """Of each side of some image something is cut off, and the kept part is as wide as it is high in share."""
    across = torch.linspace(-1, 1, 64).expand(128, 1, 64, 64)
    down = across.transpose(2, 3)
    views = [random_view(image, 8.0, 0.0, generator())[:, 0] for image in (across, down)]
    for first, last in ((views[0][:, 32, 0], views[0][:, 32, -1]), (views[1][:, 0, 32], views[1][:, -1, 32])):
        assert first.max() > -1 + 4 * 2 / 63
        assert last.min() < 1 - 4 * 2 / 63
    kept = [views[0][:, 32, -1] - views[0][:, 32, 0], views[1][:, -1, 32] - views[1][:, 0, 32]]
    torch.testing.assert_close(kept[0], kept[1], atol=0.01, rtol=0)


def test_same_generator_same_views() -> None:
    image = torch.rand(4, 1, 64, 64, generator=generator()) * 2 - 1
    settings = 8.0, 0.2
    first, again, other = (random_view(image, *settings, generator(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
