"""PPO's actor and learner: what must not change, what is counted, and that nothing is lost on resume."""

from __future__ import annotations

import copy

import numpy as np
import torch

from models.actor_critic import PolicyAndValue
from rulka.agents.algorithms import make_actor
from rulka.agents.ppo import rollout_with_gae
from rulka.agents.waiting import keep_block
from rulka.buffers.experience import BlockSpec, new_block
from tests.agents.conftest import changed, learner_and_actor, weights


def test_spectral_norms_move_in_gradient_steps_alone(lab, races):
    """The value warm-up makes none, so that collectors go on with the policy as it was, to the bit."""
    encoder = {"kind": "impala", "width": 1, "adaptive_pool": 1, "spectral_norm": True}
    learner, actor = learner_and_actor(lab.spec("ppo", {"encoder": encoder}, value_warmup_steps=256, batch_size=64))
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


def test_limiter_counts_decisions_with_resets(lab, races):
    """256 decisions an update, one update ahead: 512 at first; blocks hold 256 and use themselves up."""
    learner, actor = learner_and_actor(lab.spec("ppo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 512
    assert learner.update() is None
    for _ in range(2):
        learner.insert(races.drive(actor), 0, 0)
    assert learner.num_env_steps == learner.num_allowed_env_steps() == 512
    metrics = learner.update()
    assert learner.num_allowed_env_steps() == 512 + 512
    assert metrics["num_decisions"] < 512, "resets are no decisions"
    assert learner.update() is None, "experience is used once"


def test_inserted_blocks_are_copied(lab, races):
    results = []
    for spoil in (False, True):
        learner, actor = learner_and_actor(lab.spec("ppo"))
        races = copy.deepcopy(races)
        block = races.drive(actor)
        learner.insert(block, 0, 0)
        if spoil:
            for name in block.spec.layout():
                getattr(block, name)[...] = 1
        learner.update()
        results.append(weights(learner))
    assert changed(*results) == set()


def test_exploring_follows_the_policy_and_its_seed(lab):
    spec = lab.spec("ppo")
    image, floats = torch.zeros(4000, 1, 34, 34, dtype=torch.uint8), torch.zeros(4000, 4)
    actors = [make_actor(spec, seed) for seed in (1, 1, 2)]
    with torch.no_grad():
        actors[0].network.policy_head.bias.copy_(torch.tensor([0.1, 0.6, 0.3]).log())
        actors[0].network.policy_head.weight.zero_()
    for actor in actors[1:]:
        actor.load_network(actors[0].network.state_dict())
    first, same, other = (actor.act(image, floats, explore=True) for actor in actors)
    np.testing.assert_allclose(np.bincount(first.action) / 4000, [0.1, 0.6, 0.3], atol=0.03)
    np.testing.assert_allclose(np.exp(first.log_prob), np.array([0.1, 0.6, 0.3])[first.action], rtol=1e-5)
    np.testing.assert_array_equal(first.is_greedy, first.action == 1)
    np.testing.assert_array_equal(first.action, same.action)
    assert (first.action != other.action).any()
    assert (actors[0].act(image, floats, explore=False).action == 1).all()


def test_block_evaluation_by_hand():
    """gamma 0.5, lambda 1, one car: decision 0 is cut, 1 is its reset, 2 goes on past the block.

    Decision 0: 1 + 0.5 * V(last observation, seen by the reset row: 6) - 2 = 2. Decision 2: 1 + 0.5 * 8 - 3 = 2.
    """
    block = new_block(BlockSpec(3, 1, 34, 34, 4))
    block.reward[...] = 1
    block.truncated[0], block.is_reset[1] = True, True
    block.action[:, 0] = [4, 5, 6]
    decided = PolicyAndValue(torch.zeros(4, 1, 2), torch.tensor([[2.0], [6.0], [3.0], [8.0]]))
    rollout = rollout_with_gae(keep_block(block), decided, discount=0.5, gae_lambda=1.0)
    assert rollout.advantage.tolist() == [2, 2]
    assert rollout.returns.tolist() == [4, 5]
    assert rollout.value.tolist() == [2, 3]
    assert rollout.action.tolist() == [4, 6]
    assert rollout.image.shape == (2, 1, 34, 34)
    assert rollout.outputs.shape == (2, 2)


def test_shaped_rewards_by_hand():
    """1 + 0.5 * 4 - 2 = 1; at the end 1 - 4 = -3; after a cut 1 + 0.5 * 6 - 0 = 4."""
    block = new_block(BlockSpec(3, 1, 2, 2, 4))
    block.reward[...] = 1
    block.potential[:, 0] = [2, 4, 0, 6]
    block.terminated[1], block.truncated[2] = True, True
    assert keep_block(block).shaped_reward(0.5)[:, 0].tolist() == [1, -3, 4]
