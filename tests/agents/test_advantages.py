"""Advantages, the value that agrees with its own lambda-returns, and V-trace by hand; see `test_twins.py` too."""

from __future__ import annotations

import pytest
import torch

from rulka.agents.impala.learner import trace_values, truncated_ratio
from rulka.agents.shared.advantages import Endings, estimate_advantages
from rulka.agents.shared.linear_value import solve_linear_value


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def endings(num_steps: int, num_cars: int = 1, **at: list[tuple[int, int]]) -> Endings:
    """Flags [T, N] that are set at the (decision, car) named."""
    flags = {name: torch.zeros(num_steps, num_cars, dtype=torch.bool) for name in Endings._fields}
    for name, places in at.items():
        for place in places:
            flags[name][place] = True
    return Endings(**flags)


def test_gae_by_hand():
    """gamma 0.5, lambda 0.5, values 1, 2, then 4: errors 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3;
    advantages 3 and 1 + 0.25 * 3 = 1.75.
    """
    result = estimate_advantages(column(1, 3), column(1, 2, 4), endings(2), 0.5, 0.5)
    torch.testing.assert_close(result.advantage, column(1.75, 3))
    torch.testing.assert_close(result.returns, column(2.75, 5))


def chain(states: list[list[int]], **ends: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor, Endings]:
    """Features, rewards and endings of cars that see states [N][T + 1] of three; state s pays s + 1.

    Features are the three indicators of a state.
    """
    seen = torch.tensor(states).T
    feature = torch.nn.functional.one_hot(seen, 3).float()
    return feature, (seen[:-1] + 1).float(), endings(len(seen) - 1, len(states), **ends)


def values(feature: torch.Tensor, reward: torch.Tensor, ends: Endings, gae_lambda: float) -> list[float]:
    weight, bias = solve_linear_value(feature, reward, ends, 0.5, gae_lambda, 0.0)
    return (weight + bias).tolist()  # of the indicators


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_three_states_by_hand(gae_lambda: float) -> None:
    """States 0, 1, 2 pay 1, 2, 3, then the race ends; gamma 0.5: V(2) = 3, V(1) = 2 + 1.5 = 3.5, V(0) = 2.75.

    No block of two decisions holds a whole race: the one begins in state 0 and is cut off by its end, the other begins
    in state 1, ends its race and has a reset.
    """
    parts = chain([[0, 1, 2], [1, 2, 0], [2, 0, 0]], terminated=[(1, 1), (0, 2)], is_reset=[(1, 2)])
    assert values(*parts, gae_lambda) == pytest.approx([2.75, 3.5, 3.0], abs=1e-9)


def test_ridge_shrinks_the_weights_and_leaves_the_mean() -> None:
    """One feature of mean 3 and variance 1, returns 2 f + 1: a ridge of 1 halves the weight, not the mean value 7."""
    feature = torch.tensor([2.0, 4.0]).repeat(2, 1)[..., None]
    reward = 2.0 * feature[:1, :, 0] + 1.0
    ends = endings(1, 2, terminated=[(0, 0), (0, 1)])
    weight, bias = solve_linear_value(feature, reward, ends, 0.9, 0.9, 1.0)
    assert float(weight[0]) == pytest.approx(1.0)
    assert float(3.0 * weight[0] + bias) == pytest.approx(7.0)


def test_more_cars_than_are_taken_at_once() -> None:
    parts = chain([[0, 1, 2], [1, 2, 0]] * 40, terminated=[(1, 2 * car + 1) for car in range(40)])
    assert values(*parts, 0.9) == pytest.approx([2.75, 3.5, 3.0], abs=1e-9)


@pytest.mark.parametrize(
    ("reward", "value", "rho", "c", "flags", "target", "advantage"),
    [
        # Surprises 1 + 0.5 * 2 - 1 = 1 and 3 + 0.5 * 4 - 2 = 3, deltas 0.5 * 1 and 2 * 3: v_1 = 2 + 6,
        # v_0 = 1 + 0.5 + 0.5 * 0.5 * 6; advantages 0.5 * (1 + 0.5 * 8 - 1) and 2 * 3.
        ([1, 3], [1, 2, 4], [0.5, 2], [0.5, 1], {}, [3, 8], [2, 6]),
        # A later surprise goes back past a decision by c alone: v_0 = 3 * 1 + 0.5 * 2 * 1, not 0.5 * 3.
        ([1, 1], [0, 0, 0], [3, 1], [2, 1], {}, [4, 1], [4.5, 1]),
        # The second decision ends the race, whatever the next value: v_1 = 2 + 2 * (3 - 2).
        ([1, 3], [1, 2, 400], [0.5, 2], [0.5, 1], {"terminated": [(1, 0)]}, [2, 4], [1, 2]),
        # The first is cut: its last observation, which the reset row saw, is worth 2, and nothing more comes.
        ([1, 99, 3], [1, 2, 5, 4], [0.5, 1, 1], [0.5, 1, 1], {"is_reset": [(1, 0)]}, [1.5, 2, 5], [0.5, 0, 0]),
    ],
    ids=["two decisions", "c carries", "termination", "time limit"],
)
def test_vtrace_by_hand(reward, value, rho, c, flags, target, advantage):
    """With gamma 0.5."""
    result = trace_values(column(*reward), column(*value), column(*rho), column(*c), endings(len(reward), **flags), 0.5)
    torch.testing.assert_close(result.target, column(*target))
    torch.testing.assert_close(result.advantage, column(*advantage))


def test_ratios_are_truncated():
    """Also one beyond all numbers: exp(1000) is infinite, and infinity times a surprise of 0 would be no number."""
    log_ratio = torch.cat([column(0.5, 3).log(), column(1000, -1000)])
    torch.testing.assert_close(truncated_ratio(log_ratio, 2.0), column(0.5, 2, 2, 0))
