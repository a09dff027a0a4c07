"""What IQN can do beyond the plain agent: priorities, target periods, exploration, held-out races, noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.layers import draw_noise
from rulka.agents.algorithms import make_actor
from rulka.agents.shared.diagnostics import MetricMeans
from tests.agents.conftest import MUNCHAUSEN, PRIORITISED, constant, filled, small_spec, views, weights


def test_boltzmann_noise_moves_close_calls_only():
    """Half of the actions are the best after noise; noise far below the gaps changes none, far above any."""
    for noise, expected in ((1e-9, 0.0), (1e6, 0.5 * 2 / 3)):
        spec = small_spec("iqn", epsilon=constant(0.0), boltzmann_epsilon=constant(0.5), boltzmann_noise=noise)
        decision = make_actor(spec, seed=0).act(*views(4000, None), explore=True)
        greedy = make_actor(spec, seed=0).act(*views(1, None), explore=False).for_environment[0]
        assert float((decision.for_environment != greedy).mean()) == pytest.approx(expected, abs=0.03)
        np.testing.assert_array_equal(decision.is_greedy, decision.for_environment == greedy)


def test_boltzmann_softmax_samples_by_value():
    """Shares of 6,000 decisions are those of softmax(Q / scale)."""
    spec = small_spec(
        "iqn", epsilon=constant(0.0), boltzmann_epsilon=constant(1.0), boltzmann_noise=0.5, boltzmann_softmax=True
    )
    actor = make_actor(spec, seed=0)
    value = torch.from_numpy(actor.action_values(*views(1, None)).value[0])
    taken = actor.act(*views(6000, None), explore=True).for_environment
    expected = (value / 0.5).softmax(dim=0)
    assert float(expected.max() - expected.min()) > 0.1, "or any noise would do"
    np.testing.assert_allclose(np.bincount(taken, minlength=3) / 6000, expected, atol=0.02)


def test_noisy_actors_explore_by_their_noise_and_race_without():
    actor = make_actor(small_spec("iqn", {"noisy_sigma": 3.0}, epsilon=constant(0.0)), seed=0)
    greedy = {int(actor.act(*views(1, None), explore=False).for_environment[0]) for _ in range(5)}
    decisions = [actor.act(*views(1, None), explore=True) for _ in range(60)]
    assert len(greedy) == 1
    assert len({int(decision.for_environment[0]) for decision in decisions}) > 1
    assert all(decision.is_greedy.all() for decision in decisions), "greedy through the noise"
    assert {int(actor.act(*views(1, None), explore=False).for_environment[0])} == greedy


def test_a_noisy_learner_draws_new_noise_for_each_step(races):
    learner = filled(small_spec("iqn", {"noisy_sigma": 0.5}, gradient_steps_per_update=1), races)
    seen = []
    for _ in range(2):
        learner.update()
        seen += [learner.network.value_head[0].noise_in.clone(), learner.target.value_head[0].noise_in.clone()]
    assert all(not torch.equal(seen[i], seen[j]) for i in range(4) for j in range(i))
    assert not any("noise" in name for name in learner.network.state_dict())


def test_the_average_acts_within_the_limits_of_now(races):
    floor = {"interpolation": "linear", "points": [[0, 1.0], [1024, 0.0]]}
    learner = filled(small_spec("iqn", {"guided": True}, racer_tau=0.25, guide_floor=floor), races)
    learner.update()
    assert 0.0 < float(learner.racer.guide.floor) == float(learner.network.guide.floor) < 1.0


def test_target_waits_for_its_period(races):
    """A hard update in every third gradient step: the target is the online network then, and stands still between."""
    learner = filled(small_spec("iqn", target_tau=1.0, target_every=3, gradient_steps_per_update=1), races)
    before = weights(learner.target)
    for number in range(1, 7):
        learner.update()
        expected = weights(learner.network) if number % 3 == 0 else before
        assert all(torch.equal(expected[name], tensor) for name, tensor in learner.target.state_dict().items())
        before = weights(learner.target)


def test_an_error_that_is_no_number_changes_no_priority(races):
    learner = filled(small_spec("iqn", prioritised=PRIORITISED), races)
    batch = learner.sample()
    learner._update_priorities(batch, torch.full((len(batch.row),), torch.nan))
    assert not learner.replay.priorities.measured.any()


def test_importance_follows_its_schedule(races):
    learner = filled(small_spec("iqn", prioritised=PRIORITISED), races)
    learner.update()
    assert 0.4 < learner.replay.beta == learner._params.prioritised.beta.at(learner.moment)


def test_importance_is_relative_to_the_largest_of_all_ranks(races):
    """Where another rank drew a row of twice the importance, those of the same batch count half."""

    class Ranks:
        rank, size = 0, 2
        factor = 1.0

        def largest(self, number: float) -> float:
            return self.factor * number

    weight = {}
    for factor in (1.0, 2.0):
        learner = filled(small_spec("iqn", prioritised=PRIORITISED), races)
        learner._ranks = Ranks()
        learner._ranks.factor = factor
        weight[factor] = float(learner.sample().importance.max())
    assert weight == {1.0: 1.0, 2.0: 0.5}


def test_held_out_races_are_tested_and_not_learned_from(races):
    spec = small_spec("iqn", held_out_share=0.25)
    learner = filled(spec, races, num_blocks=3)
    metrics = learner.update()
    assert metrics["held_out_loss"] > 0, "a quarter of eight batches"
    held_out = learner.replay.ring.arrays.is_held_out.reshape(-1)
    assert not held_out[learner.sample().row].any()


def test_held_out_races_are_tested_without_noise(races):
    """Twice the same, whatever noise the last gradient steps drew."""
    learner = filled(small_spec("iqn", {"noisy_sigma": 0.5}, held_out_share=0.25), races, num_blocks=3)
    learner.update()
    chance, losses = learner._generators.state_dict(), []
    for seed in (1, 2):
        for network in (learner.network, learner.target):
            draw_noise(network, torch.Generator().manual_seed(seed))
        learner._generators.load_state_dict(chance)
        learner._test_when_due(means := MetricMeans())
        losses.append(means.result()["held_out_loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_quantiles": 7}, "even"),
        ({"batch_size": 512}, "start_steps"),
        ({"start_steps": 2048}, "buffer_steps"),
        ({"demonstration_share": 1.0}, "demonstration_share 1.0 fills it"),
        (
            {"demonstration_share": 0.0, "demonstration_margin": {"margin": 0.1, "weight": 1.0}},
            "set the margin to null",
        ),
        ({"munchausen": MUNCHAUSEN}, "munchausen needs use_double_dqn false and guide_floor 0.0"),
        ({"epsilon": {"interpolation": "linear", "points": [[0, 1.5]]}}, "from 0 to 1"),
        ({"learning_rate": {"interpolation": "linear", "points": [[0, 0.0]]}}, "positive"),
    ],
)
def test_impossible_parameters_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        small_spec("iqn", **changes)
