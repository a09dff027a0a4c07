"""What IQN can do beyond the plain agent: priorities, target periods, exploration, held-out races, noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.iqn import fixed_fractions
from rulka.agents.algorithms import make_actor
from rulka.agents.learner import MetricMeans
from rulka.buffers.experience import BlockSpec, new_block
from tests.agents.conftest import MUNCHAUSEN, PRIORITISED, filled, views, weights


def test_boltzmann_noise_moves_close_calls_only(lab):
    """Half of the actions are the best after noise; noise far below the gaps changes none, far above any."""
    for noise, expected in ((1e-9, 0.0), (1e6, 0.5 * 2 / 3)):
        spec = lab.spec("iqn", epsilon=lab.constant(0.0), boltzmann_epsilon=lab.constant(0.5), boltzmann_noise=noise)
        decision = make_actor(spec, seed=0).act(*views(4000, None), explore=True)
        greedy = make_actor(spec, seed=0).act(*views(1, None), explore=False).action[0]
        assert float((decision.action != greedy).mean()) == pytest.approx(expected, abs=0.03)
        np.testing.assert_array_equal(decision.is_greedy, decision.action == greedy)


def test_noisy_actors_explore_by_their_noise_and_race_without(lab):
    actor = make_actor(lab.spec("iqn", {"noisy_sigma": 3.0}, epsilon=lab.constant(0.0)), seed=0)
    greedy = {int(actor.act(*views(1, None), explore=False).action[0]) for _ in range(5)}
    decisions = [actor.act(*views(1, None), explore=True) for _ in range(60)]
    assert len(greedy) == 1
    assert len({int(decision.action[0]) for decision in decisions}) > 1
    assert all(decision.is_greedy.all() for decision in decisions), "greedy through the noise"
    assert {int(actor.act(*views(1, None), explore=False).action[0])} == greedy


def test_a_noisy_learner_draws_new_noise_for_each_step(lab, races):
    learner = filled(lab.spec("iqn", {"noisy_sigma": 0.5}, gradient_steps_per_update=1), races)
    seen = []
    for _ in range(2):
        learner.update()
        seen += [learner.network.value_head[0].noise_in.clone(), learner.target.value_head[0].noise_in.clone()]
    assert all(not torch.equal(seen[i], seen[j]) for i in range(4) for j in range(i))
    assert not any("noise" in name for name in learner.network.state_dict())


def test_the_average_races_where_it_is_asked_to(lab, races):
    """After each update the average has moved by its share, and its limits are those of now; so after a resume."""
    floor = {"interpolation": "linear", "points": [[0, 0.5]]}
    spec = lab.spec("iqn", {"guided": True}, racer_tau=0.25, guide_floor=floor, gradient_steps_per_update=2)
    learner = filled(spec, races)
    name = "value_head.0.weight"
    expected = weights(learner.network)[name]
    for _ in range(3):
        learner.update()
        expected = expected + 0.25 * (weights(learner.network)[name] - expected)
    averaged = learner.racer.state_dict()
    torch.testing.assert_close(averaged[name], expected)
    assert not torch.equal(averaged[name], learner.network.state_dict()[name])
    assert float(learner.racer.guide.floor) == 0.5
    assert set(averaged) == set(learner.network.state_dict()), "an actor takes either"
    plain = filled(lab.spec("iqn"), races)
    assert plain.racer is plain.network


def test_demonstrated_actions_become_worth_more_by_the_margin(lab, races):
    """In a state that only demonstrations visit, where another action is thought better at first."""
    margin = {"demonstration_margin": {"margin": 0.5, "weight": 0.3}}
    races.noise = None  # what is shown differs by its state alone
    spec = lab.spec("iqn", {"embedding_at": "hidden"}, learning_rate=0.003, batch_size=32, **margin)
    learner = filled(spec, races)

    def advantages() -> torch.Tensor:
        image, floats = torch.zeros(1, 1, 34, 34, dtype=torch.uint8), torch.tensor([[0.0, 7.0, 0.0, 0.0]])
        with torch.no_grad():
            return learner.network.advantages(image, floats, fixed_fractions(32))[0]

    worst = int(advantages().argmin())
    shown = new_block(BlockSpec(64, 1, 34, 34, 4))
    shown.floats[..., 1], shown.action[:], shown.is_greedy[:] = 7.0, worst, True
    learner.insert_demonstrations([shown])
    means = MetricMeans()
    sample = learner.draw()
    weighted = float(learner._margin_loss(sample, means).detach())
    num_shown = len(sample.batch.action) - len(sample.row)
    assert weighted == pytest.approx(0.3 * num_shown * means.result()["margin_loss"], rel=1e-5)
    losses = []
    for _ in range(15):
        learner.num_env_steps += 256  # so that it may go on learning
        losses.append(learner.update()["margin_loss"])
    others = advantages()[torch.arange(3) != worst]
    assert float(advantages()[worst] - others.max()) > 0.4
    assert losses[0] > 0.5
    assert losses[-1] < 0.1


def test_target_waits_for_its_period(lab, races):
    """A hard update in every third gradient step: the target is the online network then, and stands still between."""
    learner = filled(lab.spec("iqn", target_tau=1.0, target_every=3, gradient_steps_per_update=1), races)
    before = weights(learner.target)
    for number in range(1, 7):
        learner.update()
        expected = weights(learner.network) if number % 3 == 0 else before
        assert all(torch.equal(expected[name], tensor) for name, tensor in learner.target.state_dict().items())
        before = weights(learner.target)


def test_a_mini_race_lasts_as_long_as_the_parameter_says(lab, races):
    """No clock reaches 1,000 ms of 50 ms each, and nothing follows a transition that ends there."""
    changes = {"mini_race_ms": 1000.0, "batch_size": 128}
    batch = filled(lab.spec("iqn", **changes), races).draw().batch
    clock = batch.floats[:, 0].numpy()
    assert 10 < clock.max() < 20
    at_end = batch.next_floats[:, 0].numpy() >= 20
    assert at_end.any()
    assert not batch.bootstrap_discount.numpy()[at_end].any()


def test_priorities_are_the_errors_where_time_is_left(lab, races):
    """Only transitions with at least 40 decisions left in their mini-race get |error| + epsilon.

    All others wait with the largest of these, which are the first that were measured.
    """
    learner = filled(lab.spec("iqn", prioritised=PRIORITISED, gradient_steps_per_update=1, batch_size=128), races)
    sample, priorities = learner.draw(), learner.replay.sampler.priorities
    before = priorities.weights.copy()
    errors = np.linspace(0.1, 5.0, 128).astype(np.float32)
    errors[7] = np.nan
    learner._note_errors(sample, torch.from_numpy(errors))
    clock, rows = sample.batch.floats[:, 0].numpy(), sample.row.numpy()
    has_time = clock < 100
    assert 0 < has_time.sum() < 128
    counted = {rows[b]: float(errors[b]) + 0.002 for b in np.flatnonzero(has_time & np.isfinite(errors))}
    expected = np.where(before > 0.0, max(counted.values()) ** 0.6, 0.0)
    for row, priority in counted.items():
        expected[row] = priority**0.6
    np.testing.assert_allclose(priorities.weights, expected, rtol=1e-6)


def test_an_update_weighs_by_the_schedule_and_notes_the_errors_of_what_it_learned_from(lab, races):
    prioritised = PRIORITISED | {"min_actions_left": 0}
    learner = filled(lab.spec("iqn", prioritised=prioritised, gradient_steps_per_update=1), races)
    metrics = learner.update()
    assert metrics is not None
    sampler, rows = learner.replay.sampler, learner._latest.row.numpy()
    assert len(set(rows)) == len(rows), "first priorities are equal, and no stratum is drawn from twice"
    measured = sampler.priorities.measured
    assert set(measured.nonzero()[0]) == set(rows)
    assert measured[rows].mean() - 0.002 == pytest.approx(metrics["td_error"], rel=1e-5)
    assert 0.4 < sampler.beta == learner._params.prioritised.beta.at(learner.moment)


def test_importance_is_relative_to_the_largest_of_all_ranks(lab, races):
    """Where another rank drew a row of twice the importance, those of the same batch count half."""

    class Ranks:
        rank, size = 0, 2
        factor = 1.0

        def largest(self, number: float) -> float:
            return self.factor * number

    weight = {}
    for factor in (1.0, 2.0):
        learner = filled(lab.spec("iqn", prioritised=PRIORITISED), races)
        learner._ranks = Ranks()
        learner._ranks.factor = factor
        weight[factor] = float(learner.draw().batch.weight.max())
    assert weight == {1.0: 1.0, 2.0: 0.5}


def test_held_out_races_are_tested_and_not_learned_from(lab, races):
    spec = lab.spec("iqn", held_out_share=0.25)
    learner = filled(spec, races, num_blocks=3)
    metrics = learner.update()
    assert metrics is not None
    assert metrics["held_out_loss"] > 0, "a quarter of eight batches"
    held_out = learner.replay.ring.arrays.is_held_out.reshape(-1)
    assert not held_out[learner.draw().row].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_quantiles": 7}, "even"),
        ({"batch_size": 512}, "start_steps"),
        ({"start_steps": 2048}, "buffer_steps"),
        ({"demonstration_share": 1.0}, "leaves no place"),
        ({"demonstration_share": 0.0, "demonstration_margin": {"margin": 0.1, "weight": 1.0}}, "set it to null"),
        ({"munchausen": MUNCHAUSEN}, "use_double_dqn"),
        ({"epsilon": {"interpolation": "linear", "points": [[0, 1.5]]}}, "from 0 to 1"),
        ({"learning_rate": {"interpolation": "linear", "points": [[0, 0.0]]}}, "positive"),
    ],
)
def test_impossible_parameters_are_refused(lab, changes, message):
    with pytest.raises(ValidationError, match=message):
        lab.spec("iqn", **changes)
