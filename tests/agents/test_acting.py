"""How actors compute: in a named precision by torch, or by measuring; and what they tell of all actions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_actor
from rulka.agents.params import ALGORITHMS
from rulka.agents.shared.acting import PolicyActor
from rulka.machine import precision
from tests.agents.conftest import small_spec, views


def with_other(part: str, network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights of which one part alone has moved: all others are frozen."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator)
        if name.startswith(f"{part}.")
        else tensor.clone()
        for name, tensor in network.state_dict().items()
    }


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "auto"])
@pytest.mark.parametrize(
    ("algorithm", "extras", "part"),
    [
        *((name, {}, "encoder") for name in ALGORITHMS),
        ("iqn", {"layer_norm": True}, "encoder"),
        ("iqn", {}, "tau_embed"),
    ],
)
def test_the_next_decision_uses_new_weights_though_the_others_are_frozen(algorithm, extras, part, precision):
    """By torch, through a copy in bfloat16, by a prepared snapshot: none may lag."""
    spec = replace(small_spec(algorithm, extras), precision=precision)
    actor, fresh = make_actor(spec, seed=0), make_actor(spec, seed=0)
    image, floats = views(7 if precision == "auto" else 20)  # few: it acts prepared
    before = actor.action_values(image, floats).value
    tensors = with_other(part, actor.network)
    actor.load_network(tensors)
    fresh.load_network(tensors)
    action_values = actor.action_values(image, floats)
    after = action_values.value
    name = "probability" if isinstance(actor, PolicyActor) else "q_value"
    assert (action_values.name, after.dtype) == (name, np.float32)
    np.testing.assert_array_equal(after, fresh.action_values(image, floats).value)
    assert np.abs(after - before).max() > 1e-4
    np.testing.assert_array_equal(after.argmax(axis=1), actor.act(image, floats, explore=False).for_environment)


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("algorithm", ["ppo", "iqn", "pql"])
def test_auto_is_bfloat16_for_many_cars_where_the_processor_has_it(monkeypatch, algorithm, is_fast):
    monkeypatch.setattr(precision, "has_instructions", lambda _name: is_fast)
    actors = [make_actor(replace(small_spec(algorithm), precision=p), seed=0) for p in ("auto", "float32", "bfloat16")]
    image, floats = views(16)
    many, exact, rough = (actor.action_values(image, floats).value for actor in actors)
    assert np.array_equal(many, rough) == is_fast
    np.testing.assert_allclose(many, exact, atol=0.05 if is_fast else 1e-5)
    np.testing.assert_allclose(actors[0].action_values(image[:2], floats[:2]).value, exact[:2], atol=1e-5)


def test_no_actor_imports_torchrl() -> None:
    """Every collector imports its actor's module, and torchrl takes 3 s and 95 MB. One process for all actors."""
    code = (
        "import sys; from rulka.agents.algorithms import ALGORITHMS, actor_class\n"
        "print([name for name in ALGORITHMS if actor_class(name) and 'torchrl' in sys.modules][:1])"
    )
    root = Path(__file__).parents[2]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
