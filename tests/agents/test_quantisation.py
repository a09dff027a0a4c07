"""Versions in fewer bits, and acting with them: int8 by hand, against plain integer sums, and against float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.actor_critic import ActorCritic
from models.encoders.config import ConvConfig
from models.int8_acting import (
    FLOATS_SCALE,
    activation_scales,
    dequantised,
    int8_layers,
    quantised,
    quantised_weight,
    scale_name,
)
from models.iqn import IqnNetwork, IqnSizes, fixed_fractions
from models.torso import InputShape
from rulka.agents import iqn_actor, policy_actor, quantisation
from rulka.agents.algorithms import make_actor
from rulka.agents.int8 import AddOutputs, Int8Network
from rulka.agents.quantisation import ActingPrecisionError, check_acting_precision, make_quantiser
from rulka.agents.spec import AgentError
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.device import CPU

CONV = ConvConfig(kind="conv", adaptive_pool=0)
TAU = fixed_fractions(8)
NUM_FLOATS = 4


def network_for(kind: str, width: int = 36) -> ActorCritic | IqnNetwork:
    """A network whose biases are not zero, which would hide mistakes, with activations of unlike size."""
    torch.manual_seed(0)
    mean, std = torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.tensor([2.0, 1.0, 4.0, 0.5])
    withheld = torch.tensor([False, False, True, False])
    inputs = InputShape(34, width, mean, std, withheld_floats=withheld)
    if kind == "policy":
        network: ActorCritic | IqnNetwork = ActorCritic(inputs, CONV, 16, 32, 3)
    else:
        network = IqnNetwork(inputs, CONV, IqnSizes(16, 32, 8, embedding_at="hidden"), 3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter += 0.05 * torch.randn_like(parameter)
            if name == "float_head.2.weight":
                parameter *= 3.0
            if name == "policy_head.weight":  # decisions of a policy that has learned differ by more than its first
                parameter *= 10.0
    return network.eval().requires_grad_(False)


def views(num_cars: int, width: int = 36) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (num_cars, 1, 34, width), generator=generator, dtype=torch.uint8)
    return image, torch.randn(num_cars, NUM_FLOATS, generator=generator)


def published_of(network: ActorCritic | IqnNetwork, seen: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    layers = int8_layers(network)
    assert layers is not None
    scales = activation_scales(network, layers, *seen)
    return quantised(network.state_dict(), layers, network.num_encoded, scales)


def test_a_weight_by_hand() -> None:
    """Each channel's largest number is 127 steps; halves go to the even neighbour; a channel of zeros stays one."""
    weight = torch.tensor([[1.0, -2.0, 0.0], [0.5, 0.25, -0.125], [0.0, 0.0, 0.0]])
    steps, scale = quantised_weight(weight)
    assert steps.tolist() == [[64, -127, 0], [127, 64, -32], [0, 0, 0]]  # 63.5, and 63.5 and 31.75
    torch.testing.assert_close(scale, torch.tensor([2.0 / 127.0, 0.5 / 127.0, 1.0]))


def test_scales_reach_to_the_highest_activation() -> None:
    network, seen = network_for("policy"), views(16)
    layers = int8_layers(network)
    assert layers is not None
    scales = activation_scales(network, layers, *seen)
    assert set(scales) == {
        *(scale_name(name) for name in ("encoder.layers.2", "encoder.layers.4", "encoder.layers.6")),
        *(scale_name(name) for name in ("trunk.0", "trunk.2")),
        FLOATS_SCALE,
    }
    features = network.encode(seen[0])
    torch.testing.assert_close(scales[scale_name("trunk.0")] * 255, features.max())
    hidden = torch.relu(network.trunk[0](network.join(features, seen[1])))
    torch.testing.assert_close(scales[scale_name("trunk.2")] * 255, hidden.max())


@pytest.mark.parametrize("kind", ["policy", "iqn"])
def test_weights_come_back_within_half_a_step(kind: str) -> None:
    network = network_for(kind)
    layers, published, before = int8_layers(network), published_of(network, views(16)), network.state_dict()
    assert layers is not None
    back = dequantised(published, layers, network.num_encoded)
    assert set(back) == set(before)
    for name, tensor in before.items():
        layer = name.removesuffix(".weight")
        if layer in (*layers.convolutions, *layers.hidden, *layers.stored) and name.endswith(".weight"):
            assert published[name].dtype == torch.int8
            scale = published[f"{layer}.weight_scale"]
            ratio = torch.ones_like(tensor)
            if layer == layers.hidden[0]:
                ratio[:, network.num_encoded :] = published[scale_name(layer)] / published[FLOATS_SCALE]
            steps = (back[name] - tensor).abs() / (scale.view(-1, *(1,) * (tensor.dim() - 1)) * ratio)
            assert float(steps.max()) < 0.501
            assert float(steps.max()) > 0.3, "weights were rounded at all"
        else:
            torch.testing.assert_close(back[name], tensor, rtol=0, atol=0)


