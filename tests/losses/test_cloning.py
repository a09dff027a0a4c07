"""Losses of Level 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from rulka.pretraining.cloning_losses import action_loss, action_weights


def some_frames() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator)
    share = torch.rand(6, 4, generator=generator)
    return logits, share / share.sum(dim=1, keepdim=True)


def test_plain_is_the_cross_entropy_of_torch() -> None:
    logits, share = some_frames()
    plain = action_loss(logits, share, torch.ones(4), 0.0)
    torch.testing.assert_close(plain, functional.cross_entropy(logits, share))


def test_the_slow_twin_of_weights_and_focus() -> None:
    logits, share = some_frames()
    weights, total = [0.5, 2.0, 1.0, 0.25], 0.0
    for row, label in zip(logits.tolist(), share.tolist(), strict=True):
        norm = sum(map(math.exp, row))
        probs = [math.exp(x) / norm for x in row]
        total += sum(-s * w * (1 - p) ** 2 * math.log(p) for s, w, p in zip(label, weights, probs, strict=True))
    found = action_loss(logits, share, torch.tensor(weights), 2.0)
    assert float(found) == pytest.approx(total / 6, rel=1e-5)


@pytest.mark.parametrize(("exponent", "expected"), [(0.0, [1.0, 1.0, 1.0, 0.0]), (1.0, [2 / 3, 4 / 3, 4 / 3, 0.0])])
def test_weights_make_frames_weigh_one(exponent: float, expected: list[float]) -> None:
    """Half of the frames have the first action, a quarter each of two others, none the last: at 1 each has a third."""
    share = torch.tensor([0.5, 0.25, 0.25, 0.0])
    weights = action_weights(share, exponent)
    torch.testing.assert_close(weights, torch.tensor(expected))
    assert float((weights * share).sum()) == pytest.approx(1.0)


def test_a_frame_that_is_known_counts_for_little_where_hard_ones_are_looked_at() -> None:
    share = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    known, unknown = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    plain, focal = (
        action_loss(known, share[:1], torch.ones(2), focus) / action_loss(unknown, share[:1], torch.ones(2), focus)
        for focus in (0.0, 2.0)
    )
    assert float(focal) < 0.01 * float(plain)


def test_frames_without_a_label_count_nothing() -> None:
    """By hand: of three frames the middle one has a label, which one of two actions is found likely by 3 to 1."""
    logits = torch.tensor([[9.0, -9.0], [math.log(3.0), 0.0], [-50.0, 50.0]], requires_grad=True)
    share = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    loss = action_loss(logits, share, torch.ones(2), 0.0, torch.tensor([False, True, False]))
    assert loss.item() == pytest.approx(math.log(4.0))
    loss.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, 0.0], [0.75, -0.75], [0.0, 0.0]]))


def test_a_batch_without_any_label_loses_nothing() -> None:
    logits, share = some_frames()
    assert float(action_loss(logits, share, torch.ones(4), 2.0, torch.zeros(6, dtype=torch.bool))) == 0.0
