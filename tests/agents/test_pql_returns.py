"""Return distributions over atoms."""

import math

import torch

from rulka.agents.pql import categorical_loss, project_returns


def test_projections_by_hand() -> None:
    """Atoms 0, 1 and 2: 0.75 lies a quarter away from 1; nothing follows a reward of 1.5; 5 is beyond the last."""
    for probability, reward, discount, expected in (
        ([0.0, 1.0, 0.0], 0.25, 0.5, [0.25, 0.75, 0.0]),
        ([0.2, 0.3, 0.5], 1.5, 0.0, [0.0, 0.5, 0.5]),
        ([0.0, 0.0, 1.0], 5.0, 1.0, [0.0, 0.0, 1.0]),
    ):
        given = (torch.tensor([probability]), torch.tensor([reward]), torch.tensor([discount]))
        torch.testing.assert_close(project_returns(*given, torch.tensor([0.0, 1.0, 2.0])), torch.tensor([expected]))


def test_projections_agree_with_a_naive_loop_and_keep_mass_and_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    support = torch.linspace(-2.0, 3.0, 11)
    probability = torch.rand(50, 11, generator=generator)
    probability /= probability.sum(dim=1, keepdim=True)
    reward, discount = torch.randn(50, generator=generator), torch.rand(50, generator=generator)
    result = project_returns(probability, reward, discount, support)
    naive = torch.zeros_like(result)
    for row in range(50):
        for atom in range(11):
            place = (min(max(float(reward[row] + discount[row] * support[atom]), -2.0), 3.0) + 2.0) / 0.5
            for near in range(11):
                naive[row, near] += probability[row, atom] * max(0.0, 1.0 - abs(place - near))
    torch.testing.assert_close(result, naive, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.sum(dim=1), torch.ones(50))
    within = (reward[:, None] + discount[:, None] * support).clamp(-2.0, 3.0)
    torch.testing.assert_close((result * support).sum(dim=1), (probability * within).sum(dim=1), rtol=1e-4, atol=1e-5)


def test_the_loss_by_hand_and_its_minimum() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]], requires_grad=True)
    target = torch.tensor([[0.5, 0.5], [0.75, 0.25]])
    loss = categorical_loss(logits, target)
    least = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(loss, torch.tensor([math.log(2.0), least]))
    loss.sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.zeros(2, 2), rtol=0.0, atol=1e-6)
