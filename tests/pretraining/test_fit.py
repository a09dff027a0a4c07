"""The training loop: keeps the best epoch, stops on nonsense, repeats itself."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from rulka.datasets.formats.frames import Batch
from rulka.machine.errors import UserError
from rulka.machine.progress import Progress
from rulka.pretraining.fit import History, TrainingTask, _rate_factor, fit, say_if_stopped
from rulka.pretraining.params import FitParams

NAN = float("nan")
PARAMS = FitParams(
    epochs=4,
    batch_size=3,
    learning_rate=0.1,
    weight_decay=0.0,
    max_grad_norm=10.0,
    precision="float32",
    checkpoint_s=1e-9,
)


def batches(epoch: int) -> Iterator[Batch]:
    for step in range(5):
        floats = torch.full((2 + step % 2, 1), 1.0 + epoch)
        empty = torch.zeros(len(floats), 0)
        yield Batch(empty, floats, empty)


class Line(nn.Linear):
    """One weight and one bias; remembers frames and loss of every step, and what it was at the end of every epoch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(1, 1)
        self.seen: list[tuple[int, float]] = []
        self.at_end_of_epoch: list[tuple[float, float]] = []

    @property
    def weights(self) -> tuple[float, float]:
        return self.weight.item(), self.bias.item()


Spoil = Callable[[int, Line, torch.Tensor], torch.Tensor]


def run(
    validation: Sequence[float | None] = (None,) * 4,
    judge: Callable[[int], tuple[float, ...] | None] | None = None,
    spoil: Spoil = lambda _step, _network, loss: loss,
    **changes: Any,
) -> tuple[History, Line]:
    """Trains for four epochs of five steps; `spoil` may change the loss of a step, counted from 0."""
    network, remaining = Line(), iter(validation)

    def loss(batch: Batch) -> torch.Tensor:
        plain = (network(batch.floats) - 3).square().mean()
        network.seen.append((len(batch.floats), plain.item()))
        return spoil(len(network.seen) - 1, network, plain)

    def validate() -> float | None:
        network.at_end_of_epoch.append(network.weights)
        return next(remaining)

    bar = Progress("", None, "frames", stream=io.StringIO())
    return fit(
        network, PARAMS.model_copy(update=changes), 5, TrainingTask(batches, loss, validate, judge), bar
    ), network


LOSSES = [3.0, 1.0, 2.0, 1.5]
RUNS: tuple[tuple[list[float | None], dict[int, tuple[float, ...]] | None, int | None, int, int], ...] = (
    (LOSSES, None, None, 4, 1),
    ([1.0, 2.0, 3.0, 4.0], None, None, 4, 0),
    ([4.0, 3.0, 2.0, 1.0], None, None, 4, 3),
    ([2.0, 1.0, 1.0, 1.0], None, None, 4, 1),
    ([NAN, 3.0, 2.0, 2.5], None, None, 4, 2),
    ([3.0, NAN, 4.0, float("inf")], None, None, 4, 0),
    (LOSSES, {0: (0.5, 1.0), 2: (0.5, 2.0)}, None, 4, 2),
    (LOSSES, {0: (0.6, 1.0), 2: (0.5, 2.0)}, None, 4, 0),
    (LOSSES, {1: (0.5, 1.0), 3: (0.5, 1.0)}, None, 4, 1),
    (LOSSES, {1: (0.5, NAN), 3: (0.0, 0.0)}, None, 4, 3),
    (LOSSES, {}, None, 4, 1),  # a judge that never looks leaves it to the loss
    (LOSSES, {1: (2.0, 0.0), 3: (1.0, 0.0)}, 1, 4, 1),  # what was not judged is no better, and no reason to end
    (LOSSES, {0: (2.0, 0.0), 1: (1.0, 0.0)}, 1, 2, 0),
    (LOSSES, None, 2, 4, 1),
    ([1.0, 2.0, 0.5, 4.0], None, 1, 2, 0),
    ([1.0, 2.0, 3.0, 0.5], None, 2, 3, 0),
    ([NAN, 1.0, NAN, 0.5], None, 2, 4, 3),
)
"""Losses on held-out frames, ranks by the judge, patience; and how many epochs there are, and which is the best."""


