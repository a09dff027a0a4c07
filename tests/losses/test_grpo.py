"""Group-relative advantages, and the clipped surrogate with the weights of decisions."""

from __future__ import annotations

import math

import torch

from rulka.agents.policy_gradient import clipped_policy_loss
from rulka.agents.preferences import decision_weights, group_advantages


def test_advantages_by_hand() -> None:
    """Returns 1, 2, 6: mean 3, centred -2, -1, 3; variance (4 + 1 + 9) / 2 = 7. The other group is all alike."""
    returns = torch.tensor([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]])
    expected = torch.tensor([[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(group_advantages(returns), expected / math.sqrt(7.0))


def test_advantages_of_a_group_sum_to_nothing() -> None:
    returns = 100.0 * torch.randn(20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = group_advantages(returns).sum(dim=1)
    torch.testing.assert_close(sums, torch.zeros(20, dtype=torch.float64), atol=1e-9, rtol=0)


def test_a_shift_of_rewards_changes_nothing_between_races_of_one_length() -> None:
    """0.7 more for each of 40 decisions; between races of different lengths it is a reward for lasting."""
    rewards = torch.randn(5, 4, 40, generator=torch.Generator().manual_seed(1))
    plain, shifted = (group_advantages(x.sum(dim=2)) for x in (rewards, rewards + 0.7))
    torch.testing.assert_close(plain, shifted, atol=1e-4, rtol=1e-4)
    longer = group_advantages(torch.tensor([[10 * 0.7, 40 * 0.7]]))
    assert longer[0, 1] > 0.0


def test_division_by_the_deviation_makes_the_scale_of_rewards_irrelevant() -> None:
    returns = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(group_advantages(1000.0 * returns), group_advantages(returns))


def test_weights_by_hand() -> None:
    """A race of 1 decision and one of 3: 4 / (2 * 1) = 2, and 4 / (2 * 3) = 2 / 3 three times; the mean is 1."""
    length = torch.tensor([1, 3])
    torch.testing.assert_close(decision_weights(length), torch.tensor([2.0, 2.0 / 3.0]))


def test_weighted_surrogate_by_hand() -> None:
    """A race of 1 decision: min(1.5 * 2, 1.2 * 2) = 2.4; one of 3: -1, min(-0.5, -0.8) = -0.8 and -1.1."""
    log_ratio, length = torch.tensor([math.log(1.5), 0.0, math.log(0.5), math.log(1.1)]), torch.tensor([1, 3])
    each = torch.tensor([2.0, -1.0]).repeat_interleave(length)
    weight = decision_weights(length).repeat_interleave(length)
    loss = clipped_policy_loss(log_ratio, torch.zeros(4), each, 0.2, weight).loss
    torch.testing.assert_close(loss, torch.tensor(-(2.4 + (-1.0 - 0.8 - 1.1) / 3.0) / 2.0))


class Given(torch.nn.Module):
    """A policy of torchrl's kind whose log-probabilities are given; all decisions count that are not padding."""

    def __init__(self, log_prob: torch.Tensor, mask: torch.Tensor) -> None:
        super().__init__()
        self.given, self.mask = log_prob, mask

    def get_dist(self, _data, **_keys) -> Given:
        return self

    def log_prob(self, _action: torch.Tensor) -> torch.Tensor:
        return self.given


def test_agrees_with_torchrl() -> None:
    """An independent implementation as oracle: six races of 3 to 9 decisions, advantages and loss."""
    from tensordict import TensorDict
    from torchrl.objectives.llm import GRPOLoss

    generator = torch.Generator().manual_seed(2)
    length = torch.tensor([3, 9, 5, 4, 8, 6])
    mask = torch.arange(9) < length[:, None]
    now, old = -torch.rand(2, 6, 9, generator=generator)
    advantage = group_advantages(torch.randn(2, 3, generator=generator)).flatten()
    data = TensorDict(
        {
            ("tokens", "full"): torch.zeros(6, 9, dtype=torch.int64),
            ("log_probs", "full"): torch.where(mask, old, 0.0),
            "advantage": advantage[:, None, None].expand(6, 9, 1).clone(),
        },
        batch_size=[6],
    )
    oracle = GRPOLoss(
        Given(now, mask), clip_epsilon=0.2, aggregation="prompt_mean", entropy_bonus=False, masking_strategy="generic"
    )
    weight, each = decision_weights(length).repeat_interleave(length), advantage.repeat_interleave(length)
    loss = clipped_policy_loss(now[mask], old[mask], each, 0.2, weight).loss
    torch.testing.assert_close(loss, oracle(data).loss_objective.squeeze())
