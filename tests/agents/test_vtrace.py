"""The theorems of V-trace, Espeholt et al. 2018, arXiv:1802.01561, appendix A, on a small Markov decision process.

Dimensions: X states, A actions, P paths of T decisions.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rulka.agents.impala.learner import trace_values, truncated_ratio
from tests.agents.test_advantages import endings

NUM_STATES, NUM_ACTIONS, NUM_STEPS, GAMMA = 3, 2, 4, 0.8
Floats = NDArray[np.float64]


class Process(NamedTuple):
    """Probabilities of the next state [X, A, X], rewards [X, A], behaviour and learning policy, both [X, A]."""

    step: Floats
    reward: Floats
    mu: Floats
    pi: Floats

    def value(self, policy: Floats) -> Floats:
        """Solves for the values [X] of a policy."""
        moves = np.einsum("xa,xay->xy", policy, self.step)
        return np.linalg.solve(np.eye(NUM_STATES) - GAMMA * moves, (policy * self.reward).sum(axis=1))

    def truncated_policy(self, rho_bar: float) -> Floats:
        """Returns the policy of equation 6, which V-trace's values are those of."""
        weight = np.minimum(rho_bar * self.mu, self.pi)
        return weight / weight.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def process() -> Process:
    random = np.random.default_rng(1)
    step = random.dirichlet(np.ones(NUM_STATES), (NUM_STATES, NUM_ACTIONS))
    reward = random.normal(0.0, 2.0, (NUM_STATES, NUM_ACTIONS))
    return Process(step, reward, np.array([[0.9, 0.1]] * NUM_STATES), np.array([[0.2, 0.8]] * NUM_STATES))


def targets(process: Process, value: Floats, state: NDArray, action: NDArray, rho_bar: float, c_bar: float) -> Floats:
    """Returns V-trace targets [T, P] of paths through states [T + 1, P] by actions [T, P]."""
    taken = state[:-1], action
    log_ratio = torch.from_numpy(np.log(process.pi[taken] / process.mu[taken]))
    rho, c = (truncated_ratio(log_ratio, bar) for bar in (rho_bar, c_bar))
    reward, values = torch.from_numpy(process.reward[taken]), torch.from_numpy(value[state])
    return trace_values(reward, values, rho, c, endings(*action.shape), GAMMA).target.numpy()


def operator(process: Process, value: Floats, rho_bar: float, c_bar: float) -> Floats:
    """Returns R V [X], equation 5 for T decisions, exactly: the mean over all paths by their probability under mu."""
    moves = list(itertools.product(range(NUM_ACTIONS), range(NUM_STATES)))
    paths = np.array(list(itertools.product(range(NUM_STATES), *[range(len(moves))] * NUM_STEPS)))
    action, after = np.array(moves)[paths[:, 1:]].transpose(2, 1, 0)
    state = np.concatenate([paths[:, :1].T, after])
    chance = (process.mu[state[:-1], action] * process.step[state[:-1], action, after]).prod(axis=0)
    target = targets(process, value, state, action, rho_bar, c_bar)[0]
    return np.array([(chance * target)[state[0] == x].sum() for x in range(NUM_STATES)])


BARS = [(1.0, 1.0), (1.0, 0.0), (2.0, 1.0), (0.5, 0.5), (100.0, 1.0)]


@pytest.mark.parametrize(("rho_bar", "c_bar"), BARS)
def test_the_fixed_point_is_the_value_of_the_truncated_policy(process: Process, rho_bar: float, c_bar: float) -> None:
    """Theorem 1; that policy is pi for a large rho_bar, and mu for a small one."""
    expected = process.value(process.truncated_policy(rho_bar))
    np.testing.assert_allclose(operator(process, expected, rho_bar, c_bar), expected, rtol=1e-12)
    assert np.abs(operator(process, expected + 1.0, rho_bar, c_bar) - expected).min() > 0.1, "or any value would do"


def test_rho_bar_decides_between_the_policies(process: Process) -> None:
    np.testing.assert_allclose(process.truncated_policy(100.0), process.pi)
    np.testing.assert_allclose(process.truncated_policy(1e-9), process.mu)


@pytest.mark.parametrize(("rho_bar", "c_bar"), BARS)
def test_the_operator_contracts(process: Process, rho_bar: float, c_bar: float) -> None:
    """Theorem 1: by at least 1 - (1 - gamma) beta in the largest difference, beta the least mean of rho."""
    beta = (process.mu * np.minimum(rho_bar, process.pi / process.mu)).sum(axis=1).min()
    random = np.random.default_rng(2)
    for _ in range(20):
        one, other = random.normal(0.0, 10.0, (2, NUM_STATES))
        difference = operator(process, one, rho_bar, c_bar) - operator(process, other, rho_bar, c_bar)
        assert np.abs(difference).max() <= (1.0 - (1.0 - GAMMA) * beta) * np.abs(one - other).max()


def test_a_larger_c_bar_contracts_faster(process: Process) -> None:
    ones, zeros = np.ones(NUM_STATES), np.zeros(NUM_STATES)
    slow, medium, fast = (
        np.abs(operator(process, ones, 1.0, c_bar) - operator(process, zeros, 1.0, c_bar)).max()
        for c_bar in (0.0, 0.5, 1.0)
    )
    assert slow > medium > fast


def test_learning_along_paths_converges(process: Process) -> None:
    """Theorem 2: tables, paths driven by mu, steps whose sum diverges and whose squares' sum does not."""
    rho_bar = c_bar = 1.0
    expected, random = process.value(process.truncated_policy(rho_bar)), np.random.default_rng(3)
    value, state = np.zeros(NUM_STATES), np.arange(64) % NUM_STATES
    for k in range(600):
        states, actions = [state], []
        for _ in range(8):
            actions.append((random.random(len(state)) > process.mu[state, 0]).astype(np.int64))
            ahead = process.step[state, actions[-1]].cumsum(axis=1)
            state = (random.random(len(state))[:, None] > ahead).sum(axis=1).clip(max=NUM_STATES - 1)
            states.append(state)
        along = np.stack(states)
        error = targets(process, value, along, np.stack(actions), rho_bar, c_bar) - value[along[:-1]]
        visits = np.bincount(along[:-1].ravel(), minlength=NUM_STATES).clip(1)
        value = value + (k + 1.0) ** -0.7 * np.bincount(along[:-1].ravel(), error.ravel(), NUM_STATES) / visits
    apart = min(np.abs(expected - process.value(policy)).max() for policy in (process.mu, process.pi))
    assert np.abs(value - expected).max() < 0.1 * apart
