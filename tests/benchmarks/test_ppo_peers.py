"""What can be held of `benchmarks.ppo_peers` without the peers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.ppo_peers import shared
from benchmarks.ppo_peers.__main__ import ratios_of
from benchmarks.ppo_peers.rulka_side import agent_spec, run
from rulka.agents.networks import build_actor_critic
from rulka.observation import NUM_FLOATS


def test_the_peers_have_the_same_layers() -> None:
    """With the same weights they give the same features; what is missing are the heads alone."""
    spec, layers = agent_spec(1), shared.Layers()
    network = spec.fresh_network(build_actor_critic, 3)
    heads = ("policy_head.", "value_head.")
    body = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith(heads)}
    layers.network.load_state_dict(body)
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 256, (4, *spec.observation.image_shape), np.uint8))
    floats = torch.from_numpy(rng.normal(size=(4, NUM_FLOATS)).astype(np.float32))
    with torch.no_grad():
        found = layers({"image": image.float(), "floats": floats})
        expected = network.hidden(network.encode(image), floats)
    torch.testing.assert_close(found, expected)
    assert found.shape == (4, layers.num_features)


def test_one_update_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CARS": 4, "ROLLOUT": 8, "BATCH": 16, "STEPS_PER_UPDATE": 32}.items():
        monkeypatch.setattr(shared, name, value)
    found = run(1, 3)
    assert found["steps_per_cpu_s"] > 0.0
    assert 0.0 < found["environment_share"] < 1.0


def test_ratios_are_of_what_was_measured() -> None:
    found = {
        "as shipped": {"steps_per_cpu_s": 8.0},
        "every layer": {"steps_per_cpu_s": 4.0},
        "stable-baselines3": {"steps_per_cpu_s": 2.0},
    }
    assert ratios_of(found) == {"as shipped / stable-baselines3": 4.0, "every layer / stable-baselines3": 2.0}
