"""The large-margin loss of DQfD."""

import torch

from rulka.agents.iqn import margin_loss


def test_by_hand() -> None:
    """Rows: another action is better; the demonstrated one leads by less than the margin; by more; by exactly it."""
    value = torch.tensor([[1.0, 3.0, 0.0], [1.0, 0.8, 0.0], [1.0, 0.2, 0.0], [0.0, 1.0, 0.5]])
    loss = margin_loss(value, torch.tensor([0, 0, 0, 1]), 0.5)
    torch.testing.assert_close(loss, torch.tensor([2.5, 0.3, 0.0, 0.0]))
    shifted = margin_loss(value + torch.tensor([[7.0], [-2.0], [0.5], [1.0]]), torch.tensor([0, 0, 0, 1]), 0.5)
    torch.testing.assert_close(shifted, loss)


def test_gradients_lift_the_demonstrated_action_and_lower_its_best_rival() -> None:
    value = torch.tensor([[1.0, 3.0, 0.0]], requires_grad=True)
    margin_loss(value, torch.tensor([0]), 0.5).sum().backward()
    assert value.grad is not None
    assert value.grad.tolist() == [[-1.0, 1.0, 0.0]]
