"""Learners of a policy: what an update changes and when it ends; PPO's decisions, IMPALA's corrections."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from models.actor_critic import PolicyAndValue
from rulka.agents.advantages import Endings
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.impala import corrected, log_prob_in_loss
from rulka.agents.params import EpsilonParams, NoCorrectionParams, OneStepParams, VtraceParams
from rulka.agents.ppo import rollout_with_gae
from rulka.agents.spec import AgentError
from rulka.agents.waiting import keep_block
from rulka.buffers.experience import BlockSpec, new_block
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


def test_an_update_moves_the_average_by_its_share(lab, races):
    learner, actor = learner_and_actor(lab.spec("ppo", racer_tau=0.25))
    before = weights(learner)
    update(learner, actor, races)
    for name, tensor in weights(learner.racer).items():
        torch.testing.assert_close(tensor, before[name] + 0.25 * (weights(learner)[name] - before[name]))


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


NONE = NoCorrectionParams(kind="none")
EPSILON = EpsilonParams(kind="epsilon", epsilon=0.01)
ONE_STEP = OneStepParams(kind="one_step", rho_bar=1.5)
VTRACE = VtraceParams(kind="vtrace", rho_bar=1.5, c_bar=1.0)
CORRECTIONS = pytest.mark.parametrize("correction", [NONE, EPSILON, ONE_STEP, VTRACE], ids=lambda each: each.kind)


def test_corrections_by_hand():
    """gamma 0.5, weights pi/mu 3 and 0.5, values 1, 2, then 4, rewards 1 and 3: surprises 1 and 3.

    Uncorrected, v_1 = 2 + 3 and v_0 = 1 + 1 + 0.5 * 3; advantages 2.5 and 3. One step multiplies these by 1.5 and 0.5.
    V-trace: v_1 = 2 + 0.5 * 3, v_0 = 1 + 1.5 * 1 + 0.5 * 1 * 1.5; advantages 1.5 * (1 + 0.5 * 3.5 - 1) and 0.5 * 3.
    """
    none = torch.zeros(2, 1, dtype=torch.bool)
    given = (torch.tensor([[3.0], [0.5]]).log(), torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [2.0], [4.0]]))
    found = {
        each.kind: [column[:, 0].tolist() for column in corrected(each, *given, Endings(none, none), 0.5)]
        for each in (NONE, EPSILON, ONE_STEP, VTRACE)
    }
    assert found["none"] == found["epsilon"] == [[3.5, 5.0], [2.5, 3.0]]
    assert found["one_step"] == [[3.5, 5.0], pytest.approx([3.75, 1.5])]
    assert found["vtrace"] == [pytest.approx([3.25, 3.5]), pytest.approx([2.625, 1.5])]


@CORRECTIONS
def test_epsilon_alone_bounds_the_gradient_of_unlikely_actions(correction):
    """d log(p + 0.01) / d log p = p / (p + 0.01): 1/2 at 0.01, next to nothing at 1e-6; 1 for all others."""
    log_prob = torch.tensor([math.log(0.01), math.log(1e-6)], requires_grad=True)
    loss = log_prob_in_loss(correction, log_prob)
    loss.sum().backward()
    is_floored = correction is EPSILON
    assert loss.tolist() == pytest.approx([math.log(0.02), math.log(0.010001)] if is_floored else log_prob.tolist())
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([0.5, 1e-4] if is_floored else [1.0, 1.0], rel=1e-3)


def test_the_first_step_by_hand(lab, step):
    """One decision of a race each, paid 1, value 0 at first: the gradient of the paper's three terms.

    The advantage is 1 for every action, so the gradient at the output layer is that of -mean log pi(a), and for the
    value (0 - 1) times its weight, in units of the root mean square target, which is 1.
    """
    races = lab.races(lambda _state, _action: step(1.0, 0, "terminated"))
    spec = lab.spec("impala", batch_size=256, entropy_weight=lab.constant(0.1), max_grad_norm=lab.constant(1e9))
    learner, actor = learner_and_actor(spec)
    with torch.no_grad():
        for tensor in (learner.network.value_head.weight, learner.network.value_head.bias):
            tensor.zero_()
        learner.network.policy_head.weight.zero_()
        learner.network.policy_head.bias.copy_(torch.tensor([0.2, 0.5, 0.3]).log())
    actor.load_network(learner.network.state_dict())
    block = races.drive(actor)
    learner.insert(block, 0, 0)
    metrics = learner.update()
    is_kept = ~block.is_reset
    share = torch.bincount(torch.from_numpy(block.action[is_kept].astype("int64")), minlength=3) / is_kept.sum()
    policy = torch.tensor([0.2, 0.5, 0.3])
    entropy = -(policy * policy.log()).sum()
    expected = (policy - share) + 0.1 * policy * (policy.log() + entropy)
    torch.testing.assert_close(learner.network.policy_head.bias.grad, expected, rtol=1e-4, atol=1e-6)
    assert learner.network.value_head.bias.grad.item() == pytest.approx(-0.5)
    assert metrics["policy_loss"] == pytest.approx(-float((share * policy.log()).sum()), rel=1e-5)
    assert (metrics["value_loss"], metrics["entropy"]) == (pytest.approx(0.5), pytest.approx(float(entropy)))
    assert (metrics["overlap"], metrics["approx_kl"]) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-6))
    assert metrics["num_decisions"] == metrics["num_samples"] == is_kept.sum()


def test_an_update_goes_once_through_all_rows_in_whole_rows(lab, races, monkeypatch):
    """256 decisions of 16 cars in batches of about 64: four steps of four cars each."""
    learner, actor = learner_and_actor(lab.spec("impala"))
    block = races.drive(actor)
    block.floats[:, :, 2] = range(16)  # every car has its number
    learner.insert(block, 0, 0)
    seen = []
    forward = learner.network.forward

    def watched(image, floats):
        seen.append(floats[:, 2].view(17, -1))
        return forward(image, floats)

    monkeypatch.setattr(learner.network, "forward", watched)
    assert learner.update()["gradient_steps"] == 4
    assert all((rows == rows[0]).all() for rows in seen), "observations of a car, first to last"
    assert sorted(torch.cat([rows[0] for rows in seen]).tolist()) == list(range(16))
    assert learner.update() is None, "experience is used once"


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_forced_lag_is_exact_after_as_many_updates(lab, races, lag):
    """Blocks of 256 decisions, one for each update: version v learns from what version v - lag did."""
    learner, actor = learner_and_actor(lab.spec("impala", forced_lag=lag))
    behind = []
    while learner.version < lag + 4:
        assert learner.num_env_steps < learner.num_allowed_env_steps(), "it asks for no more than it learns from"
        learner.insert(races.drive(actor), 0, learner.version)
        metrics = learner.update()
        if metrics is not None:
            behind.append(metrics["versions_behind"])
            assert learner.num_env_steps == (learner.version + lag) * 256
    assert behind == [min(version, lag) for version in range(lag + 4)]
