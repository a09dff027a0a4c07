"""The supervised training loop of Levels 0 and 1: epochs over frames, the best epoch's weights kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from rulka.agents.speed import Precision, computing_in, faster_precision
from rulka.datasets.frames import Batch
from rulka.errors import UserError

WARMUP_SHARE = 0.05
"""Share of all gradient steps over which the learning rate rises from zero."""


class FitError(UserError):
    """Training went wrong in a way that another parameter can cure."""


@dataclass(frozen=True)
class FitSettings:
    """How to train.

    Attributes:
        epochs: passes over the training frames.
        steps_per_epoch: gradient steps in one of them.
        learning_rate: highest learning rate; it falls to zero along half a cosine.
        weight_decay: of AdamW.
        max_grad_norm: gradients are scaled down to this norm.
        precision: what to compute in; not "measured".
    """

    epochs: int
    steps_per_epoch: int
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    precision: Precision


@dataclass(frozen=True)
class Epoch:
    """What one pass over the frames gave; `validation_loss` is None where nothing is held out."""

    epoch: int
    train_loss: float
    validation_loss: float | None
    seconds: float

    def to_json(self) -> dict[str, float | int | None]:
        """Returns plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class History:
    """All epochs, and which one's weights were kept."""

    epochs: tuple[Epoch, ...]
    best_epoch: int

    @property
    def best(self) -> Epoch:
        """The epoch whose weights were kept."""
        return self.epochs[self.best_epoch]


def fit(
    network: nn.Module,
    settings: FitSettings,
    *,
    batches: Callable[[int], Iterator[Batch]],
    loss: Callable[[Batch], Tensor],
    validate: Callable[[], float | None],
    on_batch: Callable[[int, float], None],
) -> History:
    """Trains a network and leaves the weights of its best epoch in it.

    Args:
        network: trained in place.
        settings: how.
        batches: training batches of an epoch, by its number from 0.
        loss: mean loss [] of a batch; called under autocast, in training mode.
        validate: loss on held-out frames, or None where there are none (the training loss then decides); called
            without gradients, in evaluation mode.
        on_batch: called with the number of frames and the loss after every gradient step.

    Raises:
        FitError: if the loss stops being a finite number.
    """
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, eps=1e-6
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_factor(settings.epochs * settings.steps_per_epoch))
    epochs: list[Epoch] = []
    best_epoch, best_weights = 0, _copy(network)
    for number in range(settings.epochs):
        started_s = time.monotonic()
        network.train()
        train_loss = _train_epoch(network, settings, optimizer, schedule, batches(number), loss, on_batch)
        network.eval()
        with torch.no_grad(), computing_in(settings.precision):
            validation_loss = validate()
        epochs.append(Epoch(number, train_loss, validation_loss, round(time.monotonic() - started_s, 3)))
        if number == 0 or _score(epochs[-1]) < _score(epochs[best_epoch]):
            best_epoch, best_weights = number, _copy(network)
    network.load_state_dict(best_weights)
    return History(tuple(epochs), best_epoch)


def choose_precision(precision: Precision, network: nn.Module, loss: Callable[[], Tensor]) -> Precision:
    """Returns what to compute in: what was asked for, or the faster one, measured on some gradients.

    Args:
        precision: "measured" measures.
        network: what will be trained; its gradients are cleared.
        loss: computes a loss [] from as many frames as a training batch has.
    """

    def run(tried: Precision) -> None:
        with computing_in(tried):
            value = loss()
        value.backward()
        network.zero_grad(set_to_none=True)

    return faster_precision(run) if precision == "measured" else precision


def _train_epoch(
    network: nn.Module,
    settings: FitSettings,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    batches: Iterator[Batch],
    loss: Callable[[Batch], Tensor],
    on_batch: Callable[[int, float], None],
) -> float:
    """Makes one gradient step for each batch and returns the mean loss over frames."""
    total, num_frames = 0.0, 0
    for batch in batches:
        with computing_in(settings.precision):
            batch_loss = loss(batch)
        value = float(batch_loss.detach())
        if not math.isfinite(value):
            message = f"the training loss became {value}"
            raise FitError(message, hint="Lower the learning_rate of this stage in params.yaml.")
        optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
        optimizer.step()
        schedule.step()
        total, num_frames = total + value * len(batch.image), num_frames + len(batch.image)
        on_batch(len(batch.image), value)
    return total / num_frames


def _rate_factor(num_steps: int) -> Callable[[int], float]:
    """Returns the learning rate as a share of the highest: a short rise, then half a cosine down to zero."""
    num_warmup = max(1, round(WARMUP_SHARE * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    return factor


def _score(epoch: Epoch) -> float:
    return epoch.train_loss if epoch.validation_loss is None else epoch.validation_loss


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
