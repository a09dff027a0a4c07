"""Advantages by hand, the value that agrees with its own lambda-returns; V-trace by hand, what it converges to and how
fast. `test_twins.py` has all of them on random races.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from rulka.agents.advantages import Endings, estimate_advantages, solve_linear_value
from rulka.agents.impala import TraceWeights, trace_values, truncated_ratio
from tests.agents.conftest import endings, random_ends


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_gae_by_hand():
    """gamma 0.5, lambda 0.5, values 1, 2, then 4: errors 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3;
    advantages 3 and 1 + 0.25 * 3 = 1.75.
    """
    result = estimate_advantages(column(1, 3), column(1, 2, 4), endings(2), 0.5, 0.5)
    torch.testing.assert_close(result.advantage, column(1.75, 3))
    torch.testing.assert_close(result.returns, column(2.75, 5))


def chain(states: list[list[int]], **ends: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, Endings]:
    """Features, rewards and endings of cars that see states [N][T + 1] of three; state s pays s + 1.

    Features are the three indicators of a state; `ends` names (decision, car) pairs.
    """
    seen = torch.tensor(states).T
    feature = torch.nn.functional.one_hot(seen, 3).float()
    flags = {name: torch.zeros(len(seen) - 1, seen.shape[1], dtype=torch.bool) for name in Endings._fields}
    for name, places in ends.items():
        for place in places:
            flags[name][tuple(place)] = True
    return feature, (seen[:-1] + 1).float(), Endings(**flags)


def values(feature: torch.Tensor, reward: torch.Tensor, endings: Endings, *settings: float) -> list[float]:
    found = solve_linear_value(feature, reward, endings, *settings)
    return (found.weight + found.bias).tolist()  # of the indicators


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_three_states_by_hand(gae_lambda: float) -> None:
    """States 0, 1, 2 pay 1, 2, 3, then the race ends; gamma 0.5: V(2) = 3, V(1) = 2 + 1.5 = 3.5, V(0) = 2.75.

    No block of two decisions holds a whole race: the one begins in state 0 and is cut off by its end, the other begins
    in state 1, ends its race and has a reset.
    """
    parts = chain([[0, 1, 2], [1, 2, 0], [2, 0, 0]], terminated=[[1, 1], [0, 2]], is_reset=[[1, 2]])
    assert values(*parts, 0.5, gae_lambda, 0.0) == pytest.approx([2.75, 3.5, 3.0], abs=1e-9)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95])
def test_a_race_without_an_end(gae_lambda: float) -> None:
    """0, 1, 2 and again 0: V(0) = 1 + 2 g + 3 g^2 + g^3 V(0), which is 5.9203 / 0.029701 for g = 0.99."""
    gamma = 0.99
    first = (1 + 2 * gamma + 3 * gamma**2) / (1 - gamma**3)
    third = 3 + gamma * first
    expected = [first, 2 + gamma * third, third]
    found = values(*chain([[0, 1, 2, 0], [1, 2, 0, 1]]), gamma, gae_lambda, 0.0)
    assert found == pytest.approx(expected, rel=1e-6)


def test_is_where_refitting_leads() -> None:
    """The slow twin: returns of the last fit, a least-squares fit to them, 400 times over."""
    generator = torch.Generator().manual_seed(0)
    feature = torch.randn(21, 40, 5, generator=generator)
    reward = feature[:-1].sum(dim=2) + torch.randn(20, 40, generator=generator)
    endings = random_ends(20, 40)
    found = solve_linear_value(feature, reward, endings, 0.9, 0.8, 0.0)
    column = torch.cat([feature, torch.ones(21, 40, 1)], dim=2).double()
    fitted = torch.zeros(6, dtype=torch.float64)
    for _ in range(400):
        returns = estimate_advantages(reward.double(), column @ fitted, endings, 0.9, 0.8).returns
        fitted = torch.linalg.lstsq(column[:-1][~endings.is_reset], returns[~endings.is_reset][:, None]).solution[:, 0]
    torch.testing.assert_close(torch.cat([found.weight, found.bias[None]]), fitted, rtol=1e-6, atol=1e-6)


def test_ridge_shrinks_the_weights_and_leaves_the_mean() -> None:
    """One feature of mean 3 and variance 1, returns 2 f + 1: a ridge of 1 halves the weight, not the mean value 7."""
    feature = torch.tensor([2.0, 4.0]).repeat(2, 1)[..., None]
    reward = 2.0 * feature[:1, :, 0] + 1.0
    ends = torch.ones(1, 2, dtype=torch.bool)
    endings = Endings(ends, ~ends)
    found = solve_linear_value(feature, reward, endings, 0.9, 0.9, 1.0)
    assert float(found.weight[0]) == pytest.approx(1.0)
    assert float(3.0 * found.weight[0] + found.bias) == pytest.approx(7.0)


def test_more_cars_than_are_taken_at_once() -> None:
    feature, reward, endings = chain([[0, 1, 2], [1, 2, 0]] * 40, terminated=[[1, 2 * car + 1] for car in range(40)])
    assert values(feature, reward, endings, 0.5, 0.9, 0.0) == pytest.approx([2.75, 3.5, 3.0], abs=1e-9)


def truncated_weights(log_ratio: Tensor, rho_bar: float, c_bar: float) -> TraceWeights:
    return TraceWeights(truncated_ratio(log_ratio, rho_bar), truncated_ratio(log_ratio, c_bar))


def test_vtrace_by_hand():
    """gamma 0.5, weights pi/mu 0.5 and 3, cut at 2 (rho) and 1 (c); values 1, 2, then 4.

    Surprises 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3; deltas 0.5 * 1 and 2 * 3 = 6. v_1 = 2 + 6 = 8,
    v_0 = 1 + 0.5 + 0.5 * 0.5 * 6 = 3. Advantages 2 * (3 + 2 - 2) = 6 and 0.5 * (1 + 0.5 * 8 - 1) = 2.
    """
    weights = truncated_weights(column(0.5, 3).log(), rho_bar=2.0, c_bar=1.0)
    torch.testing.assert_close(weights, TraceWeights(column(0.5, 2), column(0.5, 1)))
    result = trace_values(column(1, 3), column(1, 2, 4), weights, endings(2), 0.5)
    torch.testing.assert_close(result.target, column(3, 8))
    torch.testing.assert_close(result.advantage, column(2, 6))


def test_a_later_surprise_goes_back_past_a_decision_by_c_alone():
    """Weights 4 and 1, cut at 3 (rho) and 2 (c), gamma 1, values 0: v_0 = 3 * 1 + 2 * 1 = 5, not 3 * 2."""
    weights = truncated_weights(column(4, 1).log(), rho_bar=3.0, c_bar=2.0)
    result = trace_values(column(1, 1), column(0, 0, 0), weights, endings(2), 1.0)
    torch.testing.assert_close(result.target, column(5, 1))
    torch.testing.assert_close(result.advantage, column(6, 1))


def test_termination_has_no_future():
    """The second decision ends the race: v_1 = 2 + 2 * (3 - 2) = 4, whatever the next value."""
    weights = TraceWeights(column(0.5, 2), column(0.5, 1))
    result = trace_values(column(1, 3), column(1, 2, 400), weights, endings(2, terminated=[1]), 0.5)
    torch.testing.assert_close(result.target, column(1 + 0.5 + 0.5 * 0.5 * 2, 4))
    torch.testing.assert_close(result.advantage, column(0.5 * (1 + 0.5 * 4 - 1), 2))


def test_time_limit_has_a_value_but_no_trace():
    """The first decision is cut: its last observation, which the reset row saw, is worth 2, and nothing more comes."""
    flags = endings(3, is_reset=[1])
    weights = TraceWeights(column(0.5, 1, 1), column(0.5, 1, 1))
    result = trace_values(column(1, 99, 3), column(1, 2, 5, 4), weights, flags, 0.5)
    torch.testing.assert_close(result.target, column(1 + 0.5 * (1 + 1 - 1), 2, 3 + 2))
    torch.testing.assert_close(result.advantage, column(0.5, 0, 0))


def test_a_ratio_beyond_all_numbers_is_cut():
    """exp(1000) is infinite, and infinity times a surprise of 0 would be no number."""
    weights = truncated_weights(column(1000, -1000), rho_bar=1.0, c_bar=1.0)
    torch.testing.assert_close(weights.rho, column(1, 0))
    result = trace_values(column(0, 0), column(0, 0, 0), weights, endings(2), 0.9)
    assert torch.isfinite(result.target).all()


class World:
    """Two states, two actions, chance in both; what V-trace expects there, over all that can happen in some decisions.

    Every sequence of actions and states is a car of a block, weighed by how likely it is where mu acts, so that means
    are exact.
    """

    gamma = 0.8
    reward = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)  # [state, action]
    moves = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.7, 0.3]]], dtype=torch.float64)  # and next state
    mu = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    pi = torch.tensor([[0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)

    def __init__(self, rho_bar: float, c_bar: float, num_steps: int = 5) -> None:
        self.rho_bar, self.c_bar = rho_bar, c_bar
        per_step = [(action, state) for action in (0, 1) for state in (0, 1)]
        starts = [(0, state) for state in (0, 1)]  # what is done before the start is no part of the path
        paths = torch.tensor(list(product(starts, *[per_step] * num_steps)))
        self.action, self.state = paths[:, 1:, 0].T, paths[:, :, 1].T
        here, after = self.state[:-1], self.state[1:]
        self.likelihood = (self.mu[here, self.action] * self.moves[here, self.action, after]).prod(dim=0)
        log_ratio = (self.pi / self.mu).log()[here, self.action]
        self.weights = truncated_weights(log_ratio, rho_bar, c_bar)
        self.none = torch.zeros(self.action.shape, dtype=torch.bool)

    def operator(self, value: Tensor) -> Tensor:
        """R V, by the code under test."""
        ends = Endings(self.none, self.none)
        paid = self.reward[self.state[:-1], self.action]
        target = trace_values(paid, value[self.state], self.weights, ends, self.gamma).target[0]
        return self._mean(target)

    def matrix(self) -> Tensor:
        """How R V depends on V, by column."""
        nothing = torch.zeros(2, dtype=torch.float64)
        unit = torch.eye(2, dtype=torch.float64)
        return torch.stack([self.operator(column) - self.operator(nothing) for column in unit], dim=1)

    def stated_rate(self) -> Tensor:
        """The paper's eta for each state: 1/gamma - (1/gamma - 1) E[sum of gamma^t (c_0 ... c_(t-2)) rho_(t-1)]."""
        total, carried = torch.ones_like(self.likelihood), torch.ones_like(self.likelihood)
        for step in range(len(self.action)):
            total = total + self.gamma ** (step + 1) * carried * self.weights.rho[step]
            carried = carried * self.weights.c[step]
        return 1 / self.gamma - (1 / self.gamma - 1) * self._mean(total)

    def _mean(self, column: Tensor) -> Tensor:
        weighed = self.likelihood * column
        return torch.stack([weighed[self.state[0] == state].sum() for state in (0, 1)])

    def truncated_policy(self) -> Tensor:
        share = torch.minimum(self.rho_bar * self.mu, self.pi)
        return share / share.sum(dim=1, keepdim=True)

    def value_of(self, policy: Tensor) -> Tensor:
        paid = (policy * self.reward).sum(dim=1)
        moved = (policy[..., None] * self.moves).sum(dim=1)
        return torch.linalg.solve(torch.eye(2, dtype=torch.float64) - self.gamma * moved, paid)


