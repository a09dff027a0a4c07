"""The objectives of Level 0 can each be learned, and draw only from the generator they are given."""

from __future__ import annotations

import pytest
import torch

from models.encoder import normalise_image
from rulka.losses.contrastive import nt_xent_loss
from rulka.losses.reconstruction import reconstruction_loss
from rulka.pretraining.augmentation import Augmentation
from rulka.pretraining.objectives import ObjectiveSettings, Task, build_objective

SETTINGS = ObjectiveSettings(
    vae_latent=16, kl_weight=0.001, projection=32, temperature=0.5, augmentation=Augmentation(8.0, 0.2)
)
TASKS: tuple[Task, ...] = ("autoencoder", "vae", "simclr")


def frames(num_frames: int = 8) -> torch.Tensor:
    """Frames with a bright square somewhere."""
    generator = torch.Generator().manual_seed(0)
    image = torch.full((num_frames, 1, 64, 64), 40, dtype=torch.uint8)
    for number, (row, column) in enumerate(torch.randint(0, 48, (num_frames, 2), generator=generator).tolist()):
        image[number, 0, row : row + 16, column : column + 16] = 230
    return image


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_falls(task: Task) -> None:
    torch.manual_seed(0)
    objective = build_objective(task, 64, 64, SETTINGS)
    optimizer = torch.optim.Adam(objective.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(25):
        loss = objective.loss(frames(), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("task", TASKS)
def test_same_generator_same_loss(task: Task) -> None:
    torch.manual_seed(0)
    objective = build_objective(task, 64, 64, SETTINGS)
    first, again, other = (objective.loss(frames(), torch.Generator().manual_seed(seed)).item() for seed in (1, 1, 2))
    assert first == again
    assert (first != other) == (task != "autoencoder")


@pytest.mark.parametrize("task", TASKS)
def test_previews_are_images(task: Task) -> None:
    objective = build_objective(task, 64, 64, SETTINGS)
    shown = objective.preview(frames(), torch.Generator().manual_seed(0))
    assert shown.shape == (8, 1, 64, 64)
    assert shown.abs().max() <= 1.0


def test_losses_are_those_of_the_losses_room() -> None:
    autoencoder = build_objective("autoencoder", 64, 64, SETTINGS)
    generator = torch.Generator().manual_seed(0)
    expected = reconstruction_loss(normalise_image(frames(), torch.float32), autoencoder.preview(frames(), generator))
    torch.testing.assert_close(autoencoder.loss(frames(), generator), expected)
    simclr = build_objective("simclr", 64, 64, SETTINGS)
    first = torch.Generator().manual_seed(4)
    views = [simclr.preview(frames(), first) for _ in range(2)]
    projections = [simclr.get_submodule("projector")(simclr.encoder(view)) for view in views]
    expected = nt_xent_loss(projections[0], projections[1], SETTINGS.temperature)
    torch.testing.assert_close(simclr.loss(frames(), torch.Generator().manual_seed(4)), expected)
