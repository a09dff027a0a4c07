"""Networks as ONNX Runtime computes them: float32 beside torch, int8 by hand and against plain sums of integers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.actor_critic import ActorCritic, ClonePolicy
from models.encoders.config import ConvConfig, EncoderConfig, ImpalaConfig
from models.fusion_config import ProjectedConfig
from models.iqn import EmbeddingPlace, IqnNetwork, IqnSizes, fixed_fractions
from models.prepared import (
    INPUT_SCALE,
    WEIGHT_SCALE,
    PreparedNetwork,
    can_prepare,
    dequantise,
    input_scales,
    quantise,
    quantised_weight,
)
from models.torso import ActingHead, InputShape
from rulka.machine.precision import has_instructions

CONV = ConvConfig(kind="conv", adaptive_pool=0)
SIZES = IqnSizes(16, 32, 8, embedding_at="hidden")
TAU = fixed_fractions(8)
NUM_FLOATS = 4
WITHHELD = torch.tensor([False, False, True, False])
CONVOLUTIONS = [f"encoder.layers.{index}" for index in (2, 4, 6)]
"""Those in int8: the first one is not."""
HIDDEN = {"policy": ["trunk.0", "trunk.2"], "iqn": ["advantage_head.0"]}

Network = ActorCritic | ClonePolicy | IqnNetwork


def network_for(kind: str, width: int = 36, encoder: EncoderConfig = CONV, sizes: IqnSizes = SIZES) -> Network:
    """A network whose biases are not zero, which would hide mistakes, with activations of unlike size."""
    torch.manual_seed(0)
    mean, std = torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.tensor([2.0, 1.0, 4.0, 0.5])
    inputs = InputShape(34, width, mean, std, withheld_floats=WITHHELD)
    network: Network
    if kind == "iqn":
        network = IqnNetwork(inputs, encoder, sizes, 3)
    else:
        network = (ClonePolicy if kind == "clone" else ActorCritic)(inputs, encoder, 16, 32, 3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter += 0.05 * torch.randn_like(parameter)
            if name == "policy_head.weight":  # decisions of a policy that has learned differ by more than its first
                parameter *= 10.0
    return network.eval().requires_grad_(False)


def views(num_cars: int, width: int = 36) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (num_cars, 1, 34, width), generator=generator, dtype=torch.uint8)
    return image, torch.randn(num_cars, NUM_FLOATS, generator=generator)


def head_of(network: Network) -> ActingHead:
    return network.acting_head(TAU) if isinstance(network, IqnNetwork) else network.acting_head()


def outputs_of(network: Network, image: Tensor, floats: Tensor) -> Tensor:
    if isinstance(network, IqnNetwork):
        return network.q_advantages(image, floats, TAU).flatten(1)
    if isinstance(network, ClonePolicy):
        return network(image, floats)
    return network(image, floats).outputs


@pytest.mark.parametrize(
    ("kind", "embedding_at"), [("iqn", "hidden"), ("iqn", "state"), ("policy", "hidden"), ("clone", "hidden")]
)
@pytest.mark.parametrize(("width", "num_cars"), [(34, 1), (35, 40)])
def test_prepared_outputs_are_the_networks(kind: str, embedding_at: EmbeddingPlace, width: int, num_cars: int, capfd):
    network, seen = network_for(kind, width, sizes=SIZES._replace(embedding_at=embedding_at)), views(num_cars, width)
    assert can_prepare(network)
    PreparedNetwork(network, head_of(network))(*seen)
    capfd.readouterr()  # what ONNX Runtime has to say of a machine it says once
    prepared = PreparedNetwork(network, head_of(network))
    assert not capfd.readouterr().err, "it would warn at every new version of the weights"
    torch.testing.assert_close(prepared(*seen), outputs_of(network, *seen), rtol=1e-5, atol=1e-5)
    image, floats = seen
    assert torch.equal(prepared(image, floats + 1e3 * WITHHELD), prepared(image, floats)), "as the network, see there"


@pytest.mark.parametrize(
    ("encoder", "sizes"),
    [
        (ImpalaConfig(kind="impala", width=1, adaptive_pool=0, spectral_norm=False), SIZES),
        (ConvConfig(kind="conv", adaptive_pool=1), SIZES),
        (ConvConfig(spectral_norm=True), SIZES),
        (CONV, SIZES._replace(layer_norm=True)),
        (CONV, SIZES._replace(noisy_sigma=0.5)),
        (CONV, SIZES._replace(fusion=ProjectedConfig(kind="projected"))),
    ],
)
def test_networks_with_extras_act_as_they_learn(encoder: EncoderConfig, sizes: IqnSizes):
    assert not can_prepare(network_for("iqn", encoder=encoder, sizes=sizes))
    plain = network_for("policy").inputs
    for inputs in (plain._replace(frames=2), plain._replace(shows_image=False)):
        assert not can_prepare(ActorCritic(inputs, CONV, 16, 32, 3))


def test_a_weight_by_hand():
    """Each channel's largest number is 127 steps; halves go to the even neighbour; a channel of zeros stays one."""
    weight = torch.tensor([[1.0, -2.0, 0.0], [0.5, 0.25, -0.125], [0.0, 0.0, 0.0]])
    steps, scale = quantised_weight(weight)
    assert steps.tolist() == [[64, -127, 0], [127, 64, -32], [0, 0, 0]]  # 63.5, and 63.5 and 31.75
    torch.testing.assert_close(scale, torch.tensor([2.0 / 127.0, 0.5 / 127.0, 1.0]))