BARS = pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (1.0, 0.3), (2.0, 1.0), (0.5, 0.5), (10.0, 1.0)])


@BARS
def test_the_fixed_point_is_the_value_of_the_truncated_policy(rho_bar: float, c_bar: float):
    """V4, exactly; for weights that are hardly cut this is pi, for ones that always are mu."""
    world = World(rho_bar, c_bar)
    expected = world.value_of(world.truncated_policy())
    torch.testing.assert_close(world.operator(expected), expected)
    wrong = world.operator(expected + torch.tensor([1.0, 0.0], dtype=torch.float64)) - expected
    assert float(wrong.abs().max()) > 1e-3, "and no other value is left alone"


def test_rho_bar_decides_where_values_settle():
    """V5: pi / mu is 0.17 to 2.7 here. Beyond these the values are those of pi and of mu, and of neither between."""
    of_pi, of_mu = World(1.0, 1.0).value_of(World.pi), World(1.0, 1.0).value_of(World.mu)
    torch.testing.assert_close(settled(World(3.0, 1.0)), of_pi)
    torch.testing.assert_close(settled(World(0.16, 0.1)), of_mu)
    between = settled(World(1.0, 1.0))
    assert float((between - of_pi).abs().max()) > 0.1
    assert float((between - of_mu).abs().max()) > 0.1


