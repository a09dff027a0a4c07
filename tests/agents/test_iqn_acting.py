"""The fast ways to compute an actor's advantages against the network itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.encoders.config import ConvConfig, EncoderConfig, ImpalaConfig
from models.iqn import IqnNetwork, IqnSizes, fixed_fractions
from models.iqn_acting import PreparedAdvantages, can_prepare
from models.layers import KERNEL_DTYPES
from models.torso import InputShape
from rulka.agents import iqn_engines as engines
from rulka.agents.algorithms import make_actor
from rulka.agents.iqn_onnx import OnnxAdvantages

CONV = ConvConfig(kind="conv", adaptive_pool=0)
PLAIN = IqnSizes(16, 32, 8)
TAU = fixed_fractions(8)


def network_for(width: int = 34, encoder: EncoderConfig = CONV, sizes: IqnSizes = PLAIN) -> IqnNetwork:
    torch.manual_seed(0)
    inputs = InputShape(34, width, torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.tensor([2.0, 1.0, 4.0, 0.5]))
    network = IqnNetwork(inputs, encoder, sizes, 3)
    with torch.no_grad():
        for parameter in network.parameters():  # biases start at 0, which would hide mistakes
            parameter += 0.05 * torch.randn_like(parameter)
    return network.eval().requires_grad_(False)


def views(num_cars: int, width: int = 34) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (num_cars, 1, 34, width), generator=generator, dtype=torch.uint8)
    return image, torch.randn(num_cars, 4, generator=generator)


@pytest.mark.parametrize("sizes", [PLAIN, PLAIN._replace(embedding_at="hidden")])
@pytest.mark.parametrize("width", [34, 35])
@pytest.mark.parametrize("num_cars", [1, 40])
def test_prepared_advantages_are_the_networks(width: int, num_cars: int, sizes: IqnSizes):
    """An odd width cannot be folded into channels."""
    network, observed = network_for(width, sizes=sizes), views(num_cars, width)
    expected = network.advantages(*observed, TAU)
    torch.testing.assert_close(
        PreparedAdvantages(network, TAU, torch.float32)(*observed), expected, rtol=1e-5, atol=1e-6
    )
    if torch.bfloat16 not in KERNEL_DTYPES:
        return
    rounded = PreparedAdvantages(network, TAU, torch.bfloat16)(*observed)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, expected, rtol=0, atol=0.02 * float(expected.std()) + 0.01)


@pytest.mark.parametrize("sizes", [PLAIN, PLAIN._replace(embedding_at="hidden")])
@pytest.mark.parametrize("num_cars", [1, 40])
def test_onnx_runtime_agrees(num_cars: int, sizes: IqnSizes, capfd: pytest.CaptureFixture[str]):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    network, observed = network_for(sizes=sizes), views(num_cars)
    OnnxAdvantages(network, TAU)(*observed)
    capfd.readouterr()  # what ONNX Runtime has to say of a machine it says once
    advantage = OnnxAdvantages(network, TAU)(*observed)
    assert not capfd.readouterr().err, "it would warn at every new version of the weights"
    torch.testing.assert_close(advantage, network.advantages(*observed, TAU), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("encoder", "sizes"),
    [
        (ImpalaConfig(kind="impala", width=1, adaptive_pool=0, spectral_norm=False), PLAIN),
        (ConvConfig(kind="conv", adaptive_pool=1), PLAIN),
        (CONV, PLAIN._replace(layer_norm=True)),
        (CONV, PLAIN._replace(noisy_sigma=0.5)),
    ],
)
def test_networks_with_extras_are_left_alone(encoder: EncoderConfig, sizes: IqnSizes):
    assert not can_prepare(network_for(encoder=encoder, sizes=sizes))
    assert can_prepare(network_for())


def test_new_weights_count_from_the_next_decision_on(lab):
    for precision in ("float32", "bfloat16", "measured"):
        spec = replace(lab.spec("iqn"), precision=precision)
        actor, other = make_actor(spec, seed=0), make_actor(spec, seed=5)
        observed = views(50)
        before = actor.act(*observed, explore=False).action
        actor.load_network(other.network.state_dict())
        after = actor.act(*observed, explore=False).action
        expected = other.network.advantages(*observed, TAU).argmax(dim=1).numpy()
        assert (after == expected).mean() > 0.9, precision
        assert not np.array_equal(before, after)


def test_every_size_of_batch_is_measured_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "has_onnx", lambda: False)
    fast = engines.ActingIqn(network_for(), TAU, "measured")
    assert fast is not None
    for num_cars in (1, 16, 31, 1):
        fast(*views(num_cars))
    assert set(fast.engines) == {1, 5}
    assert set(fast.engines.values()) <= {"float32", "bfloat16"}, "nothing that is not installed"
    fixed = engines.ActingIqn(network_for(), TAU, "float32")
    assert fixed is not None
    fixed(*views(16))
    assert not fixed.engines
