"""PPO's actor and learner: what must not change, what is counted, and that nothing is lost on resume."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

from models.actor_critic import PolicyAndValue
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.networks import build_clone_policy
from rulka.agents.ppo import rollout_with_gae
from rulka.agents.spec import AgentError
from rulka.agents.waiting import keep_block
from rulka.buffers.experience import BlockSpec, new_block
from tests.agents.conftest import changed, learner_and_actor, weights


@pytest.fixture
def coin_races(lab, step):
    """Each decision pays its action; a race lasts three decisions."""
    return lab.races(lambda state, action: step(float(action), state + 1, "terminated" if state == 2 else ""))


def test_starts_as_exactly_the_cloned_policy(lab):
    spec = lab.spec("ppo")
    torch.manual_seed(3)
    policy = build_clone_policy(spec.observation, spec.encoder, spec.network, spec.normalisation, 3)
    torch.nn.init.normal_(policy.policy_head.weight)
    learner, actor = learner_and_actor(spec)
    learner.load_network({**learner.network.state_dict(), **policy.state_dict()})
    actor.load_network(learner.network.state_dict())
    image, floats = torch.randint(0, 256, (9, 1, 34, 34), dtype=torch.uint8), torch.randn(9, 4)
    decision = actor.act(image, floats, explore=False)
    with torch.no_grad():
        log_probs = policy(image, floats).log_softmax(dim=1)
    assert decision.action.tolist() == log_probs.argmax(dim=1).tolist()
    torch.testing.assert_close(torch.from_numpy(decision.log_prob), log_probs.amax(dim=1))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"value_warmup_steps": 256}, {"value_head"}),
        ({"encoder_epochs": 0}, {"float_head", "trunk", "policy_head", "value_head"}),
        ({"encoder_epochs": 1, "max_kl": 1e-12}, {"float_head", "trunk", "policy_head", "value_head"}),
        ({"encoder_epochs": 1}, {"encoder", "float_head", "trunk", "policy_head", "value_head"}),
        ({"encoder_epochs": 4}, {"encoder", "float_head", "trunk", "policy_head", "value_head"}),
    ],
)
def test_what_an_update_changes(lab, coin_races, changes, expected):
    learner, actor = learner_and_actor(lab.spec("ppo", **changes))
    before = weights(learner)
    learner.insert(coin_races.drive(actor), 0, 0)
    assert learner.update() is not None
    assert changed(before, weights(learner)) == expected
    assert learner.version == 1


def test_spectral_norms_move_in_gradient_steps_alone(lab, coin_races):
    """The value warm-up makes none, so that collectors go on with the policy as it was, to the bit."""
    encoder = {"kind": "impala", "width": 1, "adaptive_pool": 1, "spectral_norm": True}
    learner, actor = learner_and_actor(lab.spec("ppo", {"encoder": encoder}, value_warmup_steps=256, batch_size=64))
    learner.insert(coin_races.drive(actor), 0, 0)
    with torch.no_grad():  # weights far from those that the singular vectors were found for
        for parameter in learner.network.encoder.parameters():
            parameter.add_(torch.linspace(-1.0, 1.0, parameter.numel()).view_as(parameter))
    before = weights(learner)
    learner.update()
    assert changed(before, weights(learner)) == {"value_head"}
    learner.insert(coin_races.drive(actor), 0, 1)
    learner.update()
    after = weights(learner)
    assert any(not torch.equal(before[name], after[name]) for name in before if name.endswith(".left"))


def values_of(learner, *states: int) -> list[float]:
    floats = torch.zeros(len(states), 4)
    floats[:, 1] = torch.tensor(states)
    with torch.no_grad():
        return learner.network(torch.zeros(len(states), 1, 34, 34, dtype=torch.uint8), floats).value.tolist()


def chain(step):
    """States 0, 1, 2 pay 1, 2, 3; then the race ends. With gamma 0.5: V(2) = 3, V(1) = 3.5, V(0) = 2.75."""
    return lambda state, _action: step(state + 1.0, state + 1, "terminated" if state == 2 else "")


def test_warm_up_finds_the_values_of_a_chain(lab, step):
    """The true values to 1 % from one update; blocks of 5 decisions cut most races of 3 decisions and a reset."""
    learner, actor = learner_and_actor(lab.spec("ppo", value_warmup_steps=320))
    races = lab.races(chain(step), num_steps=5)
    for _ in range(4):
        learner.insert(races.drive(actor), 0, 0)
    metrics = learner.update()
    assert values_of(learner, 0, 1, 2) == pytest.approx([2.75, 3.5, 3.0], rel=0.01)
    assert metrics["explained_variance"] > 0.99
    assert metrics["value_loss"] < 1e-3
    assert metrics["gradient_steps"] == 0


def test_warm_up_reaches_a_value_far_beyond_the_block(lab, step):
    """1 is paid for ever: 1 / (1 - 0.99) = 100. Returns of blocks of 16 decisions that end in an untrained value are
    1 + 0.99 + ... = 14.9 at most, and a fit to them, four times over, is still far below 100.
    """
    learner, actor = learner_and_actor(lab.spec("ppo", value_warmup_steps=256, gamma=0.99, gae_lambda=0.95))
    learner.insert(lab.races(lambda _state, _action: step(1.0, 0)).drive(actor), 0, 0)
    learner.update()
    assert values_of(learner, 0) == pytest.approx([100.0], abs=1.0)


def test_policy_learns_after_the_warm_up(lab, coin_races):
    learner, actor = learner_and_actor(lab.spec("ppo", value_warmup_steps=512))
    assert learner.num_allowed_env_steps() == 512
    learner.insert(coin_races.drive(actor), 0, 0)
    assert learner.update() is None, "256 decisions are too few for the warm-up"
    learner.insert(coin_races.drive(actor), 0, 0)
    assert learner.update() is not None
    assert learner.num_allowed_env_steps() == 512 + 256
    before = weights(learner)
    learner.insert(coin_races.drive(actor), 0, 1)
    assert learner.update() is not None
    assert changed(before, weights(learner)) == {"encoder", "float_head", "trunk", "policy_head", "value_head"}


def test_value_loss_does_not_depend_on_the_scale_of_rewards(lab, step):
    """Values near 0 miss returns of any size by about their root mean square: half of one squared."""
    for reward in (100.0, 10_000.0):
        races = lab.races(lambda _state, _action, reward=reward: step(reward, 0, "terminated"))
        learner, actor = learner_and_actor(lab.spec("ppo", learning_rate=lab.constant(1e-9)))
        learner.insert(races.drive(actor), 0, 0)
        assert learner.update()["value_loss"] == pytest.approx(0.5, abs=0.03)


def test_all_values_of_a_block_are_the_learners_of_now(lab, step):
    """Values 2 now, and other ones while acting; 1 is paid for ever, gamma 0.5, lambda 0.9.

    Each error is 1 + 0.5 * 2 - 2 = 0, so no action has an advantage, at the end of a block neither, and returns are 2.
    """
    learner, actor = learner_and_actor(lab.spec("ppo", learning_rate=lab.constant(1e-9)))
    block = lab.races(lambda _state, _action: step(1.0, 0)).drive(actor)
    learner.insert(block, 0, -1)
    with torch.no_grad():  # weights that are newer than the block
        learner.network.value_head.weight.zero_()
        learner.network.value_head.bias.fill_(2.0)
    metrics = learner.update()
    assert metrics["advantage_std"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["return_mean"] == pytest.approx(2.0, abs=1e-5)
    assert metrics["value_mean"] == pytest.approx(2.0, abs=1e-5)


def test_behaviour_and_learner_agree_before_the_first_step(lab, coin_races):
    learner, actor = learner_and_actor(lab.spec("ppo", epochs=1, encoder_epochs=1, batch_size=256))
    learner.insert(coin_races.drive(actor), 0, 0)
    metrics = learner.update()
    assert metrics["gradient_steps"] == 1
    assert abs(metrics["approx_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0.0
    assert metrics["entropy"] == pytest.approx(np.log(3), abs=0.01)


def test_how_far_the_policy_has_moved_is_counted_from_the_start_of_the_update(lab, coin_races):
    """The behaviour policy gave each action e times less chance: 0.72 nats, which are no work of this update."""
    spec = lab.spec("ppo", learning_rate=lab.constant(1e-9), max_kl=1e-3, epochs=1)
    learner, actor = learner_and_actor(spec)
    block = coin_races.drive(actor)
    block.log_prob[...] -= 1.0
    learner.insert(block, 0, -1)
    metrics = learner.update()
    assert metrics["approx_kl"] == pytest.approx(np.e - 2.0, abs=1e-3)
    assert metrics["update_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["gradient_steps"] == 3, "192 decisions in batches of 64: the whole epoch"


def test_update_ends_when_the_policy_has_moved_far_enough(lab, coin_races):
    changes = {"learning_rate": lab.constant(0.01), "max_kl": 1e-3, "batch_size": 32}
    learner, actor = learner_and_actor(lab.spec("ppo", **changes))
    learner.insert(coin_races.drive(actor), 0, 0)
    metrics = learner.update()
    assert 2 <= metrics["gradient_steps"] < 4 * 8, "all four epochs would be 32 or fewer by resets alone"
    assert metrics["gradient_steps"] < 8


def test_limiter_counts_decisions_with_resets(lab, coin_races):
    """256 decisions an update, one update ahead: 512 at first; blocks hold 256 and use themselves up."""
    learner, actor = learner_and_actor(lab.spec("ppo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 512
    assert learner.update() is None
    for _ in range(2):
        learner.insert(coin_races.drive(actor), 0, 0)
    assert learner.num_env_steps == learner.num_allowed_env_steps() == 512
    metrics = learner.update()
    assert learner.num_allowed_env_steps() == 512 + 512
    assert metrics["num_decisions"] < 512, "resets are no decisions"
    assert learner.update() is None, "experience is used once"


@pytest.mark.parametrize("block_steps", [3, 50])
def test_blocks_that_do_not_fit_evenly_never_stall(lab, step, block_steps):
    """Blocks of 48 and 800 decisions for updates of 256."""
    races = lab.races(lambda _state, _action: step(0.0, 0), num_steps=block_steps)
    trained = lab.train(lab.spec("ppo", epochs=1), races, 4)  # `train` fails if neither side may go on
    assert trained.learner.version == 4


def test_staleness_is_reported(lab, coin_races):
    learner, actor = learner_and_actor(lab.spec("ppo", steps_per_update=512))
    learner.insert(coin_races.drive(actor), 0, 0)
    learner.insert(coin_races.drive(actor), 1, -3)
    assert learner.update()["versions_behind"] == 1.5


def test_inserted_blocks_are_copied(lab, coin_races):
    results = []
    for spoil in (False, True):
        learner, actor = learner_and_actor(lab.spec("ppo"))
        races = copy.deepcopy(coin_races)
        block = races.drive(actor)
        learner.insert(block, 0, 0)
        if spoil:
            for name in block.spec.layout():
                getattr(block, name)[...] = 1
        learner.update()
        results.append(weights(learner))
    assert changed(*results) == set()


def test_resume_is_exact_and_needs_no_pickle(lab, coin_races):
    learner, actor = learner_and_actor(lab.spec("ppo"))
    blocks = [coin_races.drive(actor) for _ in range(3)]
    learner.insert(blocks[0], 0, 0)
    learner.update()
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    resumed = make_learner(lab.spec("ppo"), seed=99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert (resumed.version, resumed.num_env_steps) == (1, 256)
    assert resumed.num_allowed_env_steps() == learner.num_allowed_env_steps()
    for one in (learner, resumed):
        for block in blocks[1:]:
            one.insert(block, 0, 1)
        one.update()
    assert changed(weights(learner), weights(resumed)) == set()


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


def test_what_races_is_a_running_average_of_the_weights(lab, coin_races):
    """After each update the average has moved by the share; a resumed learner goes on with the same."""
    spec = lab.spec("ppo", racer_tau=0.25)
    learner, actor = learner_and_actor(spec)
    learner.load_network(make_learner(spec, seed=7).network.state_dict())
    expected = weights(learner)
    for _ in range(3):
        while learner.update() is None:
            learner.insert(coin_races.drive(actor), 0, 0)
        expected = {name: was + 0.25 * (weights(learner)[name] - was) for name, was in expected.items()}
    torch.testing.assert_close(dict(learner.racer.state_dict()), expected)
    assert changed(expected, weights(learner)), "the average lags behind"
    resumed = make_learner(spec, seed=5)
    resumed.load_state_dict(learner.state_dict())
    torch.testing.assert_close(resumed.racer.state_dict(), learner.racer.state_dict(), rtol=0, atol=0)
    assert make_learner(lab.spec("ppo"), 0).racer is not learner.racer
    plain = make_learner(lab.spec("ppo"), 0)
    assert plain.racer is plain.network


def test_the_loss_holds_on_to_the_policy_that_it_began_as(lab, coin_races):
    """The same experience with a large weight moves the policy less, and what it holds on to survives a resume."""
    moved = {}
    for weight in (0.0, 100.0):
        schedule = {"interpolation": "linear", "points": [[0, weight]]}
        learner, actor = learner_and_actor(lab.spec("ppo", clone_weight=schedule, entropy_weight=lab.constant(0.0)))
        learner.load_network(learner.network.state_dict())
        coin_races.rng = np.random.default_rng(0)
        while learner.update() is None:
            learner.insert(coin_races.drive(actor), 0, 0)
        image, floats = torch.zeros(1, 1, 34, 34, dtype=torch.uint8), torch.zeros(1, 4)
        with torch.no_grad():
            here, first = (net(image, floats).outputs.log_softmax(dim=1) for net in (learner.network, actor.network))
        moved[weight] = float((first.exp() * (first - here)).sum())
    assert 0.0 <= moved[100.0] < 0.2 * moved[0.0]
    resumed = make_learner(lab.spec("ppo", clone_weight=schedule), seed=5)
    resumed.load_network(resumed.network.state_dict())
    resumed.load_state_dict(learner.state_dict())
    for name, tensor in actor.network.state_dict().items():
        assert torch.equal(resumed._first.state_dict()[name], tensor), name


def test_ppo_refuses_what_it_has_no_use_for(lab):
    learner, _ = learner_and_actor(lab.spec("ppo"))
    with pytest.raises(AgentError, match="demonstrations"):
        learner.insert_demonstrations([])


@pytest.mark.parametrize("changes", [{"encoder_epochs": 5}, {"batch_size": 257}])
def test_impossible_settings_are_refused(lab, changes):
    with pytest.raises(ValueError, match="is larger than"):
        lab.spec("ppo", **changes)


def test_shaped_rewards_by_hand():
    """1 + 0.5 * 4 - 2 = 1; at the end 1 - 4 = -3; after a cut 1 + 0.5 * 6 - 0 = 4."""
    block = new_block(BlockSpec(3, 1, 2, 2, 4))
    block.reward[...] = 1
    block.potential[:, 0] = [2, 4, 0, 6]
    block.terminated[1], block.truncated[2] = True, True
    assert keep_block(block).shaped_reward(0.5)[:, 0].tolist() == [1, -3, 4]
