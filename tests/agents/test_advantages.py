"""Advantages against slow twins and torchrl, and the value that agrees with its own lambda-returns."""

from __future__ import annotations

import pytest
import torch

from rulka.agents.advantages import Endings, estimate_advantages, solve_linear_value
from tests.agents.conftest import endings, random_ends


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_by_hand():
    """gamma 0.5, lambda 0.5, values 1, 2, then 4: errors 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3;
    advantages 3 and 1 + 0.25 * 3 = 1.75.
    """
    result = estimate_advantages(column(1, 3), column(1, 2, 4), endings(2), 0.5, 0.5)
    torch.testing.assert_close(result.advantage, column(1.75, 3))
    torch.testing.assert_close(result.returns, column(2.75, 5))


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_equals_the_sum_over_the_future(gae_lambda: float):
    """A slow twin: sum of (gamma lambda)^k times the errors until the race ends or the rows do."""
    generator = torch.Generator().manual_seed(3)
    num_steps, num_cars, gamma = 20, 3, 0.9
    reward = torch.randn(num_steps, num_cars, generator=generator)
    value = torch.randn(num_steps + 1, num_cars, generator=generator)
    ends = random_ends(num_steps, num_cars)
    result = estimate_advantages(reward, value, ends, gamma, gae_lambda)
    for car in range(num_cars):
        for start in range(num_steps):
            total, factor = 0.0, 1.0
            for step in range(start, num_steps):
                if ends.is_reset[step, car]:
                    break
                follows = 0.0 if ends.terminated[step, car] else float(value[step + 1, car])
                total += factor * (float(reward[step, car]) + gamma * follows - float(value[step, car]))
                factor *= gamma * gae_lambda
                if ends.terminated[step, car] or ends.truncated[step, car]:
                    break
            assert float(result.advantage[start, car]) == pytest.approx(total, abs=1e-4)


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
    endings = Endings(ends, ~ends, ~ends)
    found = solve_linear_value(feature, reward, endings, 0.9, 0.9, 1.0)
    assert float(found.weight[0]) == pytest.approx(1.0)
    assert float(3.0 * found.weight[0] + found.bias) == pytest.approx(7.0)


def test_more_cars_than_are_taken_at_once() -> None:
    feature, reward, endings = chain([[0, 1, 2], [1, 2, 0]] * 40, terminated=[[1, 2 * car + 1] for car in range(40)])
    assert values(feature, reward, endings, 0.5, 0.9, 0.0) == pytest.approx([2.75, 3.5, 3.0], abs=1e-9)
