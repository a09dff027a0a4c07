"""IQN: exploration, limits, demonstrations, mini-races; its update has a twin in `test_twins_of_replay.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.iqn.extras import MAX_ROWS
from rulka.agents.iqn.learner import CLOCK, draw_clocks, mini_race_rewards
from rulka.agents.shared.diagnostics import MetricMeans
from rulka.agents.shared.networks import IQN_PARTS
from rulka.agents.shared.spec import AgentError
from rulka.buffers.experience import BlockSpec, new_block
from rulka.buffers.transitions import Transitions
from rulka.contracts.schedule import Moment, Schedule
from tests.agents.conftest import constant, filled, small_spec, train, views


def with_clone(network: torch.nn.Module, probabilities: list[float]) -> dict[str, torch.Tensor]:
    """Returns the weights of a guided network whose cloned policy gives actions the same probabilities everywhere."""
    tensors = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    tensors["guide.policy.policy_head.weight"].zero_()
    tensors["guide.policy.policy_head.bias"].copy_(torch.tensor(probabilities).log())
    return tensors


def test_epsilon_is_the_share_of_random_actions():
    """A third of the random actions are the greedy one by chance."""
    spec = small_spec("iqn", epsilon={"interpolation": "linear", "points": [[0, 1.0], [1000, 0.3]]})
    actor = make_actor(spec, seed=0)
    greedy = int(actor.act(*views(1, None), explore=False).for_environment[0])
    for env_steps, epsilon in ((0, 1.0), (500, 0.65), (10_000, 0.3)):
        actor.set_moment(Moment(env_steps))
        decision = actor.act(*views(3000, None), explore=True)
        assert float((decision.for_environment != greedy).mean()) == pytest.approx(epsilon * 2 / 3, abs=0.03)
        np.testing.assert_array_equal(decision.is_greedy, decision.for_environment == greedy)
    assert (actor.act(*views(50, None), explore=False).for_environment == greedy).all()


def test_each_car_has_an_epsilon_of_its_own():
    """From 0.5 to the power of 1 for the first car to 0.5 to the power of 4 for the last; in between by the square."""
    actor = make_actor(small_spec("iqn", epsilon=constant(0.5), epsilon_spread=3.0), seed=0)
    assert actor._epsilon(4).tolist() == pytest.approx([0.5**1, 0.5**2, 0.5**3, 0.5**4])
    image, floats = views(4, None)
    greedy = actor.act(image, floats, explore=False).for_environment
    explored = np.mean([actor.act(image, floats, explore=True).for_environment != greedy for _ in range(200)], axis=0)
    assert explored[0] > 3 * explored[3]


def test_cloned_policy_drives_during_the_warm_up_only():
    actor = make_actor(small_spec("iqn", {"guided": True}, warmup_steps=100, epsilon=constant(0.0)), seed=0)
    actor.load_network(with_clone(actor.network, [0.2, 0.5, 0.3]))
    decision = actor.act(*views(4000, None), explore=True)
    np.testing.assert_allclose(np.bincount(decision.for_environment) / 4000, [0.2, 0.5, 0.3], atol=0.03)
    np.testing.assert_array_equal(decision.is_greedy, decision.for_environment == 1)
    own = actor.act(*views(4, None), explore=False).for_environment
    actor.set_moment(Moment(100))
    np.testing.assert_array_equal(actor.act(*views(4, None), explore=True).for_environment, own)


@pytest.mark.parametrize(("floor", "allowed"), [(1.0, [1]), (0.6, [1, 2]), (0.39, [0, 1, 2]), (0.0, [0, 1, 2])])
def test_the_best_action_within_the_limits_of_the_guide_is_taken(floor, allowed):
    """Probabilities 0.2, 0.5 and 0.3 are 0.4, 1 and 0.6 of the likeliest one's."""
    actor = make_actor(small_spec("iqn", {"guided": True}), seed=0)
    free = make_actor(small_spec("iqn"), seed=0)
    actor.load_network(with_clone(actor.network, [0.2, 0.5, 0.3]) | {"guide.floor": torch.tensor(floor)})
    value = free.action_values(*views(50, None)).value
    left = np.where(np.isin(np.arange(3), allowed), value, -np.inf)
    np.testing.assert_array_equal(actor.act(*views(50, None), explore=False).for_environment, left.argmax(axis=1))
    np.testing.assert_allclose(actor.action_values(*views(50, None)).value, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("use_double_dqn", [True, False])
def test_the_next_action_is_chosen_within_the_limits_of_the_guide(races, use_double_dqn):
    """With a floor of 1 only the clone's likeliest action is left, and its value is what a target bootstraps from."""
    changes = {"guide_floor": constant(1.0), "use_double_dqn": use_double_dqn, "gradient_steps_per_update": 1}
    learner = make_learner(small_spec("iqn", {"guided": True}, **changes), seed=0)
    learner.load_network(with_clone(learner.network, [0.2, 0.3, 0.5]))
    assert float(learner.network.guide.floor) == 1.0, "from the first decision on"
    actor = make_actor(small_spec("iqn"), 1)
    while learner.update() is None:
        learner.insert(races.drive(actor), 0, 0)
    assert float(learner.network.guide.floor) == float(learner.target.guide.floor) == 1.0
    batch = learner._latest
    torch.testing.assert_close(batch.next_guide.exp(), torch.tensor([0.2, 0.3, 0.5]).expand(len(batch.reward), 1, -1))
    targets, tau = learner._targets(batch)
    with torch.no_grad():
        free = learner.network.q_advantages(batch.next_image, batch.next_floats, learner._tau_choosing).argmax(dim=2)
        assert (free != 2).any(), "or limits would not matter"
        floats = batch.next_floats[:MAX_ROWS].clone()
        floats[:, CLOCK] = 0.0
        greedy = learner.network.q_advantages(batch.next_image[:MAX_ROWS], floats, learner._tau_choosing).argmax(dim=2)
        agreeing = float((greedy == 2).float().mean())
        assert learner.inspect()["IQN/agrees_with_clone"] == pytest.approx(agreeing)
        following = learner.target(batch.next_image, batch.next_floats, tau)[:, :, 0, 2]
    torch.testing.assert_close(targets, batch.reward[:, None] + batch.discount[:, None] * following)


def test_samples_per_insert_is_kept(races):
    spec = small_spec("iqn", samples_per_insert=4.0, batch_size=16, gradient_steps_per_update=2, buffer_steps=4096)
    trained = train(spec, races, 100)
    learned = 100 * 2 * 16
    assert trained.learner.num_env_steps - 256 == pytest.approx(learned / 4.0, abs=256 + 256)
    assert trained.metrics["samples_per_insert"] == pytest.approx(4.0, rel=0.4)


def test_demonstrations_of_another_shape_are_refused():
    with pytest.raises(AgentError, match=r"\(1, 64, 64, 184\), the agent sees \(1, 34, 34, 4\)"):
        make_learner(small_spec("iqn")).insert_demonstrations([new_block(BlockSpec(3, 1, 64, 64, 184))])


def test_the_target_arrives_at_a_part_that_was_frozen_on_the_way(races):
    """The trunk learns for the first half of the budget."""
    rates = small_spec("iqn").params.rate_of.model_dump()
    rates["trunk"] = Schedule.over_budget("staircase", (0.0, 1.0), (0.5, 0.0))
    learner = filled(small_spec("iqn", batch_size=16, target_tau=0.3, target_every=1, rate_of=rates), races)
    distances = []
    for share, num_steps in ((0.0, 3), (1.0, 60)):
        learner.set_budget_share(share)
        for _ in range(num_steps):
            learner._rates.apply(learner._optimizer, 0.001, learner.moment)
            learner._gradient_step(learner.sample(), MetricMeans())
        pairs = zip(learner.network.named_parameters(), learner.target.parameters(), strict=True)
        apart = [(ours - slow).abs().max() for (name, ours), slow in pairs if name.startswith(IQN_PARTS["trunk"])]
        distances.append(float(max(apart).detach()))
    assert distances[0] > 1e-5
    assert distances[1] < 1e-7


def test_every_clock_has_its_exact_probability():
    """One uniform number from the middle of each of the 180 equal parts: 11, 30 times 2 and 109 times 1."""
    clocks = draw_clocks((np.arange(180) + 0.5) / 180, 140)
    counts = np.bincount(clocks, minlength=140)
    assert counts.tolist() == [11] + [2] * 30 + [1] * 109
    assert draw_clocks(np.array([0.0, np.nextafter(1.0, 0.0)]), 140).tolist() == [30, 139]


def test_a_mini_race_shorter_than_what_is_drawn_twice_as_often():
    """Twenty decisions: all of them are, but for the first."""
    counts = np.bincount(draw_clocks((np.arange(49) + 0.5) / 49, 20))
    assert counts.tolist() == [11] + [2] * 19


@pytest.mark.parametrize(
    ("clock", "is_terminal", "reward", "discount"),
    [
        (0, False, 1.75, 0.125),  # 1 + 0.5 + 0.25, then gamma^3
        (0, True, 1.75, 0.0),  # finished
        (136, False, 1.75, 0.125),  # ends at 139: still within
        (137, False, 1.75, 0.0),  # ends at 140 exactly: over
        (138, False, 1.5, 0.0),  # only two decisions left
        (139, True, 1.0, 0.0),
    ],
)
def test_three_decisions_by_hand(clock: int, is_terminal: bool, reward: float, discount: float):
    nothing, at = np.zeros(1, np.float32), np.zeros(1, np.int64)
    three = Transitions(
        at, nothing + 1, np.ones((1, 3), np.float32), at + 3, np.array([is_terminal]), at, at, nothing, nothing, at
    )
    found = mini_race_rewards(three, np.array([clock]), 0.5, 140)
    assert tuple(each.tolist() for each in found) == ([reward], [discount])


@pytest.mark.parametrize("algorithm", ["iqn", "pql"])
def test_returns_of_another_scale_are_told_once(algorithm, races, caplog):
    """Rewards are 0 to 2, and gamma is 0.9: returns of 10 in the mean, and of 1,000 with 100 times the rewards."""
    learner = make_learner(small_spec(algorithm, gamma=constant(0.9)), seed=0)
    block = races.drive(make_actor(small_spec(algorithm), seed=0))
    learner.insert(block, 0, 0)
    assert "divide all rewards" not in caplog.text
    learner = make_learner(small_spec(algorithm, gamma=constant(0.9)), seed=0)
    block.reward[:] *= 100.0
    for _ in range(2):
        learner.insert(block, 0, 0)
    assert caplog.text.count("divide all rewards by") == 1