def test_the_best_epoch_is_kept_and_training_ends_once_patience_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    """The weights are those at its end, not those it began with; a loss that is no number is never the best."""
    for validation, ranks, patience, num_epochs, best in RUNS:
        judge = None if ranks is None else ranks.get
        history, network = run(validation, judge=judge, patience=patience)
        assert len(set(network.at_end_of_epoch)) == num_epochs
        assert (len(history.epochs), history.best_epoch) == (num_epochs, best)
        assert network.weights == network.at_end_of_epoch[best]
        told = [epoch.to_json()["validation_loss"] for epoch in history.epochs]
        assert told == [loss if loss is not None and math.isfinite(loss) else None for loss in validation[:num_epochs]]
        say_if_stopped("pretrain", history)
        said = capsys.readouterr().err
        is_over = patience is not None and num_epochs - best > patience
        assert history.stopped == (f"no better epoch in {patience}, at epoch {num_epochs} of 4" if is_over else None)
        assert said == (f"pretrain: {history.stopped}; the weights of epoch {best + 1} are kept\n" if is_over else "")


def test_no_finite_validation_loss_is_an_error_that_names_the_parameter() -> None:
    for patience in (None, 1):
        with pytest.raises(UserError, match="no epoch ended with finite losses") as caught:
            run([NAN] * 4, patience=patience)
        assert "learning_rate" in caught.value.hint
    with pytest.raises(UserError, match="became nan in epoch 1 of 4"):
        run(spoil=lambda step, _, loss: loss * NAN if step == 4 else loss)


def test_without_validation_the_training_loss_decides() -> None:
    """It is the mean over frames, of which batches have two and three in turn."""
    history, network = run()
    losses = [epoch.train_loss for epoch in history.epochs]
    assert losses[history.best_epoch] == min(losses)
    assert network.weights == network.at_end_of_epoch[history.best_epoch]
    first = network.seen[:5]
    assert [num_frames for num_frames, _ in first] == [2, 3, 2, 3, 2]
    assert losses[0] == pytest.approx(sum(num_frames * loss for num_frames, loss in first) / 12)


def with_infinite_gradient(loss: torch.Tensor) -> torch.Tensor:
    loss.register_hook(lambda gradient: gradient * torch.inf)
    return loss


@pytest.mark.parametrize("at_step", [12, 14])
@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        ("the training loss became nan", lambda loss: loss * NAN),
        ("the training loss became inf", lambda loss: loss * torch.inf),
        ("the norm of the gradient became", with_infinite_gradient),
    ],
)
def test_divergence_keeps_the_best_weights_before_it(
    capsys: pytest.CaptureFixture[str], at_step: int, reason: str, spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    history, network = run(spoil=lambda step, _, loss: spoil(loss) if step == at_step else loss)
    assert history.stopped.startswith(reason)
    assert history.stopped.endswith("in epoch 3 of 4")
    assert len(history.epochs) == 2
    assert network.weights == network.at_end_of_epoch[history.best_epoch]
    assert all(math.isfinite(weight) for weight in network.weights)
    say_if_stopped("clone", history)
    said = capsys.readouterr().err
    assert said.startswith(f"clone: {reason}")
    assert f"the weights of epoch {history.best_epoch + 1} are kept" in said


def test_weights_that_are_no_numbers_are_never_kept() -> None:
    """The last step of the last epoch spoils the weights, which no training loss shows any more."""

    def ruin(step: int, network: Line, loss: torch.Tensor) -> torch.Tensor:
        def fill(gradient: torch.Tensor) -> torch.Tensor:
            network.bias.data.fill_(NAN)
            return gradient

        if step < 19:
            return loss
        network.bias.register_hook(fill)
        return 0 * loss - 100  # so that no epoch has a lower loss

    history, network = run(spoil=ruin)
    assert len(history.epochs) == 4
    assert not math.isfinite(network.at_end_of_epoch[3][1])
    assert min(history.epochs, key=lambda epoch: epoch.train_loss).epoch == 3
    assert history.best_epoch < 3
    assert network.weights == network.at_end_of_epoch[history.best_epoch]


def test_learning_rate_by_hand() -> None:
    factor = _rate_factor(100)  # 5 steps of warm-up
    assert [factor(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert factor(5 + 95 // 2) == pytest.approx(0.5, abs=0.01)
    assert factor(99) < 0.001
