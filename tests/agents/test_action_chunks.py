"""Decisions of several actions: values, the best of them and exploring, against sums over all chunks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from models.iqn import fixed_fractions
from rulka.agents.algorithms import make_actor
from tests.agents.conftest import constant, small_spec, views

K, A, ALL = 2, 3, list(product(range(3), repeat=2))


def spec(**changes):
    return small_spec("iqn", {"actions_per_decision": K}, **changes)


def naive(value: torch.Tensor) -> torch.Tensor:
    """Values [B, T, A ** K] of all chunks, in the order of `ALL`."""
    return torch.stack([sum(value[:, :, i, chunk[i]] for i in range(K)) for chunk in ALL], dim=2)


def test_the_greedy_block_is_the_best_of_all() -> None:
    actor = make_actor(spec(), seed=0)
    image, floats = views(50)
    decision, action_values = actor.act(image, floats, explore=False), actor.action_values(image, floats)
    assert decision.action.shape == (50, K)
    assert decision.is_greedy.shape == (50,)
    assert decision.is_greedy.all()
    network = actor.network
    with torch.inference_mode():
        value = network(image, floats, fixed_fractions(8).expand(50, -1)).mean(dim=1, keepdim=True)
    everything = naive(value)[:, 0].numpy()
    np.testing.assert_array_equal(decision.action, np.array(ALL)[everything.argmax(axis=1)])
    assert action_values.value.shape == (50, K, A)
    np.testing.assert_array_equal(action_values.value.argmax(axis=2), decision.action)
    rows, (first, second) = np.arange(50), decision.action.T
    by_place = everything.reshape(50, A, A)
    expected = np.stack([by_place[rows, :, second], by_place[rows, first]], axis=1)
    np.testing.assert_allclose(action_values.value, expected, atol=1e-4)


@pytest.mark.parametrize("boltzmann", [0.0, 0.4])
def test_every_action_of_a_chunk_explores_by_itself(boltzmann: float) -> None:
    """With epsilon e an action stays greedy with 1 - e + e / 3."""
    changes = {"boltzmann_epsilon": constant(boltzmann), "boltzmann_noise": 1e-9}
    actor = make_actor(spec(epsilon=constant(0.3), **changes), seed=0)
    image, floats = views(4000)
    greedy = actor.act(image, floats, explore=False).action
    decision = actor.act(image, floats, explore=True)
    same = decision.action == greedy
    np.testing.assert_array_equal(decision.is_greedy, same.all(axis=1))
    assert same.mean() == pytest.approx(0.8, abs=0.02)
    assert decision.is_greedy.mean() == pytest.approx(0.8**2, abs=0.025)
