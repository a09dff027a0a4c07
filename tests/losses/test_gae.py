"""Generalised advantage estimation."""

from __future__ import annotations

import pytest
import torch

from rulka.agents.advantages import Endings, estimate_advantages


def endings(num_steps: int, **at: list[int]) -> Endings:
    flags = {name: torch.zeros(num_steps, 1, dtype=torch.bool) for name in Endings._fields}
    for name, steps in at.items():
        flags[name][steps] = True
    return Endings(**flags)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_by_hand():
    """gamma 0.5, lambda 0.5, values 1, 2, then 4: errors 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3;
    advantages 3 and 1 + 0.25 * 3 = 1.75.
    """
    result = estimate_advantages(column(1, 3), column(1, 2, 4), endings(2), 0.5, 0.5)
    torch.testing.assert_close(result.advantage, column(1.75, 3))
    torch.testing.assert_close(result.returns, column(2.75, 5))


def test_termination_has_no_future():
    """The second decision ends the race: its error is 3 - 2 = 1, whatever the next value."""
    result = estimate_advantages(column(1, 3), column(1, 2, 400), endings(2, terminated=[1]), 0.5, 0.5)
    torch.testing.assert_close(result.advantage, column(1.25, 1))


def test_time_limit_has_a_value_but_no_trace():
    """The first decision is cut: error 1 + 0.5 * 2 - 1 = 1 with the value of its last observation, nothing more."""
    result = estimate_advantages(column(1, 0, 3), column(1, 2, 5, 4), endings(3, truncated=[0], is_reset=[1]), 0.5, 0.5)
    torch.testing.assert_close(result.advantage, column(1, 0, 0))  # the last: 3 + 0.5 * 4 - 5 = 0


def test_a_reset_is_no_transition():
    """Reward and value error of the reset row, however large, touch nothing."""
    flags = endings(3, terminated=[0], is_reset=[1])
    plain = estimate_advantages(column(1, 0, 3), column(1, 0, 5, 4), flags, 0.9, 0.9)
    wild = estimate_advantages(column(1, 99, 3), column(1, 77, 5, 4), flags, 0.9, 0.9)
    torch.testing.assert_close(plain.advantage, wild.advantage)
    assert float(plain.advantage[1]) == 0.0


@pytest.mark.parametrize("trace_decay", [0.0, 0.7, 1.0])
def test_equals_the_sum_over_the_future(trace_decay: float):
    """A slow twin: sum of (gamma lambda)^k times the errors until the race ends or the rows do."""
    generator = torch.Generator().manual_seed(3)
    num_steps, num_cars, gamma = 20, 3, 0.9
    reward = torch.randn(num_steps, num_cars, generator=generator)
    value = torch.randn(num_steps + 1, num_cars, generator=generator)
    kind = torch.rand(num_steps, num_cars, generator=generator)
    terminated, truncated = kind < 0.1, (kind >= 0.1) & (kind < 0.2)
    is_reset = torch.zeros_like(terminated)
    is_reset[1:] = (terminated | truncated)[:-1]
    terminated &= ~is_reset
    truncated &= ~is_reset
    result = estimate_advantages(reward, value, Endings(terminated, truncated, is_reset), gamma, trace_decay)
    for car in range(num_cars):
        for start in range(num_steps):
            total, factor = 0.0, 1.0
            for step in range(start, num_steps):
                if is_reset[step, car]:
                    break
                follows = 0.0 if terminated[step, car] else float(value[step + 1, car])
                total += factor * (float(reward[step, car]) + gamma * follows - float(value[step, car]))
                factor *= gamma * trace_decay
                if terminated[step, car] or truncated[step, car]:
                    break
            assert float(result.advantage[start, car]) == pytest.approx(total, abs=1e-4)


def test_agrees_with_torchrl():
    """An independent implementation as oracle: 50 steps of 6 cars, with ends of both kinds and no resets."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    generator = torch.Generator().manual_seed(4)
    reward, value = torch.randn(50, 6, generator=generator), torch.randn(51, 6, generator=generator)
    kind = torch.randint(0, 12, (50, 6), generator=generator)
    terminated, truncated = kind == 0, kind == 1
    ours = estimate_advantages(reward, value, Endings(terminated, truncated, torch.zeros_like(terminated)), 0.97, 0.9)
    theirs, _target = generalized_advantage_estimate(
        0.97, 0.9, *(x.unsqueeze(-1) for x in (value[:-1], value[1:], reward, terminated | truncated, terminated)),
        time_dim=0,
    )  # fmt: skip
    torch.testing.assert_close(ours.advantage, theirs.squeeze(-1))
