"""GRPO's learner: what an update changes, what it holds on to, how it waits, and that nothing is lost on resume."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from tests.agents.conftest import changed, learner_and_actor, update, weights


def test_races_that_are_all_alike_teach_nothing(lab, step):
    """Whatever is done is paid 5: no advantage, and without a reward for entropy no gradient."""
    races = lab.races(lambda _state, _action: step(5.0, 0, "terminated"))
    learner, actor = learner_and_actor(lab.spec("grpo", entropy_weight=lab.constant(0.0)))
    before = weights(learner)
    metrics = update(learner, actor, races)
    assert metrics["flat_groups"] == 1.0
    assert metrics["grad_norm"] == 0.0
    assert changed(before, weights(learner)) == set()


def probabilities(network) -> Categorical:
    with torch.no_grad():
        seen = torch.zeros(1, 1, 34, 34, dtype=torch.uint8), torch.zeros(1, 4)
        return Categorical(logits=network(*seen).outputs[0])


def test_the_divergence_is_the_exact_one_from_the_policy_it_began_as(lab, step):
    """KL(now, first), though the races were driven by a third policy, and that of a sample would differ from it."""
    races = lab.races(lambda _state, action: step(float(action), 0, "terminated"))
    changes = {"clone_weight": lab.constant(0.5), "epochs": 1, "batch_size": 512, "steps_per_update": 512}
    settings = lab.spec("grpo", learning_rate=lab.constant(1e-9), **changes)
    learner, actor = learner_and_actor(settings)
    first = probabilities(learner.network)
    with torch.no_grad():
        learner.network.policy_head.bias.add_(torch.tensor([1.0, 0.0, -1.0]))
    metrics = update(learner, actor, races)
    expected = float(kl_divergence(probabilities(learner.network), first))
    assert expected > 0.2
    assert metrics["clone_kl"] == pytest.approx(expected, abs=1e-4)
    assert abs(float(kl_divergence(first, probabilities(learner.network))) - expected) > 0.01, "the other direction"


def test_nobody_waits_for_races_longer_than_any_update(lab, step):
    """Races of 40 decisions, blocks of 16, updates from 192 decisions on; `train` fails if neither side may go on."""
    races = lab.races(lambda state, _action: step(0.0, state + 1, "terminated" if state == 39 else ""))
    trained = lab.train(lab.spec("grpo", epochs=1), races, 3)
    assert trained.metrics["num_decisions"] == 16 * 40


def test_limiter_counts_what_is_whole(lab, races):
    """Groups of four races of three decisions that are whole count; an update's worth may be gathered beside it."""
    learner, actor = learner_and_actor(lab.spec("grpo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 2 * 192
    races.deal(4)
    learner.insert(races.drive(actor), 0, 0)  # 16 cars, 16 decisions: four races and resets, all of them whole
    assert learner.num_allowed_env_steps() == 256 - 4 * 3 * 16 + 2 * 192
    assert learner.update()["num_decisions"] == 4 * 3 * 16
    assert learner.num_allowed_env_steps() == 256 + 2 * 192
