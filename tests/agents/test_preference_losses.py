"""Advantages of groups and the loss of preferences: by hand, and against torchrl and the papers."""

from __future__ import annotations

import math

import pytest
import torch

from rulka.agents.policy_gradient import clipped_policy_loss
from rulka.agents.preferences import decision_weights, group_advantages, preference_loss


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


@pytest.mark.parametrize(
    ("chosen", "rejected", "beta", "expected"),
    [
        (0.0, 0.0, 0.1, math.log(2.0)),  # the reference itself
        (-7.0, -7.0, 5.0, math.log(2.0)),  # both as much less likely
        (2.0, -1.0, 1.0, math.log1p(math.exp(-3.0))),  # 0.0486
        (-1.0, 2.0, 1.0, 3.0 + math.log1p(math.exp(-3.0))),  # 3.0486: the wrong way round
        (2.0, -1.0, 0.5, math.log1p(math.exp(-1.5))),  # 0.2014
        (1000.0, -1000.0, 1.0, 0.0),  # long stretches: no overflow
    ],
)
def test_by_hand(chosen: float, rejected: float, beta: float, expected: float) -> None:
    loss = preference_loss(torch.tensor([chosen]), torch.tensor([rejected]), beta)
    torch.testing.assert_close(loss.loss, torch.tensor(expected))
    assert float(loss.margin) == pytest.approx(beta * (chosen - rejected))
    assert float(loss.accuracy) == float(chosen > rejected)


def test_equals_the_papers_formula() -> None:
    """A slow twin, from probabilities of every decision, with stretches of different lengths: equation 7."""
    generator = torch.Generator().manual_seed(0)
    beta, losses, ratios = 0.3, [], ([], [])
    for length in ((3, 5), (4, 1), (2, 2)):
        terms = []
        for side, num_decisions in enumerate(length):
            policy, reference = torch.rand(2, num_decisions, generator=generator)
            ratio = math.prod(policy.tolist()) / math.prod(reference.tolist())
            terms.append(beta * math.log(ratio))
            ratios[side].append((policy.log() - reference.log()).sum())
        losses.append(-math.log(1.0 / (1.0 + math.exp(-(terms[0] - terms[1])))))
    loss = preference_loss(torch.stack(ratios[0]), torch.stack(ratios[1]), beta)
    torch.testing.assert_close(loss.loss, torch.tensor(sum(losses) / 3))


def test_gradient_weighs_pairs_by_how_wrong_they_are() -> None:
    """Section 4: the gradient of a pair is -beta sigmoid(-margin), toward the chosen and away from the rejected."""
    chosen, rejected = torch.tensor([0.0, 3.0], requires_grad=True), torch.tensor([0.0, -3.0], requires_grad=True)
    preference_loss(chosen, rejected, beta=0.5).loss.backward()
    expected = torch.tensor([-0.5 * 0.5, -0.5 / (1.0 + math.exp(3.0))]) / 2
    torch.testing.assert_close(chosen.grad, expected)
    torch.testing.assert_close(rejected.grad, -expected)


@pytest.mark.parametrize("beta", [0.25, 1.0, 2.0])
def test_beta_decides_where_the_optimum_is(beta: float) -> None:
    """Three pairs of four prefer action 0 to 1: at the optimum beta (log-ratio of 0 - of 1) = ln 3, whatever the
    reference, which is 0.1, 0.7, 0.2 here.
    """
    reference = torch.tensor([0.1, 0.7, 0.2]).log()
    logits = reference.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=100, line_search_fn="strong_wolfe")
    better, worse = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 0])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        ratio = logits.log_softmax(dim=0) - reference
        loss = preference_loss(ratio[better], ratio[worse], beta).loss
        loss.backward()
        return loss

    optimizer.step(closure)
    ratio = (logits.log_softmax(dim=0) - reference).detach()
    assert float(ratio[0] - ratio[1]) == pytest.approx(math.log(3.0) / beta, rel=1e-3)
    assert closure().item() < math.log(2.0)
