"""V-trace: its formula, what it converges to, and how fast."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from rulka.agents.advantages import Endings
from rulka.agents.impala import TraceWeights, trace_values, truncated_ratio
from tests.agents.conftest import endings, random_ends


def truncated_weights(log_ratio: Tensor, rho_bar: float, c_bar: float) -> TraceWeights:
    return TraceWeights(truncated_ratio(log_ratio, rho_bar), truncated_ratio(log_ratio, c_bar))


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_by_hand():
    """gamma 0.5, weights pi/mu 0.5 and 3, cut at 2 (rho) and 1 (c); values 1, 2, then 4.

    Surprises 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3; deltas 0.5 * 1 and 2 * 3 = 6. v_1 = 2 + 6 = 8,
    v_0 = 1 + 0.5 + 0.5 * 0.5 * 6 = 3. Advantages 2 * (3 + 2 - 2) = 6 and 0.5 * (1 + 0.5 * 8 - 1) = 2.
    """
    weights = truncated_weights(column(0.5, 3).log(), rho_bar=2.0, c_bar=1.0)
    torch.testing.assert_close(weights, TraceWeights(column(0.5, 2), column(0.5, 1)))
    result = trace_values(column(1, 3), column(1, 2, 4), weights, endings(2), 0.5)
    torch.testing.assert_close(result.target, column(3, 8))
    torch.testing.assert_close(result.advantage, column(2, 6))


def test_a_ratio_beyond_all_numbers_is_cut():
    """exp(1000) is infinite, and infinity times a surprise of 0 would be no number."""
    weights = truncated_weights(column(1000, -1000), rho_bar=1.0, c_bar=1.0)
    torch.testing.assert_close(weights.rho, column(1, 0))
    result = trace_values(column(0, 0), column(0, 0, 0), weights, endings(2), 0.9)
    assert torch.isfinite(result.target).all()


def random_case(num_steps: int = 30, num_cars: int = 5) -> tuple[Tensor, Tensor, Tensor, Endings]:
    """Returns rewards, values, logarithms of weights and how decisions ended, resets behind every end."""
    generator = torch.Generator().manual_seed(3)
    shape = num_steps, num_cars
    reward, log_ratio = torch.randn(shape, generator=generator), 0.7 * torch.randn(shape, generator=generator)
    value = torch.randn(num_steps + 1, num_cars, generator=generator)
    return reward.double(), value.double(), log_ratio.double(), random_ends(num_steps, num_cars)


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 1.0), (1.5, 0.5), (1e9, 1e9)])
def test_the_recursion_is_the_sum_over_the_future(rho_bar: float, c_bar: float):
    """V1 = V2: v_s = V(x_s) + sum over t of gamma^(t-s) (c_s ... c_(t-1)) delta_t, to the end of race or rows."""
    reward, value, log_ratio, ends = random_case()
    gamma = 0.9
    result = trace_values(reward, value, truncated_weights(log_ratio, rho_bar, c_bar), ends, gamma)
    for start, car in product(*map(range, reward.shape)):
        target, carried, step = float(value[start, car]), 1.0, start
        while step < len(reward) and not ends.is_reset[step, car]:
            ratio = float(log_ratio[step, car].exp())
            follows = 0.0 if ends.terminated[step, car] else float(value[step + 1, car])
            target += (
                carried * min(rho_bar, ratio) * (float(reward[step, car]) + gamma * follows - float(value[step, car]))
            )
            carried *= gamma * min(c_bar, ratio)
            step += 1
        assert float(result.target[start, car]) == pytest.approx(target, abs=1e-9)


def test_advantages_take_the_better_estimate_of_what_follows():
    """rho_s (r_s + gamma v_(s+1) - V(x_s)), where v_(s+1) is 0 behind an end and the value behind a cut."""
    reward, value, log_ratio, ends = random_case()
    weights = truncated_weights(log_ratio, 1.2, 1.0)
    result = trace_values(reward, value, weights, ends, 0.9)
    # A reset row's target is its value, which is that of the last observation of the race before it.
    follows = torch.cat([result.target[1:], value[-1:]])
    expected = weights.rho * (reward + 0.9 * torch.where(ends.terminated, 0.0, follows) - value[:-1])
    torch.testing.assert_close(result.advantage, torch.where(ends.is_reset, 0.0, expected))


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (2.0, 0.7)])
def test_agrees_with_torchrl(rho_bar: float, c_bar: float):
    """An independent implementation as oracle, with ends of both kinds and no resets."""
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    reward, value, log_ratio, ends = random_case(50, 6)
    ends = Endings(ends.terminated, ends.truncated, torch.zeros_like(ends.is_reset))
    log_mu = -torch.rand(reward.shape, generator=torch.Generator().manual_seed(5)).double()
    ours = trace_values(reward, value, truncated_weights(log_ratio, rho_bar, c_bar), ends, 0.97)
    columns = (log_mu + log_ratio, log_mu, value[:-1], value[1:], reward, ends.terminated | ends.truncated)
    advantage, target = vtrace_advantage_estimate(
        0.97, *(x.unsqueeze(-1) for x in (*columns, ends.terminated)), rho_bar, c_bar, time_dim=0
    )
    # Its discount is float32, whatever the others are.
    torch.testing.assert_close(ours.target, target.squeeze(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.advantage, advantage.squeeze(-1), rtol=1e-4, atol=1e-5)