def naive_int8(
    network: ActorCritic | IqnNetwork, published: Mapping[str, Tensor], seen: tuple[Tensor, Tensor]
) -> Tensor:
    """The same with integers one layer after the other, in float64, which holds all of these sums exactly."""
    layers = int8_layers(network)
    assert layers is not None
    image, floats = seen

    def weight(name: str) -> tuple[Tensor, Tensor]:
        return published[f"{name}.weight"].double(), published[f"{name}.weight_scale"].double()

    def bias(name: str, scale: Tensor) -> Tensor:
        return (published[f"{name}.bias"].double() / scale).round()

    def rounded(values: Tensor, scale: Tensor) -> Tensor:
        return (values / scale).round().clamp(0, 255)

    activations, scale = image.double() - 128, torch.tensor(1 / 128, dtype=torch.float64)
    following = [published[scale_name(name)].double() for name in (*layers.convolutions[1:], *layers.hidden)]
    for name, after in zip(layers.convolutions, following, strict=False):
        steps, of_weight = weight(name)
        both, layer = scale * of_weight, network.get_submodule(name)
        sums = nn.functional.conv2d(activations, steps, bias(name, both), layer.stride)
        activations, scale = rounded(sums * both[:, None, None], after), after
    head = network.float_head((floats - network.float_mean) / network.float_std * network.float_shown)
    state = torch.cat([activations.flatten(1), rounded(head.double(), published[FLOATS_SCALE].double())], dim=1)
    for index, name in enumerate(layers.hidden):
        steps, of_weight = weight(name)
        both = scale * of_weight
        values = nn.functional.linear(state, steps, bias(name, both)) * both
        if index + 1 < len(layers.hidden):
            scale = following[len(layers.convolutions) + index]
            state = rounded(values, scale)
    values = values.float()
    if isinstance(network, ActorCritic):
        hidden = values.relu()
        return torch.cat([network.policy_head(hidden), network.value_head(hidden)], dim=1)
    units = nn.functional.leaky_relu(values, 0.01) * network.of_advantage(network.embed(TAU)).mean(dim=0)
    return network.output_layers()[0](units)


def need_int8() -> None:
    """Skips where sums would saturate."""
    try:
        check_acting_precision("int8", CPU)
    except ActingPrecisionError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", ["policy", "iqn"])
@pytest.mark.parametrize(("width", "num_cars"), [(34, 1), (35, 3), (36, 1), (36, 40), (64, 5), (128, 2)])
def test_onnx_runtime_sums_the_same_integers(kind: str, width: int, num_cars: int) -> None:
    """Widths of four times a number take four pixels at once, others do not."""
    need_int8()
    network, seen = network_for(kind, width), views(num_cars, width)
    published = published_of(network, views(16, width))
    int8 = Int8Network(network, outputs_of(network))
    int8.load(published)
    expected = naive_int8(network, published, seen)
    # A sum in the middle between two integers may go either way, which is a step of one activation.
    torch.testing.assert_close(int8(*seen), expected, rtol=0, atol=0.02 * float(expected.std()) + 1e-4)


def outputs_of(network: ActorCritic | IqnNetwork) -> AddOutputs:
    if isinstance(network, ActorCritic):
        return partial(policy_actor.int8_outputs, network)
    return partial(iqn_actor.int8_outputs, network, TAU)


def block_of(num_cars: int, seed: int = 0) -> ExperienceBlock:
    block = new_block(BlockSpec(4, num_cars, 34, 34, NUM_FLOATS))
    rng = np.random.default_rng(seed)
    block.image[...] = rng.integers(0, 256, block.image.shape)
    block.floats[...] = rng.standard_normal(block.floats.shape)
    return block


@pytest.mark.parametrize(("algorithm", "least"), [("ppo", 0.97), ("iqn", 0.9)])
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_actors_take_what_is_published_and_mostly_act_alike(lab, algorithm: str, precision, least: float) -> None:
    """Of networks that have learned nothing: differences between actions are as small as they get."""
    if precision == "int8":
        need_int8()
    spec = lab.spec(algorithm, {"embedding_at": "hidden"} if algorithm == "iqn" else {})
    exact = make_actor(replace(spec, precision="float32"), seed=0)
    actor = make_actor(replace(spec, precision="float32", acting_precision=precision), seed=0)
    quantiser = make_quantiser(exact.network, precision)
    quantiser.observe(block_of(20))
    actor.load_network(quantiser.quantise(0, exact.network.state_dict()))
    block = block_of(200, 1)
    image, floats = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
    full, low = (each.act(image, floats, explore=False) for each in (exact, actor))
    assert (full.action == low.action).mean() >= least
    values = [each.action_values(image, floats).value for each in (exact, actor)]
    assert np.abs(values[0] - values[1]).max() > 0, "computed in something else"
    np.testing.assert_array_equal(values[1].argmax(axis=1), low.action)


