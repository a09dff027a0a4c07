"""The supervised training loop of Levels 0 and 1: epochs over frames, the best epoch's weights kept."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Generic, NamedTuple

import torch
from torch import Tensor, nn

from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.device import BatchT, device_of, upload_ahead
from rulka.errors import UserError
from rulka.params import FitParams

WARMUP_SHARE = 0.05
"""Share of all gradient steps over which the learning rate rises from zero."""


class FitError(UserError):
    """Training went wrong in a way that another parameter can cure."""


class _DivergedError(Exception):
    """Training cannot go on from here."""


class _Best(NamedTuple):
    """The best epoch so far: its number, how good it is, larger being better, and its weights."""

    epoch: int
    rank: tuple[float, ...]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """What one pass over the frames gave; `validation_loss` is None where nothing is held out."""

    epoch: int
    train_loss: float
    validation_loss: float | None
    seconds: float

    @property
    def judged_loss(self) -> float:
        """On held-out frames where there are any."""
        return self.train_loss if self.validation_loss is None else self.validation_loss

    def to_json(self) -> dict[str, float | int | None]:
        """Returns plain JSON, which knows no NaN: a loss that was none becomes null."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in asdict(self).items()}


@dataclass(frozen=True)
class History:
    """All epochs, and which one's weights were kept.

    Attributes:
        epochs: those that came to their end.
        best_epoch: number of the one whose weights were kept.
        stopped: why training ended before its last epoch, None where it did not.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    stopped: str | None = None

    @property
    def best(self) -> Epoch:
        """The epoch whose weights were kept."""
        return self.epochs[self.best_epoch]


@dataclass(frozen=True)
class Lessons(Generic[BatchT]):
    """What is learned, and by what the best epoch is known.

    Attributes:
        batches: training batches of an epoch, by its number from 0, in main memory; all columns have a row for a frame.
        loss: mean loss [] of a batch; called under autocast, in training mode.
        validate: loss on held-out frames, or None where there are none (the training loss then decides); called
            without gradients, in evaluation mode.
        judge: says how good the weights after an epoch are, by its number from 0, the larger the better, or None where
            it does not look. An epoch that was judged is better than all that were not, which go by their losses.
            Called like `validate`, in float32.
    """

    batches: Callable[[int], Iterator[BatchT]]
    loss: Callable[[BatchT], Tensor]
    validate: Callable[[], float | None]
    judge: Callable[[int], tuple[float, ...] | None] | None = None


def fit(
    network: nn.Module,
    params: FitParams,
    precision: Precision,
    steps_per_epoch: int,
    lessons: Lessons[BatchT],
    on_batch: Callable[[int, float], None],
) -> History:
    """Trains a network and leaves the weights of its best epoch in it.

    Args:
        network: trained in place, where it is.
        params: how; their precision and seed are the caller's to apply.
        precision: what to compute in, see `choose_precision`.
        steps_per_epoch: gradient steps of one epoch, by which the learning rate falls.
        lessons: what is learned.
        on_batch: called with the number of frames and the loss after every gradient step.

    Training that diverges stops, and the best epoch before that is kept; `History.stopped` says why.

    Raises:
        FitError: if no epoch came to its end with finite losses and weights.
    """
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, eps=1e-6
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_factor(params.epochs * steps_per_epoch))
    step = _Step(network, optimizer, schedule, params.max_grad_norm, precision)
    epochs: list[Epoch] = []
    best: _Best | None = None
    stopped = None
    device = device_of(network)
    for number in range(params.epochs):
        started_s = time.monotonic()
        network.train()
        try:
            train_loss = _train_epoch(step, upload_ahead(lessons.batches(number), device), lessons.loss, on_batch)
        except _DivergedError as error:
            stopped = f"{error} in epoch {number + 1} of {params.epochs}"
            break
        network.eval()
        with torch.no_grad(), autocast(precision, device):
            validation_loss = lessons.validate()
        epochs.append(Epoch(number, train_loss, validation_loss, round(time.monotonic() - started_s, 3)))
        with torch.no_grad():
            rank = None if lessons.judge is None else lessons.judge(number)
        best = _better(best, number, (0.0, -epochs[-1].judged_loss) if rank is None else (1.0, *rank), network)
    if best is None:
        message = stopped or "no epoch ended with finite losses and weights"
        raise FitError(message, hint="Lower the learning_rate of this stage in params.yaml.")
    network.load_state_dict(best.weights)
    return History(tuple(epochs), best.epoch, stopped)


def say_if_stopped(stage: str, history: History) -> None:
    """Writes one line where training ended early, as the weights that are kept do not show it."""
    if history.stopped is not None:
        kept = f"the weights of epoch {history.best_epoch + 1} are kept; a lower learning_rate may do better"
        sys.stderr.write(f"{stage}: {history.stopped}; {kept}\n")


def choose_precision(precision: Precision, network: nn.Module, loss: Callable[[], Tensor]) -> Precision:
    """Returns what to compute in: what was asked for, or the faster one, measured on some gradients.

    Args:
        precision: "measured" measures.
        network: what will be trained; its gradients are cleared.
        loss: computes a loss [] from as many frames as a training batch has.
    """
    device = device_of(network)

    def run(tried: Precision) -> None:
        with autocast(tried, device):
            value = loss()
        value.backward()
        network.zero_grad(set_to_none=True)

    return faster_precision(run, device) if precision == "measured" else precision


@dataclass(frozen=True)
class _Step:
    """One gradient step."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    max_grad_norm: float
    precision: Precision

    def __call__(self, loss: Callable[[BatchT], Tensor], batch: BatchT) -> float:
        """Makes it and returns the loss.

        Raises:
            _DivergedError: before a step that would put numbers into the weights that are none.
        """
        with autocast(self.precision, device_of(self.network)):
            batch_loss = loss(batch)
        value = float(batch_loss.detach())
        if not math.isfinite(value):
            message = f"the training loss became {value}"
            raise _DivergedError(message)
        self.optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), self.max_grad_norm))
        if not math.isfinite(norm):
            message = f"the norm of the gradient became {norm}"
            raise _DivergedError(message)
        self.optimizer.step()
        self.schedule.step()
        return value


def _train_epoch(
    step: _Step, batches: Iterator[BatchT], loss: Callable[[BatchT], Tensor], on_batch: Callable[[int, float], None]
) -> float:
    """Makes one gradient step for each batch and returns the mean loss over frames."""
    total, num_frames = 0.0, 0
    for batch in batches:
        value = step(loss, batch)
        total, num_frames = total + value * len(batch[0]), num_frames + len(batch[0])
        on_batch(len(batch[0]), value)
    return total / num_frames


def _rate_factor(num_steps: int) -> Callable[[int], float]:
    """Returns the learning rate as a share of the highest: a short rise, then half a cosine down to zero."""
    num_warmup = max(1, round(WARMUP_SHARE * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    return factor


def _better(best: _Best | None, epoch: int, rank: tuple[float, ...], network: nn.Module) -> _Best | None:
    """Returns the better of the best epoch so far and the one that just ended.

    Comparisons with NaN are false, so a loss that is no number is looked for, and so are such weights: where nothing
    is held out, the last step of an epoch shows in no loss of it.
    """
    weights = network.state_dict()
    is_finite = all(map(math.isfinite, rank)) and all(bool(tensor.isfinite().all()) for tensor in weights.values())
    if not is_finite or (best is not None and rank <= best.rank):
        return best
    return _Best(epoch, rank, _copy(network))


def _copy(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
