"""IQN, actor-critic and cloned policy: sizes, names, formulas, precision, and what they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from models.actor_critic import ActorCritic, ClonePolicy
from models.encoders.config import ConvConfig, EncoderConfig, ImpalaConfig, PatchConfig
from models.iqn import (
    NUM_CLONED_FRACTIONS,
    ClonedIqn,
    EmbeddingPlace,
    IqnNetwork,
    IqnSizes,
    draw_fractions,
    fixed_fractions,
)
from models.torso import InputShape, Torso

CONV = ConvConfig(kind="conv", adaptive_pool=0)
ENCODERS: tuple[EncoderConfig, ...] = (
    CONV,
    ImpalaConfig(kind="impala", width=1, adaptive_pool=2, spectral_norm=False),
    PatchConfig(kind="patches", patch=8, width=16, depth=1, heads=2),
)
PLAIN = InputShape(40, 40, torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 1.0, 0.5]))
SIZES = IqnSizes(8, 16, 4)


def seen(frames: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (5, frames, 40, 40), generator=generator, dtype=torch.uint8)
    return image, torch.randn(5, 4, generator=generator)


@pytest.mark.parametrize(
    ("height", "width", "embedding", "expected"),
    [(64, 64, 128, 1_051_805), (128, 128, 128, 5_774_493), (128, 128, 256, 6_397_085), (120, 160, 64, 6_578_333)],
)
def test_parameter_counts_of_iqn(height: int, width: int, embedding: int, expected: int):
    inputs = InputShape(height, width, torch.zeros(184), torch.ones(184))
    network = IqnNetwork(inputs, CONV, IqnSizes(256, 1024, embedding), 12)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize("embedding_at", ["state", "hidden"])
def test_fractions_may_be_those_of_all_rows(embedding_at: EmbeddingPlace):
    torch.manual_seed(0)
    network, (image, floats) = IqnNetwork(PLAIN, CONV, SIZES._replace(embedding_at=embedding_at), 3), seen()
    tau, action = torch.rand(4), torch.tensor([0, 1, 2, 0, 1])[:, None]
    expected = network(image, floats, tau.expand(5, -1))
    torch.testing.assert_close(network(image, floats, tau), expected)
    expected = expected.gather(3, action[:, None, :, None].expand(-1, 4, -1, 1))[..., 0, 0]
    for shown in (image, network.encode(image)):
        for fractions in (tau, tau.expand(5, -1)):
            found = network.quantiles_of_action(shown, floats, fractions, action)
            torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = network.quantiles_of_action(image, floats, tau, action)
        torch.testing.assert_close(
            rounded, network.quantiles_of_action(image, floats, tau.expand(5, -1), action), rtol=0.02, atol=0.02
        )


@pytest.mark.parametrize("num_fractions", [2, 8, 32])
def test_drawn_fractions_are_stratified_and_mirrored(num_fractions: int):
    tau = draw_fractions(500, num_fractions, torch.Generator().manual_seed(0))
    half = num_fractions // 2
    assert tau.shape == (500, num_fractions)
    assert torch.equal(tau[:, half:], 1 - tau[:, :half])
    stratum = torch.arange(half)
    assert bool((tau[:, :half] * num_fractions >= stratum).all())
    assert bool((tau[:, :half] * num_fractions <= stratum + 1).all())
    torch.testing.assert_close(tau.double().mean(dim=1), torch.full((500,), 0.5).double(), rtol=0, atol=1e-7)
    assert float(tau[:, 0].std()) == pytest.approx(1 / num_fractions / math.sqrt(12), rel=0.1)


def test_fixed_fractions_are_the_middles():
    assert sorted(fixed_fractions(4).tolist()) == [0.125, 0.375, 0.625, 0.875]
    assert float(fixed_fractions(32).mean()) == 0.5


def test_state_dict_keys_are_frozen():
    """Artifacts on disk carry these names."""
    body = ["float_mean", "float_std"]
    body += [f"encoder.layers.{i}.{kind}" for i in (0, 2, 4, 6) for kind in ("weight", "bias")]
    body += [f"float_head.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    trunk = [f"trunk.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    policy, value = (["policy_head.weight", "policy_head.bias"], ["value_head.weight", "value_head.bias"])
    assert list(ClonePolicy(PLAIN, CONV, 8, 16, 3).state_dict()) == body + trunk + policy
    assert list(ActorCritic(PLAIN, CONV, 8, 16, 3).state_dict()) == body + trunk + policy + value
    heads = ["tau_embed.0.weight", "tau_embed.0.bias"]
    heads += [f"{h}_head.{i}.{kind}" for h in ("advantage", "value") for i in (0, 2) for kind in ("weight", "bias")]
    assert list(IqnNetwork(PLAIN, CONV, SIZES, 3).state_dict()) == body + heads


@pytest.mark.parametrize("embedding_at", ["hidden", "state"])
def test_a_cloned_iqn_is_iqns_network_and_its_logits_its_mean_values(embedding_at: EmbeddingPlace) -> None:
    """To a number for each row, which a softmax does not know, and which the value head gives: it learns nothing."""
    sizes, (image, floats) = SIZES._replace(embedding_at=embedding_at), seen()
    cloned, iqn = ClonedIqn(PLAIN, CONV, sizes, 3), IqnNetwork(PLAIN, CONV, sizes, 3)
    iqn.load_state_dict(cloned.state_dict())
    logits = cloned.decide(cloned.encode(image), floats)
    values = iqn(image, floats, fixed_fractions(NUM_CLONED_FRACTIONS)).mean(dim=1)[:, 0]
    torch.testing.assert_close(logits.log_softmax(dim=1), values.log_softmax(dim=1))
    assert torch.equal(logits, iqn.q_advantages(image, floats, fixed_fractions(NUM_CLONED_FRACTIONS))[:, 0])
    functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0, 1])).backward()
    learns = {name.split(".")[0] for name, weight in cloned.named_parameters() if weight.grad is not None}
    assert learns == {"encoder", "float_head", "tau_embed", "advantage_head"}
    assert cloned.hidden(cloned.encode(image), floats).shape == (5, cloned.num_hidden)


def outputs(kind: str, inputs: InputShape, encoder: EncoderConfig = CONV) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns what a fresh network makes of images and floats, in evaluation mode."""
    torch.manual_seed(0)
    if kind == "iqn":
        network = IqnNetwork(inputs, encoder, SIZES, 3).eval().requires_grad_(False)
        return lambda image, floats: network.q_advantages(image, floats, fixed_fractions(4))[:, 0]
    if kind == "ppo":
        critic = ActorCritic(inputs, encoder, 8, 16, 3).eval().requires_grad_(False)
        return lambda image, floats: torch.cat([critic(image, floats).outputs, critic(image, floats).value[:, None]], 1)
    return ClonePolicy(inputs, encoder, 8, 16, 3).eval().requires_grad_(False)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("frames_as", ["channels", "features"])
def test_every_frame_and_its_place_count(frames_as: Literal["channels", "features"], encoder: EncoderConfig) -> None:
    network, (image, floats) = outputs("ppo", PLAIN._replace(frames=3, frames_as=frames_as), encoder), seen(3)
    as_it_is = network(image, floats)
    assert as_it_is.shape == (5, 4)
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
    network, (image, floats) = outputs(kind, PLAIN._replace(withheld_floats=is_withheld)), seen()
    as_it_is = network(image, floats)
    assert torch.equal(network(image, floats + 1e3 * is_withheld), as_it_is)
    assert (network(image, floats + ~is_withheld) != as_it_is).any(dim=1).all()
    assert (network(image ^ 255, floats) != as_it_is).any(dim=1).all()
    network = outputs(kind, PLAIN._replace(shows_image=False))
    as_it_is = network(image, floats)
    assert torch.equal(network(image ^ 255, floats), as_it_is)
    assert (network(image, floats + 1.0) != as_it_is).any(dim=1).all()
