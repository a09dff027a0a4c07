"""DPO's and GRPO's learners: what a preference teaches and what it holds on to, given pairs, and how learning waits
for whole groups of races.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rulka.agents.algorithms import make_learner
from rulka.agents.shared.spec import AgentError
from rulka.buffers.experience import PreferencePairs
from tests.agents.conftest import Races, Step, changed, constant, learner_and_actor, small_spec, train, update, weights

GIVEN = {"kind": "file", "path": "pairs.jsonl", "pairs_per_update": 4}


def pay_of_two():
    """One decision, one action of which pays."""
    return lambda _state, action: Step(float(action == 2), 0, "terminated")


def test_the_loss_falls_below_ln_2():
    """The reference stays the policy that it began as. With the policy of each gradient step it would be ln 2 for ever,
    as the peer's is. The first step's loss is ln 2 to the bit.
    """
    spec = small_spec("dpo", epochs=1, pairs_per_step=10_000, beta=constant(1.0), learning_rate=constant(0.003))
    learner, actor = learner_and_actor(spec)
    races = Races(pay_of_two())
    losses = [update(learner, actor, races)["loss"] for _ in range(12)]
    assert losses[0] == pytest.approx(math.log(2.0), abs=1e-7)
    assert losses[-1] < 0.5 * math.log(2.0)
    first = make_learner(spec, seed=0).network.state_dict()
    assert all(torch.equal(first[name], tensor) for name, tensor in learner._initial_policy.state_dict().items())


@pytest.mark.parametrize(("reward", "min_gap"), [(0.0, 0.0), (1.0, 1.0)])
def test_races_that_are_as_good_are_no_pair(reward, min_gap):
    pairs = {"kind": "online", "group_size": 4, "gamma": 1.0, "cut_worth": 0.0, "min_gap": min_gap}
    learner, actor = learner_and_actor(small_spec("dpo", pairs=pairs))
    races = Races(lambda _state, action: Step(reward * float(action == 2), 0, "terminated"))
    before = weights(learner)
    metrics = update(learner, actor, races)
    assert (metrics["num_pairs"], metrics["gradient_steps"], learner.version) == (0.0, 0.0, 1)
    assert changed(before, weights(learner)) == set()


def given(*pairs: tuple[list[int], list[int]]) -> PreferencePairs:
    """Pairs of stretches by their actions; what is seen is the number of the decision."""
    stretches = [stretch for pair in pairs for stretch in pair]
    lengths = np.array([len(stretch) for stretch in stretches])
    floats = np.zeros((lengths.sum(), 4), np.float32)
    floats[:, 1] = np.concatenate([np.arange(length) for length in lengths])
    image = np.zeros((lengths.sum(), 1, 34, 34), np.uint8)
    action = np.concatenate(stretches)[:, None]
    return PreferencePairs(image, floats, action, lengths, np.arange(len(stretches)).reshape(-1, 2))


def of_given(pairs: PreferencePairs, **changes):
    learner, actor = learner_and_actor(small_spec("dpo", pairs=GIVEN, **changes))
    learner.insert_pairs(pairs)
    return learner, actor


UNEQUAL = (([2, 1, 0], [0]), ([1], [2, 2, 0, 1, 1]))


def test_given_pairs_are_drawn_as_many_as_an_update_takes():
    pairs = given(*[([0, 1, 2], [1])] * 9)
    learner, actor = of_given(pairs, epochs=2)
    metrics = update(learner, actor, Races(pay_of_two()))
    assert (metrics["num_pairs"], metrics["num_decisions"], metrics["num_samples"]) == (4.0, 16.0, 32.0)
    assert learner.num_allowed_env_steps() == learner.num_env_steps + 192


def test_pairs_are_given_where_they_are_asked_for():
    learner, actor = learner_and_actor(small_spec("dpo", pairs=GIVEN))
    learner.insert(Races(pay_of_two()).drive(actor), 0, 0)
    with pytest.raises(AgentError, match=r"dpo\.pairs\.kind file learns from pairs that are given, and none were"):
        learner.update()
    with pytest.raises(AgentError, match=r"2 pairs are given, and dpo\.pairs\.kind online makes them"):
        learner_and_actor(small_spec("dpo"))[0].insert_pairs(given(*UNEQUAL))


def test_nobody_waits_for_races_longer_than_any_update():
    """Races of 40 decisions, blocks of 16, updates from 192 decisions on; `train` fails if neither side may go on."""
    races = Races(lambda state, _action: Step(0.0, state + 1, "terminated" if state == 39 else ""))
    trained = train(small_spec("grpo", epochs=1), races, 3)
    assert trained.metrics["num_decisions"] == 16 * 40


def test_limiter_counts_what_is_whole(races):
    """Groups of four races of three decisions that are whole count; an update's worth may be gathered beside it."""
    learner, actor = learner_and_actor(small_spec("grpo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 2 * 192
    races.deal(4)
    learner.insert(races.drive(actor), 0, 0)  # 16 cars, 16 decisions: four races and resets, all of them whole
    assert learner.num_allowed_env_steps() == 256 - 4 * 3 * 16 + 2 * 192
    assert learner.update()["num_decisions"] == 4 * 3 * 16
    assert learner.num_allowed_env_steps() == 256 + 2 * 192
