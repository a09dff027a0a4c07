"""What learners of a policy have in common: what an update changes, when it ends, and what it holds on to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from rulka.agents.algorithms import make_learner
from rulka.agents.spec import AgentError
from tests.agents.conftest import changed, learner_and_actor, update, weights

POLICY = {"float_head", "trunk", "policy_head"}
WITH_VALUE = POLICY | {"value_head"}


@pytest.mark.parametrize(
    ("algorithm", "changes", "expected"),
    [
        ("ppo", {"value_warmup_steps": 256}, {"value_head"}),
        ("ppo", {"encoder_epochs": 0}, WITH_VALUE),
        ("ppo", {"encoder_epochs": 1, "max_kl": 1e-12}, WITH_VALUE),
        ("ppo", {"encoder_epochs": 1}, WITH_VALUE | {"encoder"}),
        ("impala", {"value_warmup_steps": 256}, {"value_head"}),
        ("impala", {}, WITH_VALUE | {"encoder"}),
        ("grpo", {"encoder_epochs": 0}, POLICY),  # never the value head, which nothing asks
        ("grpo", {"encoder_epochs": 1}, POLICY | {"encoder"}),
    ],
)
def test_what_an_update_changes(lab, races, algorithm, changes, expected):
    learner, actor = learner_and_actor(lab.spec(algorithm, **changes))
    before = weights(learner)
    update(learner, actor, races)
    assert changed(before, weights(learner)) == expected
    assert learner.version == 1


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_an_update_ends_when_the_policy_has_moved_far_enough(lab, races, algorithm):
    """Far from where it was when the update began: the policy that acted gave each action e times less chance."""
    changes = {"learning_rate": lab.constant(0.01), "max_kl": lab.constant(1e-3), "batch_size": 32}
    learner, actor = learner_and_actor(lab.spec(algorithm, **changes))
    assert 2 <= update(learner, actor, races)["gradient_steps"] < 8, "four epochs would be some 24"
    learner, actor = learner_and_actor(lab.spec(algorithm, learning_rate=lab.constant(1e-9), max_kl=1e-3, epochs=1))
    metrics = update(learner, actor, races, log_prob=-1.0)
    assert metrics["approx_kl"] == pytest.approx(np.e - 2.0, abs=1e-3)
    assert metrics["update_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["gradient_steps"] >= 3, "the whole epoch"


def policy_of(network) -> Categorical:
    with torch.no_grad():
        seen = torch.zeros(1, 1, 34, 34, dtype=torch.uint8), torch.zeros(1, 4)
        return Categorical(logits=network(*seen).outputs[0])


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "grpo"])
def test_the_loss_holds_on_to_the_policy_that_it_began_as(lab, races, algorithm):
    """The same experience with a large weight moves the policy less; what it holds on to comes with the weights."""
    moved = {}
    for weight in (0.0, 100.0):
        changes = {"clone_weight": lab.constant(weight), "entropy_weight": lab.constant(0.0)}
        learner, actor = learner_and_actor(lab.spec(algorithm, **changes))
        learner.load_network(make_learner(learner._spec, seed=7).network.state_dict())
        actor.load_network(learner.network.state_dict())
        races.rng, first, metrics = np.random.default_rng(0), policy_of(learner.network), {}
        for _ in range(3):
            metrics = update(learner, actor, races)
        assert ("clone_kl" in metrics) == (weight > 0.0)
        moved[weight] = float(kl_divergence(policy_of(learner.network), first))
    assert 0.0 <= moved[100.0] < 0.2 * moved[0.0]


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
@pytest.mark.parametrize("block_steps", [3, 50])
def test_blocks_that_do_not_fit_evenly_never_stall(lab, step, algorithm, block_steps):
    """Blocks of 48 and 800 decisions for updates of 256; `train` fails if neither side may go on."""
    races = lab.races(lambda _state, _action: step(0.0, 0), num_steps=block_steps)
    changes = {"epochs": 1} if algorithm == "ppo" else {"forced_lag": 2}
    assert lab.train(lab.spec(algorithm, **changes), races, 4).learner.version == 4


def test_what_they_have_no_use_for_is_refused(lab):
    for algorithm in ("ppo", "impala", "grpo", "dpo", "pql"):
        with pytest.raises(AgentError, match="demonstrations"):
            make_learner(lab.spec(algorithm)).insert_demonstrations([])


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("ppo", {"encoder_epochs": 5}, "is larger than epochs"),
        ("ppo", {"batch_size": 257}, "is larger than steps_per_update"),
        ("grpo", {"group_size": 1}, "2"),
    ],
)
def test_impossible_settings_are_refused(lab, algorithm, changes, message):
    with pytest.raises(ValueError, match=message):
        lab.spec(algorithm, **changes)
