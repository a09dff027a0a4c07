"""IQN: exploration, limits, demonstrations, mini-races, and the fast update beside the one that is written plainly."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.iqn import IqnNetwork
from rulka.agents.algorithms import make_actor, make_learner
from rulka.agents.iqn import FIRST_SELF_LOSS, Sample, SelfLoss, draw_clocks, mini_race_returns, self_loss_weights
from rulka.agents.learner import MetricMeans
from rulka.agents.networks import IQN_PARTS
from rulka.agents.params import ByPartParams, IqnParams
from rulka.agents.spec import AgentError
from rulka.buffers.experience import BlockSpec, new_block
from rulka.buffers.replay import Batch
from rulka.buffers.ring import Transitions
from rulka.schedule import Moment, Schedule
from tests.agents.conftest import filled, views


def with_clone(network: torch.nn.Module, probabilities: list[float]) -> dict[str, torch.Tensor]:
    """Returns the weights of a guided network whose cloned policy gives actions the same probabilities everywhere."""
    tensors = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    tensors["guide.policy.policy_head.weight"].zero_()
    tensors["guide.policy.policy_head.bias"].copy_(torch.tensor(probabilities).log())
    return tensors


def test_epsilon_is_the_share_of_random_actions(lab):
    """A third of the random actions are the greedy one by chance."""
    spec = lab.spec("iqn", epsilon={"interpolation": "linear", "points": [[0, 1.0], [1000, 0.3]]})
    actor = make_actor(spec, seed=0)
    greedy = int(actor.act(*views(1, None), explore=False).action[0])
    for env_steps, epsilon in ((0, 1.0), (500, 0.65), (10_000, 0.3)):
        actor.set_moment(Moment(env_steps))
        decision = actor.act(*views(3000, None), explore=True)
        assert float((decision.action != greedy).mean()) == pytest.approx(epsilon * 2 / 3, abs=0.03)
        np.testing.assert_array_equal(decision.is_greedy, decision.action == greedy)
    assert (actor.act(*views(50, None), explore=False).action == greedy).all()


def test_each_car_has_an_epsilon_of_its_own(lab):
    """From 0.5 to the power of 1 for the first car to 0.5 to the power of 4 for the last; in between by the square."""
    actor = make_actor(lab.spec("iqn", epsilon=lab.constant(0.5), epsilon_spread=3.0), seed=0)
    assert actor._epsilon(4).tolist() == pytest.approx([0.5**1, 0.5**2, 0.5**3, 0.5**4])
    image, floats = views(4, None)
    greedy = actor.act(image, floats, explore=False).action
    explored = np.mean([actor.act(image, floats, explore=True).action != greedy for _ in range(200)], axis=0)
    assert explored[0] > 3 * explored[3]


def test_cloned_policy_drives_during_the_warm_up_only(lab):
    actor = make_actor(lab.spec("iqn", {"guided": True}, warmup_steps=100, epsilon=lab.constant(0.0)), seed=0)
    actor.load_network(with_clone(actor.network, [0.2, 0.5, 0.3]))
    decision = actor.act(*views(4000, None), explore=True)
    np.testing.assert_allclose(np.bincount(decision.action) / 4000, [0.2, 0.5, 0.3], atol=0.03)
    np.testing.assert_array_equal(decision.is_greedy, decision.action == 1)
    own = actor.act(*views(4, None), explore=False).action
    actor.set_moment(Moment(100))
    np.testing.assert_array_equal(actor.act(*views(4, None), explore=True).action, own)


@pytest.mark.parametrize(("floor", "allowed"), [(1.0, [1]), (0.6, [1, 2]), (0.39, [0, 1, 2]), (0.0, [0, 1, 2])])
def test_the_best_action_within_the_limits_of_the_guide_is_taken(lab, floor, allowed):
    """Probabilities 0.2, 0.5 and 0.3 are 0.4, 1 and 0.6 of the likeliest one's."""
    actor = make_actor(lab.spec("iqn", {"guided": True}), seed=0)
    free = make_actor(lab.spec("iqn"), seed=0)
    actor.load_network(with_clone(actor.network, [0.2, 0.5, 0.3]) | {"guide.floor": torch.tensor(floor)})
    value = free.action_values(*views(50, None)).value
    left = np.where(np.isin(np.arange(3), allowed), value, -np.inf)
    np.testing.assert_array_equal(actor.act(*views(50, None), explore=False).action, left.argmax(axis=1))
    np.testing.assert_allclose(actor.action_values(*views(50, None)).value, value, rtol=1e-5, atol=1e-6)