def test_scales_reach_to_the_highest_input():
    network, (image, floats) = network_for("policy"), views(16)
    scales = input_scales(network, image, floats)
    assert list(scales) == CONVOLUTIONS + HIDDEN["policy"]
    first = functional.leaky_relu(network.encoder.convolutions()[0]((image.float() - 128) / 128), 0.01)
    torch.testing.assert_close(scales[CONVOLUTIONS[0]] * 255, first.max())
    state = network.state(image, floats)
    torch.testing.assert_close(scales["trunk.0"] * 255, state.max())
    torch.testing.assert_close(scales["trunk.2"] * 255, network.trunk[0](state).max())


def naive_int8(network: ActorCritic | IqnNetwork, published: Mapping[str, Tensor], seen: tuple[Tensor, Tensor]):
    """The same with integers one layer after the other, in float64, which holds all of these sums exactly."""
    (image, floats), hidden = seen, HIDDEN["iqn" if isinstance(network, IqnNetwork) else "policy"]

    def sums(name: str, steps: Tensor) -> Tensor:
        layer, weight = network.get_submodule(name), published[f"{name}.weight"].double()
        scale = published[name + WEIGHT_SCALE].double() * published[name + INPUT_SCALE].double()
        bias = (published[f"{name}.bias"].double() / scale).round()
        if isinstance(layer, nn.Conv2d):
            return functional.conv2d(steps, weight, bias, layer.stride) * scale[:, None, None]
        return functional.linear(steps, weight, bias) * scale

    def rounded(values: Tensor, name: str) -> Tensor:
        return (values / published[name + INPUT_SCALE].double()).round().clamp(0, 255)

    steps = rounded(network.encoder.convolutions()[0]((image.float() - 128) / 128).double(), CONVOLUTIONS[0])
    for name, following in zip(CONVOLUTIONS, [*CONVOLUTIONS[1:], hidden[0]], strict=True):
        steps = rounded(sums(name, steps), following)
    head = network.float_head((floats - network.float_mean) / network.float_std * network.float_shown)
    steps = torch.cat([steps.flatten(1), rounded(head.double(), hidden[0])], dim=1)
    for name, following in pairwise(hidden):
        steps = rounded(sums(name, steps), following)
    values = sums(hidden[-1], steps).float()
    if isinstance(network, ActorCritic):
        return network.policy_head(values.relu())
    return network.output_layers()[0](functional.leaky_relu(values, 0.01) * network.acting_factors(TAU))


@pytest.mark.skipif(not has_instructions("int8"), reason="sums would saturate")
@pytest.mark.parametrize("kind", ["policy", "iqn"])
@pytest.mark.parametrize(("width", "num_cars"), [(34, 1), (35, 40)])
def test_onnx_runtime_sums_the_same_integers(kind: str, width: int, num_cars: int):
    network, seen = network_for(kind, width), views(num_cars, width)
    published = quantise(network.state_dict(), input_scales(network, *views(16, width)))
    tensors, scales = dequantise(published)
    network.load_state_dict(tensors)
    expected = naive_int8(network, published, seen)
    # A sum in the middle between two integers may go either way, which is a step of one activation.
    found = PreparedNetwork(network, head_of(network), scales)(*seen)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * float(expected.std()) + 1e-4)
    assert not torch.allclose(found, outputs_of(network, *seen), rtol=0, atol=1e-5), "in integers at all"
