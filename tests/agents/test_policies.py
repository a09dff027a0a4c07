"""Learners of a policy: what an update changes and when it ends, what they wait for and refuse."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.shared.rollout_queue import QueuedBlocks
from rulka.agents.shared.spec import AgentError
from tests.agents.conftest import Races, Step, changed, learner_and_actor, small_spec, train, weights


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
@pytest.mark.parametrize("block_steps", [3, 50])
def test_blocks_that_do_not_fit_evenly_never_stall(algorithm, block_steps):
    """Blocks of 48 and 800 decisions for updates of 256; `train` fails if neither side may go on."""
    races = Races(lambda _state, _action: Step(0.0, 0), num_steps=block_steps)
    changes = {"epochs": 1} if algorithm == "ppo" else {"forced_lag": 2}
    assert train(small_spec(algorithm, **changes), races, 4).learner.version == 4


def test_what_they_have_no_use_for_is_refused():
    for algorithm in ("ppo", "impala", "grpo", "dpo", "pql"):
        with pytest.raises(AgentError, match="demonstrations"):
            make_learner(small_spec(algorithm)).insert_demonstrations([])


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        ("ppo", {"encoder_epochs": 5}, "encoder_epochs needs to be at most epochs"),
        ("ppo", {"batch_size": 257}, "batch_size needs to be at most steps_per_update"),
        ("grpo", {"group_size": 1}, "2"),
    ],
)
def test_impossible_settings_are_refused(algorithm, changes, message):
    with pytest.raises(ValueError, match=message):
        small_spec(algorithm, **changes)


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_solving_for_the_value_moves_nothing_else(races, algorithm):
    """Spectral norms neither, so that collectors go on with the policy as it was, to the bit; gradient steps do."""
    encoder = {"kind": "impala", "width": 1, "adaptive_pool": 1, "spectral_norm": True}
    learner, actor = learner_and_actor(small_spec(algorithm, {"encoder": encoder}, value_warmup_steps=256))
    learner.insert(races.drive(actor), 0, 0)
    with torch.no_grad():  # weights far from those that the singular vectors were found for
        for parameter in learner.network.encoder.parameters():
            parameter.add_(torch.linspace(-1.0, 1.0, parameter.numel()).view_as(parameter))
    before = weights(learner)
    learner.update()
    assert changed(before, weights(learner)) == {"value_head"}
    learner.insert(races.drive(actor), 0, 1)
    learner.update()
    after = weights(learner)
    assert any(not torch.equal(before[name], after[name]) for name in before if name.endswith(".left"))


def test_limiter_counts_decisions_with_resets(races):
    """256 decisions an update, one update ahead: 512 at first; blocks hold 256 and use themselves up."""
    learner, actor = learner_and_actor(small_spec("ppo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 512
    assert learner.update() is None
    for _ in range(2):
        learner.insert(races.drive(actor), 0, 0)
    assert learner.num_env_steps == learner.num_allowed_env_steps() == 512
    metrics = learner.update()
    assert learner.num_allowed_env_steps() == 512 + 512
    assert metrics["num_decisions"] < 512, "resets are no decisions"
    assert learner.update() is None, "experience is used once"


def test_a_queue_by_hand(races):
    """Of three blocks, of versions 1, 4 and 9, the oldest two are taken side by side; so after a resume."""
    _, actor = learner_and_actor(small_spec("ppo"))
    queue, resumed, blocks = QueuedBlocks(), QueuedBlocks(), [races.drive(actor) for _ in range(3)]
    for block, version in zip(blocks, (1, 4, 9), strict=True):
        queue.insert(block, 0, version)
    resumed.load_experience(queue.experience())
    for one in (queue, resumed):
        segment, num_kept, version = one.take(257)
        assert (version, one.num_decisions) == (2.5, 256)
        np.testing.assert_array_equal(segment.reward, np.hstack([block.reward for block in blocks[:2]]))
        is_kept = ~np.hstack([block.is_reset for block in blocks[:2]])
        assert num_kept == is_kept.sum() < 512
        np.testing.assert_array_equal(segment.kept_rows(num_kept), np.flatnonzero(is_kept))
        assert one.take(1)[2] == 9.0


def test_inserted_blocks_are_copied(races):
    results = []
    for spoil in (False, True):
        learner, actor = learner_and_actor(small_spec("ppo"))
        block = copy.deepcopy(races).drive(actor)
        learner.insert(block, 0, 0)
        if spoil:
            for name in block.spec.layout():
                getattr(block, name)[...] = 1
        learner.update()
        results.append(weights(learner))
    assert changed(*results) == set()


def test_exploring_follows_the_policy_and_its_seed():
    spec = small_spec("ppo")
    image, floats = torch.zeros(4000, 1, 34, 34, dtype=torch.uint8), torch.zeros(4000, 4)
    actors = [make_actor(spec, seed) for seed in (1, 1, 2)]
    with torch.no_grad():
        actors[0].network.policy_head.bias.copy_(torch.tensor([0.1, 0.6, 0.3]).log())
        actors[0].network.policy_head.weight.zero_()
    for actor in actors[1:]:
        actor.load_network(actors[0].network.state_dict())
    first, same, other = (actor.act(image, floats, explore=True) for actor in actors)
    np.testing.assert_allclose(np.bincount(first.for_environment) / 4000, [0.1, 0.6, 0.3], atol=0.03)
    np.testing.assert_allclose(np.exp(first.log_prob), np.array([0.1, 0.6, 0.3])[first.for_environment], rtol=1e-5)
    np.testing.assert_array_equal(first.is_greedy, first.for_environment == 1)
    np.testing.assert_array_equal(first.for_environment, same.for_environment)
    assert (first.for_environment != other.for_environment).any()
    assert (actors[0].act(image, floats, explore=False).for_environment == 1).all()


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_forced_lag_is_exact_after_as_many_updates(races, lag):
    """Blocks of 256 decisions, one for each update: version v learns from what version v - lag did."""
    learner, actor = learner_and_actor(small_spec("impala", forced_lag=lag))
    behind = []
    while learner.version < lag + 4:
        assert learner.num_env_steps < learner.num_allowed_env_steps(), "it asks for no more than it learns from"
        learner.insert(races.drive(actor), 0, learner.version)
        metrics = learner.update()
        if metrics is not None:
            behind.append(metrics["versions_behind"])
            assert learner.num_env_steps == (learner.version + lag) * 256
    assert behind == [min(version, lag) for version in range(lag + 4)]