def test_the_next_action_is_chosen_within_the_limits_of_the_guide(lab, races):
    """With a floor of 1 only the clone's likeliest action is left, and its value is what a target bootstraps from."""
    always = {"interpolation": "linear", "points": [[0, 1.0]]}
    learner = make_learner(lab.spec("iqn", {"guided": True}, guide_floor=always, gradient_steps_per_update=1), seed=0)
    learner.load_network(with_clone(learner.network, [0.2, 0.5, 0.3]))
    assert float(learner.network.guide.floor) == 1.0, "from the first decision on"
    actor = make_actor(lab.spec("iqn"), 1)
    while learner.update() is None:
        learner.insert(races.drive(actor), 0, 0)
    assert float(learner.network.guide.floor) == 1.0
    batch = learner._latest.batch
    torch.testing.assert_close(
        batch.next_guide.exp(), torch.tensor([0.2, 0.5, 0.3]).expand(len(batch.n_step_return), -1)
    )
    targets, tau = learner._targets(batch)
    with torch.no_grad():
        following = learner.target(batch.next_image, batch.next_floats, tau).value[:, :, 1]
    torch.testing.assert_close(targets, batch.n_step_return[:, None] + batch.bootstrap_discount[:, None] * following)


def test_samples_per_insert_is_kept(lab, races):
    spec = lab.spec("iqn", samples_per_insert=4.0, batch_size=16, gradient_steps_per_update=2, buffer_steps=4096)
    trained = lab.train(spec, races, 100)
    learned = 100 * 2 * 16
    assert trained.learner.num_env_steps - 256 == pytest.approx(learned / 4.0, abs=256 + 256)
    assert trained.metrics["samples_per_insert"] == pytest.approx(4.0, rel=0.4)


def test_demonstrations_fill_their_share(lab, step, races):
    learner = filled(lab.spec("iqn", demonstration_share=0.25, batch_size=32), races)
    shown = lab.races(lambda _state, _action: step(0.0, 7), starts=(7,)).drive(make_actor(lab.spec("iqn"), 0))
    learner.insert_demonstrations([shown])
    batch = learner.draw().batch
    assert (batch.floats[:24, 1] < 7).all()
    assert (batch.floats[24:, 1] == 7).all()
    assert learner._num_learned == 24, "demonstrations are not counted"


def test_demonstrations_of_another_shape_are_refused(lab):
    with pytest.raises(AgentError, match=r"\(1, 64, 64, 184\), the agent sees \(1, 34, 34, 4\)"):
        make_learner(lab.spec("iqn")).insert_demonstrations([new_block(BlockSpec(3, 1, 64, 64, 184))])


def test_the_target_arrives_at_a_part_that_was_frozen_on_the_way(lab, races):
    """The trunk learns for the first half of the budget."""
    rates = {"trunk": Schedule.over_budget("staircase", (0.0, 1.0), (0.5, 0.0))}
    rates = dict.fromkeys(ByPartParams.model_fields, lab.constant(1.0)) | rates
    learner = filled(lab.spec("iqn", batch_size=16, target_tau=0.3, target_every=1, rate_of=rates), races)
    distances = []
    for share, num_steps in ((0.0, 3), (1.0, 60)):
        learner.set_budget_share(share)
        for _ in range(num_steps):
            learner._rates.apply(learner._optimizer, 0.001, learner.moment)
            learner._gradient_step(learner.draw(), MetricMeans())
        pairs = zip(learner.network.named_parameters(), learner.target.parameters(), strict=True)
        apart = [(ours - slow).abs().max() for (name, ours), slow in pairs if name.startswith(IQN_PARTS["trunk"])]
        distances.append(float(max(apart)))
    assert distances[0] > 1e-5
    assert distances[1] < 1e-7


BATCH, PIXELS, FLOATS, ACTIONS = 64, 34, 4, 3  # large enough for the fused layers


def random_batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, BATCH, 1, PIXELS, PIXELS), generator=generator, dtype=torch.uint8)
    floats = torch.randn(2, BATCH, FLOATS, generator=generator)
    return Batch(
        image=images[0],
        floats=floats[0],
        action=torch.randint(ACTIONS, (BATCH,), generator=generator),
        n_step_return=torch.randn(BATCH, generator=generator),
        bootstrap_discount=torch.rand(BATCH, generator=generator),
        next_image=images[1],
        next_floats=floats[1],
        weight=torch.rand(BATCH, generator=generator),
        next_guide=torch.zeros(BATCH, 0),
    )