def test_c_bar_decides_how_fast_and_not_where():
    """V5: the same values with traces cut at 1 and at nearly nothing, in more steps."""
    far, near = World(3.0, 1.0), World(3.0, 0.01)
    torch.testing.assert_close(settled(far), settled(near))
    assert far.matrix().sum(dim=1).max() < near.matrix().sum(dim=1).max() - 0.05
    start, end = torch.zeros(2, dtype=torch.float64), settled(far)
    left = [float((steps(world, start, 5) - end).abs().max()) for world in (far, near)]
    assert left[0] < 0.5 * left[1]


@BARS
def test_it_contracts_at_the_stated_rate(rho_bar: float, c_bar: float):
    """V6: R is not negative and its rows sum to the paper's eta, which is at most 1 - (1 - gamma) beta."""
    world = World(rho_bar, c_bar)
    matrix = world.matrix()
    assert (matrix >= -1e-12).all()
    torch.testing.assert_close(matrix.sum(dim=1), world.stated_rate())
    beta = (world.mu * (world.pi / world.mu).clamp(max=rho_bar)).sum(dim=1).min()
    assert float(world.stated_rate().max()) <= 1 - (1 - world.gamma) * float(beta) + 1e-12


@pytest.mark.parametrize("rho_bar", [1.0, 10.0])
def test_values_of_visited_states_settle_there_too(rho_bar: float):
    """Theorem 2: a table, trajectories of mu, steps whose sum has no bound and the sum of whose squares has one."""
    world, chance = World(rho_bar, 1.0), np.random.default_rng(1)
    mu, moves, none = world.mu.numpy(), world.moves.numpy(), torch.zeros((8, 64), dtype=torch.bool)
    value = torch.zeros(2, dtype=torch.float64)
    for step in range(1, 401):
        state, action = chance.integers(2, size=(9, 64)), np.zeros((8, 64), np.int64)
        for now in range(8):
            action[now] = chance.random(64) > mu[state[now], 0]
            state[now + 1] = chance.random(64) > moves[state[now], action[now], 0]
        here, done = torch.from_numpy(state[:-1]), torch.from_numpy(action)
        weights = truncated_weights((world.pi / world.mu).log()[here, done], rho_bar, 1.0)
        seen = value[torch.from_numpy(state)]
        target = trace_values(world.reward[here, done], seen, weights, Endings(none, none), world.gamma).target
        error = torch.stack([(target - seen[:-1])[here == each].mean() for each in (0, 1)])
        value = value + step**-0.6 * error
    torch.testing.assert_close(value, world.value_of(world.truncated_policy()), atol=0.05, rtol=0.0)


def steps(world: World, value: Tensor, count: int) -> Tensor:
    for _ in range(count):
        value = world.operator(value)
    return value


def settled(world: World) -> Tensor:
    """Where R, which is linear, leaves values alone."""
    unit = torch.eye(2, dtype=torch.float64)
    return torch.linalg.solve(unit - world.matrix(), world.operator(torch.zeros(2, dtype=torch.float64)))
