"""What networks are shown: several frames at once, and parts of the observation that are withheld."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from models.actor_critic import ActorCritic, ClonePolicy
from models.encoders.config import ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.iqn import IqnNetwork, IqnSizes, fixed_fractions
from models.torso import InputShape, Torso

CONV = ConvConfig(kind="conv", adaptive_pool=0)
ENCODERS: tuple[EncoderConfig, ...] = (
    CONV,
    ImpalaConfig(kind="impala", width=1, adaptive_pool=2, spectral_norm=False),
    PatchConfig(kind="patches", patch=8, width=16, depth=1, heads=2),
)
PLAIN = InputShape(40, 40, torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 1.0, 0.5]))
TAU = fixed_fractions(4)


def iqn(inputs: InputShape, encoder: EncoderConfig = CONV) -> IqnNetwork:
    return IqnNetwork(inputs, encoder, IqnSizes(8, 16, 4, embedding_at="hidden"), num_actions=3)


def outputs(kind: str, inputs: InputShape, encoder: EncoderConfig = CONV) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns what a fresh network makes of images and floats, in evaluation mode."""
    torch.manual_seed(0)
    if kind == "iqn":
        network = iqn(inputs, encoder).eval().requires_grad_(False)
        return lambda image, floats: network.advantages(image, floats, TAU)
    if kind == "ppo":
        critic = ActorCritic(inputs, encoder, 8, 16, 3).eval().requires_grad_(False)
        return lambda image, floats: torch.cat([critic(image, floats).outputs, critic(image, floats).value[:, None]], 1)
    return ClonePolicy(inputs, encoder, 8, 16, 3).eval().requires_grad_(False)


def seen(frames: int, num_rows: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (num_rows, frames, 40, 40), generator=generator, dtype=torch.uint8)
    return image, torch.randn(num_rows, 4, generator=generator)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("frames_as", ["channels", "features"])
def test_every_frame_and_its_place_count(frames_as: Literal["channels", "features"], encoder: EncoderConfig) -> None:
    kind = "ppo"
    network, (image, floats) = outputs(kind, PLAIN._replace(frames=3, frames_as=frames_as), encoder), seen(3)
    as_it_is = network(image, floats)
    assert as_it_is.shape == (5, 4 if kind == "ppo" else 3)
    for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1)):
        assert (network(image[:, order], floats) != as_it_is).any(dim=1).all()
    for frame in range(3):
        other = image.clone()
        other[:, frame] ^= 255
        assert (network(other, floats) != as_it_is).any(dim=1).all()


def test_features_side_by_side_are_those_of_each_frame() -> None:
    torch.manual_seed(0)
    torso = Torso(PLAIN._replace(frames=3, frames_as="features"), CONV, 8).eval()
    one = Torso(PLAIN, CONV, 8).eval()
    one.load_state_dict(torso.state_dict())  # the encoder is that of one frame
    image, _ = seen(3)
    expected = torch.cat([one.encode(image[:, [frame]]) for frame in range(3)], dim=1)
    torch.testing.assert_close(torso.encode(image), expected)
    assert torso.num_encoded == 3 * one.num_encoded


@pytest.mark.parametrize("kind", ["iqn", "ppo", "clone"])
def test_what_is_withheld_changes_nothing_and_the_rest_does(kind: str) -> None:
    """Floats; and the image."""
    is_withheld = torch.tensor([False, True, False, True])
    network, (image, floats) = outputs(kind, PLAIN._replace(withheld_floats=is_withheld)), seen(1)
    as_it_is = network(image, floats)
    assert torch.equal(network(image, floats + 1e3 * is_withheld), as_it_is)
    assert (network(image, floats + ~is_withheld) != as_it_is).any(dim=1).all()
    assert (network(image ^ 255, floats) != as_it_is).any(dim=1).all()
    network = outputs(kind, PLAIN._replace(shows_image=False))
    as_it_is = network(image, floats)
    assert torch.equal(network(image ^ 255, floats), as_it_is)
    assert (network(image, floats + 1.0) != as_it_is).any(dim=1).all()