def test_float32_is_handed_on_untouched(lab) -> None:
    network = make_actor(lab.spec("ppo"), seed=0).network
    tensors = network.state_dict()
    for precision in (None, "float32"):
        published = make_quantiser(network, precision).quantise(3, tensors)
        assert all(published[name] is tensor for name, tensor in tensors.items())


def test_a_version_in_half_the_bits_keeps_output_layers_exact(lab) -> None:
    network = make_actor(lab.spec("ppo"), seed=0).network
    published = make_quantiser(network, "bfloat16").quantise(0, network.state_dict())
    exact = {name for name, tensor in published.items() if tensor.dtype == torch.float32}
    heads = {f"{head}.{kind}" for head in ("policy_head", "value_head") for kind in ("weight", "bias")}
    assert exact == heads | {"float_mean", "float_std"}


def test_scales_follow_recent_frames_and_stay_for_a_version(lab) -> None:
    network = make_actor(lab.spec("ppo"), seed=0).network
    tensors = network.state_dict()
    quantiser = make_quantiser(network, "int8")
    assert quantiser.needs_frames
    quantiser.observe(block_of(20))
    assert not quantiser.needs_frames
    before = quantiser.quantise(0, tensors)[FLOATS_SCALE]
    far = block_of(20)
    far.floats[...] *= 10.0
    quantiser.observe(far)
    assert quantiser.quantise(0, tensors)[FLOATS_SCALE] == before, "the same version"
    other = make_quantiser(network, "int8")
    other.load_state_dict(quantiser.state_dict())
    after = quantiser.quantise(1, tensors)[FLOATS_SCALE]
    assert after > 3 * before
    assert other.quantise(0, tensors)[FLOATS_SCALE] == before, "a run that goes on publishes the same again"
    assert other.quantise(1, tensors)[FLOATS_SCALE] == after
    for _ in range(quantisation.BLOCKS_KEPT):
        quantiser.observe(block_of(20))
    # What was seen long ago is forgotten; the sums over more frames at once have other last bits.
    torch.testing.assert_close(quantiser.quantise(2, tensors)[FLOATS_SCALE], before)


def test_the_log_probability_is_that_of_the_quantised_policy(lab) -> None:
    """It is what on-policy algorithms divide by: that of the policy which took the action."""
    pytest.importorskip("onnxruntime")
    spec = replace(lab.spec("ppo"), precision="float32")
    actor, other = (make_actor(replace(spec, acting_precision="int8"), seed=seed) for seed in (0, 1))
    network = make_actor(spec, seed=2).network
    assert isinstance(network, ActorCritic)
    network.policy_head.weight *= 100.0
    quantiser = make_quantiser(network, "int8")
    quantiser.observe(block_of(20))
    published = quantiser.quantise(0, network.state_dict())
    acting = Int8Network(other.network, outputs_of(other.network))
    acting.load(published)
    block = block_of(50, 1)
    seen = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
    probability = acting(*seen)[:, :3].log_softmax(dim=1).numpy()
    in_float32 = network(*seen).outputs.log_softmax(dim=1).numpy()
    actor.load_network(published)
    decision = actor.act(*seen, explore=True)
    taken = np.arange(50), decision.action
    np.testing.assert_allclose(decision.log_prob, probability[taken], atol=1e-6)
    assert np.abs(decision.log_prob - in_float32[taken]).max() > 1e-4


@pytest.mark.parametrize(
    ("precision", "able", "device", "onnx", "words"),
    [
        ("int8", set(), CPU, True, "avx512_vnni, avx_vnni, amx_int8, dot"),
        ("int8", {"avx_vnni"}, CPU, False, "pip install 'rulka[onnx]'"),
        ("int8", {"avx_vnni"}, torch.device("cuda", 0), True, "int8 runs on processors alone: actors are on cuda:0"),
        ("float16", {"avx512_bf16"}, CPU, True, "avx512_fp16"),
        ("bfloat16", {"avx512_vnni"}, CPU, True, "avx512_bf16"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(monkeypatch, precision, able, device, onnx, words) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(able, True))
    monkeypatch.setattr(quantisation, "has_onnx", lambda: onnx)
    with pytest.raises(ActingPrecisionError, match=f"train.acting_precision is {precision}") as error:
        check_acting_precision(precision, device)
    assert words in str(error.value)
    assert "Set it to float32" in error.value.hint
    if able == {"avx512_bf16"}:
        assert "bfloat16" in error.value.hint, "what it can"


@pytest.mark.parametrize("precision", [None, "float32"])
def test_float32_is_never_refused(monkeypatch, precision) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    check_acting_precision(precision, CPU)


def test_networks_of_another_kind_are_refused(lab) -> None:
    with pytest.raises(AgentError, match="cannot act in int8") as error:
        make_actor(replace(lab.spec("iqn", {"layer_norm": True}), acting_precision="int8"), seed=0)
    assert "bfloat16" in error.value.hint
