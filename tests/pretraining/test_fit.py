"""The training loop: keeps the best epoch, stops on nonsense, repeats itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rulka.datasets.frames import Batch
from rulka.pretraining.fit import FitError, FitSettings, History, _rate_factor, choose_precision, fit

SETTINGS = FitSettings(
    epochs=4, steps_per_epoch=5, learning_rate=0.1, weight_decay=0.0, max_grad_norm=10.0, precision="float32"
)


def batches(epoch: int) -> Iterator[Batch]:
    for step in range(5):
        floats = torch.full((2 + step % 2, 1), 1.0 + epoch)
        empty = torch.zeros(len(floats), 0)
        yield Batch(empty, floats, empty, empty)


def run(validation: list[float | None], seen: list | None = None) -> tuple[History, nn.Linear]:
    torch.manual_seed(0)
    network = nn.Linear(1, 1)
    remaining = iter(validation)
    history = fit(
        network,
        SETTINGS,
        batches=batches,
        loss=lambda batch: (network(batch.floats) - 3).square().mean(),
        validate=lambda: next(remaining),
        on_batch=lambda num_frames, loss: seen.append((num_frames, loss)) if seen is not None else None,
    )
    return history, network


def test_best_epoch_is_kept() -> None:
    history, network = run([3.0, 1.0, 2.0, 1.5])
    assert history.best_epoch == 1
    # The same run cut off after two epochs must end in the same weights as those that were kept.
    kept = network.weight.item()
    for validation, best in [([1.0, 2.0, 3.0, 4.0], 0), ([4.0, 3.0, 2.0, 1.0], 3)]:
        other, weights = run(validation)
        assert other.best_epoch == best
        assert weights.weight.item() != kept
    assert run([3.0, 1.0, 2.0, 1.5])[1].weight.item() == kept


def test_without_validation_the_training_loss_decides() -> None:
    history, _ = run([None] * 4)
    losses = [epoch.train_loss for epoch in history.epochs]
    assert losses[history.best_epoch] == min(losses)
    assert history.best.validation_loss is None


def test_train_loss_is_the_mean_over_frames() -> None:
    seen: list[tuple[int, float]] = []
    history, _ = run([None] * 4, seen)
    first = seen[:5]
    assert [num_frames for num_frames, _ in first] == [2, 3, 2, 3, 2]
    expected = sum(num_frames * loss for num_frames, loss in first) / 12
    assert history.epochs[0].train_loss == pytest.approx(expected)


def test_a_loss_that_is_no_number_names_the_parameter() -> None:
    network = nn.Linear(1, 1)
    with pytest.raises(FitError, match="nan") as caught:
        fit(
            network,
            SETTINGS,
            batches=batches,
            loss=lambda batch: network(batch.floats).sum() * float("nan"),
            validate=lambda: None,
            on_batch=lambda num_frames, loss: None,
        )
    assert "learning_rate" in caught.value.hint


def test_learning_rate_by_hand() -> None:
    factor = _rate_factor(100)  # 5 steps of warm-up
    assert [factor(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert factor(5 + 95 // 2) == pytest.approx(0.5, abs=0.01)
    assert factor(99) < 0.001


def test_precision_is_measured_only_when_asked_for() -> None:
    network = nn.Linear(8, 8)
    calls = []

    def loss() -> torch.Tensor:
        calls.append(1)
        return network(torch.ones(4, 8)).float().sum()

    assert choose_precision("bfloat16", network, loss) == "bfloat16"
    assert not calls
    assert choose_precision("measured", network, loss) in ("float32", "bfloat16")
    assert calls
    assert network.weight.grad is None
