"""Parallel Q-learning: its ratios, what critics are to say, how it decides and explores, and who owns which weights."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from rulka.agents.pql.actor import NumberActions, PqlActor
from rulka.agents.pql.learner import PqlLearner, critic_loss, critic_targets
from rulka.agents.shared.spec import AgentError
from rulka.buffers.replay import FEATURES
from rulka.contracts.actions import Choices, Intervals
from tests.agents.conftest import constant, small_spec

NUMBERS = Intervals((-1.0, 0.0), (1.0, 2.0))


@pytest.mark.parametrize("ratios", [(32, 2, 0), (7, 3, 10), (1, 1, 0), (500, 5, 2)])
def test_whoever_goes_on_as_it_may_holds_the_ratios(ratios: tuple[int, int, int]) -> None:
    """Three who take turns by chance, one a third as often as another, and look at nothing but permissions."""
    per_critic, per_policy, warmup = ratios
    changes = {"critic_updates_per_policy_update": per_policy, "critic_warmup_updates": warmup, "max_steps_ahead": 40}
    spec = small_spec(
        "pql", steps_per_critic_update=per_critic, critic_updates_per_version=1, start_steps=64, **changes
    )
    learner, rng = PqlLearner(spec), random.Random(0)
    learner.num_env_steps = 64
    for _ in range(20_000):
        who = rng.choices(["cars", "critics", "policy"], [9, 3, 1])[0]
        critic, policy = learner.num_critic_updates, learner.policy.num_updates
        if who == "cars" and learner.num_env_steps < learner.num_allowed_env_steps():
            learner.num_env_steps += 8  # decisions of a block
        elif who == "critics" and learner.is_ready() and not learner._is_policy_behind():
            learner.num_critic_updates += 1
        elif who == "policy" and policy < learner._num_policy_updates_due(critic):
            learner.policy.num_updates += 1
        steps, critic, policy = learner.num_env_steps - 64, learner.num_critic_updates, learner.policy.num_updates
        assert critic * per_critic <= steps <= (critic + 1) * per_critic + 40 + 8
        # The policy may be behind by the updates of one version, and by those of the version that is being made.
        assert policy * per_policy <= max(0, critic - warmup) < (policy + 1) * per_policy + 2
    assert critic > 5


def test_learning_waits_for_the_first_decisions_and_collectors_for_learning(races) -> None:
    spec = small_spec("pql", start_steps=300, max_steps_ahead=100, steps_per_critic_update=16)
    learner, actor = PqlLearner(spec), PqlActor(spec, 1)
    assert learner.num_allowed_env_steps() == 300 + 16 * 16 + 100
    while learner.num_env_steps < learner.num_allowed_env_steps():
        learner.insert(races.drive(actor), 0, 0)
    assert learner.num_env_steps == 768  # the first number of whole blocks that reaches 656
    assert learner.update() is not None
    assert learner.update() is None, "468 decisions are worth 29 updates, and a version has 16"
    with pytest.raises(AgentError, match="2 blocks of demonstrations"):
        learner.insert_demonstrations([races.drive(actor)] * 2)


def test_targets_by_hand() -> None:
    """Critics think 1 and 3 of the first choice, 5 and 0 of the second."""
    rated = torch.tensor([[[1.0, 5.0]], [[3.0, 0.0]]])
    probability, reward, discount = torch.tensor([[0.75, 0.25]]), torch.tensor([1.0]), torch.tensor([0.5])
    target = critic_targets(rated, probability, reward, discount)
    torch.testing.assert_close(target, torch.tensor([1.0 + 0.5 * 2.0]))  # 0.75 * 1 + 0.25 * 5 = 2, and 2.25
    loss = critic_loss(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0]))
    torch.testing.assert_close(loss, torch.tensor([0.5 * 1.0 + 0.5 * 4.0]))


def test_numbers_stay_within_their_intervals() -> None:
    outputs = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.5, -0.5, 0.0, 0.0], [9.0, -9.0, 0.0, 0.0]])
    expected = [[0.0, 1.0], [np.tanh(0.5), 1.0 - np.tanh(0.5)], [1.0, 0.0]]
    found = NumberActions(NUMBERS).greedy(outputs)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-5)


@pytest.mark.parametrize("actions", [NUMBERS, Choices(3)], ids=["numbers", "choices"])
def test_noise_is_spread_over_the_cars(actions) -> None:
    """From the least of the first car to the most of the last one, in equal steps, as the paper says."""
    spec = replace(small_spec("pql", noise_least=constant(0.05), noise_most=constant(0.25)), actions=actions)
    actor = PqlActor(spec, 3)
    noise = torch.tensor([0.05, 0.1, 0.15, 0.2, 0.25])
    torch.testing.assert_close(actor.noise(5), noise)
    torch.testing.assert_close(actor.noise(1), noise[:1])
    many = 4000
    outputs = torch.zeros(5 * many, actions.num_outputs)
    if isinstance(actions, Choices):
        outputs[:, 1] = 100.0  # of which chance leaves two thirds
    drawn = actor._decisions.explore(outputs, noise.repeat(many), torch.Generator().manual_seed(0))
    by_car = drawn.view(many, 5, -1).float()
    if isinstance(actions, Choices):
        found = (by_car[..., 0] != 1.0).float().mean(dim=0) * 1.5
    else:
        found = ((by_car - torch.tensor([0.0, 1.0])) / 1.0).std(dim=(0, 2))
        assert drawn.amin(dim=0).tolist() >= [-1.0, 0.0]
        assert drawn.amax(dim=0).tolist() <= [1.0, 2.0]
    torch.testing.assert_close(found, noise, rtol=0.12, atol=0.0)


def test_features_are_kept_while_the_encoder_stands_still_and_change_nothing(races) -> None:
    """The same weights as with images, as far as sums in another order are the same."""
    frozen = small_spec("pql").params.rate_of.model_dump() | {"encoder": constant(0.0)}
    thaws = frozen | {"encoder": {"interpolation": "staircase", "points": [[0, 0.0], [700, 1.0]]}}
    learners = [PqlLearner(small_spec("pql", rate_of=rates)) for rates in (frozen, thaws)]
    actor, rng = PqlActor(small_spec("pql"), 1), np.random.default_rng(0)
    for _ in range(2):
        block = races.drive(actor)
        block.image[...] = rng.integers(0, 256, block.image.shape)
        for learner in learners:
            learner.insert(block, 0, 0)
    assert all(learner.replay.has_features for learner in learners)
    learners[1].replay.drop_derived(FEATURES)
    learners[1]._is_encoder_as_given = False
    for learner in learners:
        assert learner.update() is not None
    assert [learner.replay.has_features for learner in learners] == [True, False]
    for name, tensor in learners[0].network.state_dict().items():
        torch.testing.assert_close(tensor, learners[1].network.state_dict()[name], rtol=1e-3, atol=1e-4)
