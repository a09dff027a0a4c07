"""Versions in fewer bits, and acting with them; int8 itself is in `tests/models/test_prepared.py`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_actor
from rulka.agents.shared import quantisation
from rulka.agents.shared.quantisation import ActingPrecisionError, Quantiser, check_acting_precision
from rulka.agents.shared.spec import AgentError
from rulka.buffers.experience import BlockSpec, ExperienceBlock, new_block
from rulka.machine.device import CPU
from tests.agents.conftest import small_spec

NUM_FLOATS = 4
FIRST_HIDDEN = "trunk.0.input_scale"


def need_int8() -> None:
    """Skips where sums would saturate."""
    try:
        check_acting_precision("int8", CPU)
    except ActingPrecisionError as error:
        pytest.skip(str(error))


def block_of(num_cars: int, seed: int = 0) -> ExperienceBlock:
    block = new_block(BlockSpec(4, num_cars, 34, 34, NUM_FLOATS))
    rng = np.random.default_rng(seed)
    block.image[...] = rng.integers(0, 256, block.image.shape)
    block.floats[...] = rng.standard_normal(block.floats.shape)
    return block


@pytest.mark.parametrize(("algorithm", "least"), [("ppo", 0.97), ("iqn", 0.9)])
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_actors_take_what_is_published_and_mostly_act_alike(algorithm: str, precision, least: float) -> None:
    """Of networks that have learned nothing: differences between actions are as small as they get."""
    if precision == "int8":
        need_int8()
    spec = small_spec(algorithm, {"embedding_at": "hidden"} if algorithm == "iqn" else {})
    exact = make_actor(replace(spec, precision="float32"), seed=0)
    actor = make_actor(replace(spec, precision="float32", acting_precision=precision), seed=0)
    for size in (100.0, 1.0):  # the scales of an earlier version, of other frames, are gone
        quantiser, seen = Quantiser(exact.network, precision), block_of(20)
        seen.floats[...] *= size
        quantiser.observe(seen)
        actor.load_network(quantiser.quantise(0, exact.network.state_dict()))
    block = block_of(200, 1)
    image, floats = torch.from_numpy(block.image[0]), torch.from_numpy(block.floats[0])
    full, low = (each.act(image, floats, explore=False) for each in (exact, actor))
    assert (full.for_environment == low.for_environment).mean() >= least
    values = [each.action_values(image, floats).value for each in (exact, actor)]
    assert np.abs(values[0] - values[1]).max() > 0, "computed in something else"
    np.testing.assert_array_equal(values[1].argmax(axis=1), low.for_environment)
    if algorithm == "ppo":  # what on-policy algorithms divide by is that of the policy which took the action
        drawn = actor.act(image, floats, explore=True)
        np.testing.assert_allclose(np.exp(drawn.log_prob), values[1][np.arange(200), drawn.for_environment], rtol=1e-5)


def test_float32_is_handed_on_untouched() -> None:
    network = make_actor(small_spec("ppo"), seed=0).network
    tensors = network.state_dict()
    for precision in (None, "float32"):
        published = Quantiser(network, precision).quantise(3, tensors)
        assert all(published[name] is tensor for name, tensor in tensors.items())


def test_a_version_in_half_the_bits_keeps_output_layers_exact() -> None:
    network = make_actor(small_spec("ppo"), seed=0).network
    published = Quantiser(network, "bfloat16").quantise(0, network.state_dict())
    exact = {name for name, tensor in published.items() if tensor.dtype == torch.float32}
    heads = {f"{head}.{kind}" for head in ("policy_head", "value_head") for kind in ("weight", "bias")}
    assert exact == heads | {"float_mean", "float_std"}


def test_scales_follow_recent_frames_and_stay_for_a_version() -> None:
    network = make_actor(small_spec("ppo"), seed=0).network
    tensors = network.state_dict()
    quantiser = Quantiser(network, "int8")
    assert quantiser.needs_frames
    quantiser.observe(block_of(20))
    assert not quantiser.needs_frames
    before = quantiser.quantise(0, tensors)[FIRST_HIDDEN]
    far = block_of(20)
    far.floats[...] *= 10.0
    quantiser.observe(far)
    assert quantiser.quantise(0, tensors)[FIRST_HIDDEN] == before, "the same version"
    other = Quantiser(network, "int8")
    other.load_state_dict(quantiser.state_dict())
    after = quantiser.quantise(1, tensors)[FIRST_HIDDEN]
    assert after > 3 * before
    assert other.quantise(0, tensors)[FIRST_HIDDEN] == before, "a run that goes on publishes the same again"
    assert other.quantise(1, tensors)[FIRST_HIDDEN] == after
    for _ in range(quantisation.BLOCKS_KEPT):
        quantiser.observe(block_of(20))
    # What was seen long ago is forgotten; the sums over more frames at once have other last bits.
    torch.testing.assert_close(quantiser.quantise(2, tensors)[FIRST_HIDDEN], before)


@pytest.mark.parametrize(
    ("precision", "able", "device", "words"),
    [
        ("int8", set(), CPU, "avx512_vnni, avx_vnni, amx_int8, dot"),
        ("int8", {"avx_vnni"}, torch.device("cuda", 0), "int8 runs on processors alone: actors are on cuda:0"),
        ("float16", {"avx512_bf16"}, CPU, "avx512_fp16"),
        ("bfloat16", {"avx512_vnni"}, CPU, "avx512_bf16"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(monkeypatch, precision, able, device, words) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(able, True))
    with pytest.raises(ActingPrecisionError, match=f"train.acting_precision is {precision}") as error:
        check_acting_precision(precision, device)
    assert words in str(error.value)
    assert "Set it to float32" in error.value.hint
    if able == {"avx512_bf16"}:
        assert "bfloat16" in error.value.hint, "what it can"


def test_networks_of_another_kind_are_refused() -> None:
    with pytest.raises(AgentError, match="cannot act in int8") as error:
        make_actor(replace(small_spec("iqn", {"layer_norm": True}), acting_precision="int8"), seed=0)
    assert "bfloat16" in error.value.hint
