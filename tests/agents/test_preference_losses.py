"""Advantages of groups and the loss of preferences: by hand, and against torchrl and the papers."""

from __future__ import annotations

import math

import torch

from rulka.agents.policy_gradient import clipped_policy_loss
from rulka.agents.preferences import decision_weights, group_advantages, preference_loss


def test_advantages_by_hand() -> None:
    """Returns 1, 2, 6: mean 3, centred -2, -1, 3; variance (4 + 1 + 9) / 2 = 7. The other group is all alike."""
    returns = torch.tensor([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0]])
    expected = torch.tensor([[-2.0, -1.0, 3.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(group_advantages(returns), expected / math.sqrt(7.0))


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
