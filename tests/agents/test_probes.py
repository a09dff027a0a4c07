"""Probe problems: each isolates one fault of an algorithm, for all of them through the runtime's interface.

GRPO and DPO learn from whole races beside others from the same start. They have no value, as no policy without a
critic, and what follows a time limit is none of their sums, so theirs are the probes of actions.

They hold whatever the seeds are, and so with the other last bits of another processor: numbers of updates are those
after which of six or more seeds none failed, with room to spare.

In the fast tier each probe is there for the algorithms that take little time for it, and each algorithm with the
discount or the choice of an action.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rulka.agents.params import ALGORITHM_NAMES, AlgorithmSections, CriticParams, PolicyParams

PRIORITISED = {
    "alpha": 0.6,
    "beta": {"interpolation": "linear", "points": [[0, 0.4], [10000, 1.0]]},
    "epsilon": 0.002,
    "min_actions_left": 40,
}
WITH_VALUES = tuple(
    name
    for name, section in AlgorithmSections().algorithms.items()
    if isinstance(section, CriticParams) or not isinstance(section, PolicyParams)
)
"""All but policies that learn without a critic."""


def by_algorithm(names: tuple[str, ...], *fast: str) -> pytest.MarkDecorator:
    """Runs a probe for all of these algorithms, for all but some of them in the slow tier alone."""
    marked = [pytest.param(name, marks=[] if name in fast else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("algorithm", marked)


def settling(algorithm: str, num_updates: int) -> dict[str, object]:
    """Lets what is learned from new experience alone come to rest: its values waver by as much as each step moves."""
    if algorithm not in ("ppo", "impala"):
        return {}
    env_steps = 256 * num_updates
    return {"learning_rate": {"interpolation": "linear", "points": [[0, 0.001], [env_steps, 0.0001]]}}


@by_algorithm(WITH_VALUES, "impala")
def test_value_of_a_sure_reward(lab, step, algorithm):
    """One state, one decision, reward 1. Fails when values are not learned at all."""
    races = lab.races(lambda _state, _action: step(1.0, 0, "terminated"))
    trained = lab.train(lab.spec(algorithm, **settling(algorithm, 16)), races, 16)
    assert trained.values(0) == pytest.approx([1.0], abs=0.1)


@by_algorithm(WITH_VALUES, "ppo")
def test_value_depends_on_the_observation(lab, step, algorithm):
    """Reward +1 in state 1 and -1 in state 0. Fails when observations and rewards are misaligned."""
    races = lab.races(lambda state, _action: step(2.0 * state - 1.0, 0, "terminated"), starts=(0, 1))
    num_updates = 20 if algorithm == "ppo" else 40
    trained = lab.train(lab.spec(algorithm, **settling(algorithm, num_updates)), races, num_updates)
    assert trained.values(0, 1) == pytest.approx([-1.0, 1.0], abs=0.15)


@by_algorithm(WITH_VALUES, "ppo", "impala")
def test_discount(lab, step, algorithm):
    """State 0 leads to 1, whose reward is 1: values gamma and 1. Fails when the future is miscounted."""
    races = lab.races(lambda state, _action: step(1.0, 0, "terminated") if state else step(0.0, 1))
    num_updates = {"ppo": 20, "impala": 20, "iqn": 60}.get(algorithm, 40)
    trained = lab.train(lab.spec(algorithm, **settling(algorithm, num_updates)), races, num_updates)
    assert trained.values(0, 1) == pytest.approx([0.5, 1.0], abs=0.1)


@by_algorithm(WITH_VALUES, "ppo", "impala")
def test_time_limits_have_a_future(lab, step, algorithm):
    """Reward 1 and a cut after each decision: 1 / (1 - gamma) = 2. Fails when a cut counts as an end (1)."""
    races = lab.races(lambda _state, _action: step(1.0, 0, "truncated"))
    trained = lab.train(lab.spec(algorithm, **settling(algorithm, 25)), races, 25)
    assert trained.values(0) == pytest.approx([2.0], abs=0.2)


@by_algorithm(ALGORITHM_NAMES, *ALGORITHM_NAMES)
def test_choice_of_action(lab, step, algorithm):
    """One action pays, not the one an untrained agent takes. Fails when the reward does not reach the action."""
    untrained = lab.train(lab.spec(algorithm), lab.races(lambda _state, _action: step(0.0, 0)), 0)
    paid = (untrained.actions(0)[0] + 1) % 3
    races = lab.races(lambda _state, action: step(float(action == paid), 0, "terminated"))
    assert lab.train(lab.spec(algorithm), races, 10).actions(0) == [paid]


@by_algorithm(ALGORITHM_NAMES, "ppo", "dpo")
def test_action_depends_on_the_observation(lab, step, algorithm):
    """The action equal to the state pays. Fails when the policy ignores what it sees.

    DPO is held nearer to its first policy: once it is sure of one action it has no pairs to learn another from.
    """
    races = lab.races(lambda state, action: step(float(action == state), 0, "terminated"), starts=(0, 1, 2))
    num_updates = {"ppo": 50, "grpo": 50, "dpo": 50, "iqn": 80, "pql": 50}.get(algorithm, 90)
    changes = {"ppo": settling("ppo", num_updates), "dpo": {"beta": lab.constant(2.0)}}.get(algorithm, {})
    trained = lab.train(lab.spec(algorithm, **changes), races, num_updates)
    assert trained.actions(0, 1, 2) == [0, 1, 2]


@by_algorithm(ALGORITHM_NAMES, "ppo", "dpo")
def test_delayed_reward(lab, step, algorithm):
    """One action at the start leads, two decisions later, to a reward; fails when credit does not travel back."""
    untrained = lab.train(lab.spec(algorithm), lab.races(lambda _state, _action: step(0.0, 0)), 0)
    paid = (untrained.actions(0)[0] + 1) % 3

    def probe(state: int, action: int):
        if state == 0:
            return step(0.0, 1 if action == paid else 3)
        if state in (1, 3):
            return step(0.0, state + 1)
        return step(float(state == 2), 0, "terminated")

    changes = {"n_steps": 3, "epsilon": lab.constant(0.6)} if algorithm == "iqn" else {}
    trained = lab.train(lab.spec(algorithm, **changes), lab.races(probe), 20 if algorithm == "ppo" else 45)
    assert trained.actions(0) == [paid]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["state", "hidden"])
def test_distribution_of_a_random_reward(lab, step, place):
    """Rewards 0 and 1 by chance: the low quantiles go to 0, the high ones to 1."""
    rng = np.random.default_rng(0)
    races = lab.races(lambda _state, _action: step(float(rng.integers(2)), 0, "terminated"))
    trained = lab.train(lab.spec("iqn", {"embedding_at": place}), races, 100)
    image, floats = torch.zeros(1, 1, 34, 34, dtype=torch.uint8), torch.zeros(1, 4)
    with torch.no_grad():
        value = trained.learner.network(image, floats, torch.tensor([[0.1, 0.25, 0.75, 0.9]])).value[0, :, 0]
    assert value.tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=0.25)


OPTIONS = {
    "fractions at the hidden units": ({"embedding_at": "hidden"}, {}),
    "prioritised, n-step": ({}, {"prioritised": PRIORITISED, "n_steps": 3}),
    "munchausen": ({}, {"use_double_dqn": False, "munchausen": {"alpha": 0.9, "temperature": 0.03, "floor": -1.0}}),
    "no double DQN, hard target": ({}, {"use_double_dqn": False, "target_tau": 1.0, "target_every": 16}),
    "noisy": ({"noisy_sigma": 0.5}, {}),
    "layer norm": ({"layer_norm": True}, {}),
}


FAST = "prioritised, n-step"


@pytest.mark.parametrize(
    ("extras", "changes"),
    [pytest.param(*given, id=name, marks=[pytest.mark.slow] * (name != FAST)) for name, given in OPTIONS.items()],
)
def test_discount_and_choice_with_options(lab, step, extras, changes):
    """State 0 leads to 1 whatever is done; there one action pays 1, the others nothing: values gamma and 1."""
    races = lab.races(lambda state, action: step(float(action == 2), 0, "terminated") if state else step(0.0, 1))
    trained = lab.train(lab.spec("iqn", extras, epsilon=lab.constant(0.5), **changes), races, 80)
    assert trained.values(0, 1) == pytest.approx([0.5, 1.0], abs=0.15)
    assert trained.actions(1) == [2]


BLOCKS = {"width": 32, "depth": 1, "heads": 2}
FUSIONS = {
    "projected": {"kind": "projected"},
    "fused vector": {"kind": "fused_vector", "tokens": 4, **BLOCKS},
    "a token for each float": {"kind": "token_sequence", "image": "one", "floats": {"kind": "each"}, **BLOCKS},
    "unified": {"kind": "token_sequence", "image": "all", "floats": {"kind": "raw", "tokens": 2}, **BLOCKS},
}


@by_algorithm(WITH_VALUES, "impala")
@pytest.mark.parametrize(
    "fusion",
    [
        pytest.param(fusion, id=name, marks=[] if name == "unified" else pytest.mark.slow)
        for name, fusion in FUSIONS.items()
    ],
)
def test_discount_and_choice_with_every_fusion(lab, step, fusion, algorithm):
    """State 0 leads to 1 whatever is done; there one action pays 1, the others nothing: values gamma and 1."""
    races = lab.races(lambda state, action: step(float(action == 2), 0, "terminated") if state else step(0.0, 1))
    num_updates = 15 if algorithm == "pql" else 30
    changes = {"epsilon": lab.constant(0.5)} if algorithm == "iqn" else settling(algorithm, num_updates)
    trained = lab.train(lab.spec(algorithm, {"fusion": fusion}, **changes), races, num_updates)
    assert trained.values(0, 1) == pytest.approx([0.5, 1.0], abs=0.15)
    assert trained.actions(1) == [2]


@pytest.mark.slow
def test_prioritised_replay_keeps_the_mean_of_a_random_reward(lab, step):
    """Rewards 0 (nine of ten) and 1: without importance weights the preference for surprises would raise the value."""
    rng = np.random.default_rng(0)
    races = lab.races(lambda _state, _action: step(float(rng.random() < 0.1), 0, "terminated"))
    changes = {"alpha": 1.0, "beta": lab.constant(1.0).model_dump(), "epsilon": 0.01, "min_actions_left": 0}
    trained = lab.train(lab.spec("iqn", prioritised=changes), races, 80)
    assert trained.values(0) == pytest.approx([0.1], abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prioritised, n-step", "munchausen"])
def test_delayed_reward_with_options(lab, step, name):
    """The action 2 at the start leads, one decision later, to a reward; fails when credit does not travel back."""
    extras, changes = OPTIONS[name]

    def probe(state: int, action: int):
        if state == 0:
            return step(0.0, 1 if action == 2 else 2)
        return step(float(state == 1), 0, "terminated")

    trained = lab.train(lab.spec("iqn", extras, epsilon=lab.constant(0.6), **changes), lab.races(probe), 90)
    assert trained.actions(0) == [2]
