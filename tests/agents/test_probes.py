"""Probe problems: each isolates one fault of an algorithm, for all of them through the runtime's interface.

GRPO and DPO learn from whole races beside others from the same start. They have no value, as no policy without a
critic, and what follows a time limit is none of their sums, so theirs are the probes of actions.

They hold whatever the seeds are, and so with the other last bits of another processor: numbers of updates are those
after which of six or more seeds none failed, with room to spare.

In the fast tier each probe is there for the algorithms that take little time for it, and each algorithm with the
discount or the choice of an action.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rulka.agents.params import ALGORITHMS
from rulka.agents.shared.params import CriticParams, PolicyParams
from tests.agents.conftest import Races, Step, constant, small_spec, train

WITH_VALUES = tuple(
    name
    for name, section in ALGORITHMS.items()
    if issubclass(section, CriticParams) or not issubclass(section, PolicyParams)
)
"""All but policies that learn without a critic."""


def by_algorithm(names: Iterable[str], *fast: str) -> pytest.MarkDecorator:
    """Runs a probe for all of these algorithms, for all but some of them in the slow tier alone."""
    marked = [pytest.param(name, marks=[] if name in fast else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("algorithm", marked)


def settling(algorithm: str, num_updates: int) -> dict[str, object]:
    """Lets what is learned from new experience alone come to rest: its values waver by as much as each step moves."""
    if algorithm not in ("ppo", "impala"):
        return {}
    env_steps = 256 * num_updates
    return {"learning_rate": {"interpolation": "linear", "points": [[0, 0.001], [env_steps, 0.0001]]}}


@by_algorithm(WITH_VALUES, "ppo", "impala")
def test_discount(algorithm):
    """State 0 leads to 1, whose reward is 1: values gamma and 1. Fails when the future is miscounted."""
    races = Races(lambda state, _action: Step(1.0, 0, "terminated") if state else Step(0.0, 1))
    num_updates = {"ppo": 20, "impala": 20, "iqn": 60}.get(algorithm, 40)
    trained = train(small_spec(algorithm, **settling(algorithm, num_updates)), races, num_updates)
    assert trained.values(0, 1) == pytest.approx([0.5, 1.0], abs=0.1)


@by_algorithm(WITH_VALUES, "ppo", "impala")
def test_time_limits_have_a_future(algorithm):
    """Reward 1 and a cut after each decision: 1 / (1 - gamma) = 2. Fails when a cut counts as an end (1)."""
    races = Races(lambda _state, _action: Step(1.0, 0, "truncated"))
    trained = train(small_spec(algorithm, **settling(algorithm, 25)), races, 25)
    assert trained.values(0) == pytest.approx([2.0], abs=0.2)


@by_algorithm(ALGORITHMS, "impala", "iqn", "grpo", "pql")
def test_choice_of_action(algorithm):
    """One action pays, not the one an untrained agent takes. Fails when the reward does not reach the action."""
    untrained = train(small_spec(algorithm), Races(lambda _state, _action: Step(0.0, 0)), 0)
    paid = (untrained.actions(0)[0] + 1) % 3
    races = Races(lambda _state, action: Step(float(action == paid), 0, "terminated"))
    assert train(small_spec(algorithm), races, 10).actions(0) == [paid]


@by_algorithm(ALGORITHMS, "ppo")
def test_action_depends_on_the_observation(algorithm):
    """The action equal to the state pays. Fails when the policy ignores what it sees.

    DPO is held nearer to its first policy: once it is sure of one action it has no pairs to learn another from.
    """
    races = Races(lambda state, action: Step(float(action == state), 0, "terminated"), starts=(0, 1, 2))
    num_updates = {"ppo": 50, "grpo": 50, "dpo": 50, "iqn": 80, "pql": 50}.get(algorithm, 90)
    changes = {"ppo": settling("ppo", num_updates), "dpo": {"beta": constant(2.0)}}.get(algorithm, {})
    trained = train(small_spec(algorithm, **changes), races, num_updates)
    assert trained.actions(0, 1, 2) == [0, 1, 2]


@by_algorithm(ALGORITHMS, "ppo", "dpo")
def test_delayed_reward(algorithm):
    """One action at the start leads, two decisions later, to a reward; fails when credit does not travel back."""
    untrained = train(small_spec(algorithm), Races(lambda _state, _action: Step(0.0, 0)), 0)
    paid = (untrained.actions(0)[0] + 1) % 3

    def probe(state: int, action: int):
        if state == 0:
            return Step(0.0, 1 if action == paid else 3)
        if state in (1, 3):
            return Step(0.0, state + 1)
        return Step(float(state == 2), 0, "terminated")

    changes = {"n_steps": 3, "epsilon": constant(0.6)} if algorithm == "iqn" else {}
    trained = train(small_spec(algorithm, **changes), Races(probe), 20 if algorithm == "ppo" else 45)
    assert trained.actions(0) == [paid]
