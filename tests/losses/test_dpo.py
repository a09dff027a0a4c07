"""Direct preference optimisation's loss."""

from __future__ import annotations

import math

import pytest
import torch

from rulka.agents.preferences import preference_loss


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