def step_both(lab, precision: str):
    """Returns a learner and its twin after one step on the same batch, and their mean losses."""
    learner = make_learner(replace(lab.spec("iqn", batch_size=BATCH, target_tau=0.3), precision=precision), seed=0)
    batch, generator = random_batch(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for network in (learner.network, learner.target):  # biases start at 0, which would hide mistakes
            for parameter in network.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
        seen = batch.next_image, batch.next_floats, learner._tau_choosing.expand(BATCH, -1)
        online, slow = (values(each, *seen).mean(dim=1).argmax(dim=1) for each in (learner.network, learner.target))
    assert (online != slow).any(), "or it would not matter which network chooses"
    twin = NaiveIqn(learner.network, learner.target, learner._params, learning_rate=0.0)
    state = learner._generators.host.get_state()
    tau, target_tau = learner._draw_fractions(), learner._draw_fractions()
    learner._generators.host.set_state(state)
    means = MetricMeans()
    learner._gradient_step(Sample(batch, torch.arange(BATCH), torch.zeros(BATCH)), means)
    loss = twin.learn(random_batch(), tau, target_tau, learner._tau_choosing.expand(BATCH, -1))
    return learner, twin, means.result()["loss"], float(loss.mean())


def test_float32_steps_are_those_of_the_twin(lab):
    learner, twin, loss, expected = step_both(lab, "float32")
    assert loss == pytest.approx(expected, rel=1e-5)
    assert learner._self_loss == pytest.approx(twin.self_loss, rel=1e-5)
    pairs = zip(learner.network.named_parameters(), twin.network.parameters(), strict=True)
    for (name, fast), naive in pairs:
        scale = float(naive.grad.abs().max())
        torch.testing.assert_close(fast.grad, naive.grad, rtol=1e-4, atol=1e-5 * scale, msg=name)
    for slow, naive in zip(learner.target.parameters(), twin.target.parameters(), strict=True):
        torch.testing.assert_close(slow, naive, rtol=1e-5, atol=1e-7)


def test_without_double_dqn_each_quantile_has_its_own_best_action(lab):
    """r + gamma' max Z(s', a) at each fraction."""
    learner, batch = make_learner(lab.spec("iqn", batch_size=BATCH, use_double_dqn=False), seed=0), random_batch()
    targets, tau = learner._targets(batch)
    with torch.no_grad():
        best = learner.target(batch.next_image, batch.next_floats, tau).value.amax(dim=2)
    torch.testing.assert_close(targets, batch.n_step_return[:, None] + batch.bootstrap_discount[:, None] * best)


def transitions(
    rewards: list[float], *, is_terminal: bool = False, potential: float = 0.0, next_potential: float = 0.0
) -> Transitions:
    one = np.zeros(1, np.int64)
    return Transitions(
        reward=np.array([[*rewards, *[0.0] * (3 - len(rewards))]], np.float32),
        num_steps=np.array([len(rewards)]),
        is_terminal=np.array([is_terminal]),
        observation=one,
        next_observation=one,
        potential=np.array([potential], np.float32),
        next_potential=np.array([next_potential], np.float32),
        action=one,
    )


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
    race = mini_race_returns(transitions([1, 1, 1], is_terminal=is_terminal), np.array([clock]), 0.5, 140)
    assert race.reward.tolist() == [reward]
    assert race.discount.tolist() == [discount]


def test_returns_are_the_formula_on_arrays():
    """Any transitions: rewards up to the end of the mini-race count, discounted, and nothing follows an end."""
    rng = np.random.default_rng(0)
    batch, max_steps, horizon, discount = 500, 4, 20, 0.9
    num_steps = rng.integers(1, max_steps + 1, batch)
    reward = rng.standard_normal((batch, max_steps)).astype(np.float32)
    reward[np.arange(max_steps) >= num_steps[:, None]] = 0.0
    potential, next_potential = rng.standard_normal((2, batch)).astype(np.float32)
    is_terminal = rng.random(batch) < 0.3
    nothing = np.zeros(batch, np.int64)
    found = Transitions(reward, num_steps, is_terminal, nothing, nothing, potential, next_potential, nothing)
    clock = rng.integers(0, horizon, batch)
    num_counted = num_steps - np.maximum(0, clock + num_steps - horizon)
    has_end = (clock + num_steps >= horizon) | (is_terminal & (num_counted == num_steps))
    steps = np.arange(max_steps)
    factor = np.where(has_end, 0.0, discount**num_counted)
    expected = (reward * discount**steps * (steps < num_counted[:, None])).sum(axis=1)
    expected += factor * next_potential - potential
    race = mini_race_returns(found, clock, discount, horizon)
    np.testing.assert_allclose(race.reward, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(race.discount, factor, rtol=1e-6)
    assert has_end.any()
    assert not has_end.all()


# The update as one would first write it ------------------------------------------------------------------------------
#
# Eager torch in float32, in torch's usual image layout. Three passes through the whole network, with the quantiles of
# every action each time: the online network on the next observations to choose actions, the target network on them to
# value these, the online network on the observations. B batch, T quantile fractions, A actions.


SLOPE = 0.01
RADAM_EPSILON = 1e-4


class NaiveIqn:
    """Copies of an online and a target network, with their optimizer.

    Attributes:
        network: learns.
        target: follows it.
        self_loss: running averages of the targets' widths.
    """

    def __init__(self, network: IqnNetwork, target: IqnNetwork, params: IqnParams, learning_rate: float) -> None:
        self.network = copy.deepcopy(network)
        self.target = copy.deepcopy(target).requires_grad_(False)
        self.self_loss: SelfLoss = FIRST_SELF_LOSS
        self._params = params
        self._optimizer = torch.optim.RAdam(
            self.network.parameters(),
            lr=learning_rate,
            eps=RADAM_EPSILON,
            weight_decay=params.weight_decay,
            decoupled_weight_decay=True,
            foreach=False,
        )

    def learn(self, batch: Batch, tau: Tensor, target_tau: Tensor, tau_choosing: Tensor) -> Tensor:
        """Makes one gradient step of double DQN and returns the losses [B].

        Args:
            batch: transitions.
            tau: [B, T] fractions of the online network's values.
            target_tau: [B, T] fractions of the target's.
            tau_choosing: [B, T] fractions at which actions are compared.
        """
        kappa = self._params.kappa
        rows = torch.arange(len(tau))
        with torch.no_grad():
            choice = values(self.network, batch.next_image, batch.next_floats, tau_choosing).mean(dim=1).argmax(dim=1)
            following = values(self.target, batch.next_image, batch.next_floats, target_tau)[rows, :, choice]
            target = batch.n_step_return[:, None] + batch.bootstrap_discount[:, None] * following
            own_loss = quantile_huber(target, target_tau, target, kappa)
            weight, self.self_loss = self_loss_weights(own_loss, self.self_loss, self._params.self_loss_clamp_ratio)
        quantile = values(self.network, batch.image, batch.floats, tau)[rows, :, batch.action]
        loss = quantile_huber(quantile, tau, target, kappa)
        self._optimizer.zero_grad()
        (loss * weight * batch.weight).sum().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self._params.max_grad_norm)
        self._optimizer.step()
        with torch.no_grad():
            for slow, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
                slow.copy_(slow + self._params.target_tau * (online - slow))
        return loss.detach()


def values(network: IqnNetwork, image: Tensor, floats: Tensor, tau: Tensor) -> Tensor:
    """Returns quantiles [B, T, A], layer by layer from the network's weights."""
    weights = dict(network.named_parameters())

    def linear(name: str, rows: Tensor) -> Tensor:
        return functional.linear(rows, weights[f"{name}.weight"], weights[f"{name}.bias"])

    features = (image.float() - 128.0) / 128.0
    for index, stride in ((0, 2), (2, 2), (4, 2), (6, 1)):
        name = f"encoder.layers.{index}"
        features = functional.conv2d(features, weights[f"{name}.weight"], weights[f"{name}.bias"], stride)
        features = functional.leaky_relu(features, SLOPE)
    hidden = (floats - network.float_mean) / network.float_std
    for index in (0, 2):
        hidden = functional.leaky_relu(linear(f"float_head.{index}", hidden), SLOPE)
    state = torch.cat([features.flatten(1), hidden], dim=1)
    num_cosines = weights["tau_embed.0.weight"].shape[1]
    cosine = torch.cos(math.pi * torch.arange(1, num_cosines + 1) * tau[:, :, None])
    mixed = state[:, None, :] * functional.leaky_relu(linear("tau_embed.0", cosine), SLOPE)

    def head(name: str) -> Tensor:
        return linear(f"{name}.2", functional.leaky_relu(linear(f"{name}.0", mixed), SLOPE))

    advantage = head("advantage_head")
    return head("value_head") + advantage - advantage.mean(dim=2, keepdim=True)


def quantile_huber(quantile: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Returns the quantile Huber losses [B] of quantiles [B, T] against targets [B, S]."""
    error = target[:, None, :] - quantile[:, :, None]
    huber = kappa * functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=kappa) / kappa**2
    return ((tau[:, :, None] - (error < 0).float()).abs() * huber).mean(dim=2).sum(dim=1)
