"""The supervised training loop of Levels 0 and 1: epochs over frames, the best epoch's weights kept."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic

import torch
from torch import Tensor, nn

from rulka.agents.precision import Precision, autocast, faster_precision
from rulka.device import BatchT, device_of, upload_ahead
from rulka.errors import UserError
from rulka.params import FitParams
from rulka.pretraining.resume import Keeper, Stateful
from rulka.progress import Progress
from rulka.runtime.checkpoint import Checkpoints
from rulka.runtime.stop import StopSignals

WARMUP_SHARE = 0.05
"""Share of all gradient steps over which the learning rate rises from zero."""


class FitError(UserError):
    """Training went wrong in a way that another parameter can cure."""


class _DivergedError(Exception):
    """Training cannot go on from here."""


@dataclass(frozen=True)
class Epoch:
    """What one pass over the frames gave; `validation_loss` is None where nothing is held out.

    `seconds` are those of its batches, of validation and of the judge.
    """

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
        precision: in which it was computed.
        stopped: why training ended before its last epoch, None where it did not.
        has_diverged: whether that is because losses, gradients or weights were no numbers any more.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    precision: Precision
    stopped: str | None = None
    has_diverged: bool = False

    @property
    def best(self) -> Epoch:
        """The epoch whose weights were kept."""
        return self.epochs[self.best_epoch]

    @property
    def seconds(self) -> float:
        """Of all epochs together, however often training was stopped in between."""
        return sum(epoch.seconds for epoch in self.epochs)


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
        keeps: what of the caller's a run that goes on takes up again, by name: random numbers that `loss` draws, what
            `judge` remembers.
    """

    batches: Callable[[int], Iterator[BatchT]]
    loss: Callable[[BatchT], Tensor]
    validate: Callable[[], float | None]
    judge: Callable[[int], tuple[float, ...] | None] | None = None
    keeps: Mapping[str, Stateful] = field(default_factory=dict)


@dataclass
class _Done:
    """How far training is; all of it goes into checkpoints.

    Attributes:
        precision: in which it is computed.
        epochs: those that came to their end.
        best_epoch: number of the best of them, None where there is none yet.
        best_rank: how good it is, larger being better.
        best_weights: those at its end.
        stopped: see `History`.
        has_diverged: see `History`.
        num_steps: gradient steps of all epochs.
        all_frames: of all epochs.
        num_batches: of the epoch under way.
        num_frames: of the epoch under way.
        loss_sum: of its frames.
        seconds: of the epoch under way.
    """

    precision: Precision = "measured"
    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int | None = None
    best_rank: tuple[float, ...] = ()
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    stopped: str | None = None
    has_diverged: bool = False
    num_steps: int = 0
    all_frames: int = 0
    num_batches: int = 0
    num_frames: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Returns all of it as plain values and tensors."""
        return vars(self) | {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` returned."""
        vars(self).update(dict(state) | {"epochs": [Epoch(**row) for row in state["epochs"]]})

    def count_batch(self, num_frames: int, loss: float) -> None:
        """Counts a batch that was learned from."""
        self.num_steps, self.num_batches = self.num_steps + 1, self.num_batches + 1
        self.num_frames, self.all_frames = self.num_frames + num_frames, self.all_frames + num_frames
        self.loss_sum += loss * num_frames

    def end_epoch(self, validation_loss: float | None, rank: tuple[float, ...] | None, network: nn.Module) -> None:
        """Ends the epoch under way, and remembers it and its weights if it is the best so far.

        Args:
            validation_loss: on held-out frames.
            rank: what the judge says of it; None where the loss is to decide.
            network: that was trained.
        """
        epoch = Epoch(len(self.epochs), self.loss_sum / self.num_frames, validation_loss, round(self.seconds, 3))
        self.epochs.append(epoch)
        self.num_batches, self.num_frames, self.loss_sum, self.seconds = 0, 0, 0.0, 0.0
        rank = (0.0, -epoch.judged_loss) if rank is None else (1.0, *rank)
        weights = network.state_dict()
        # Comparisons with NaN are false, so a loss that is no number is looked for, and so are such weights: where
        # nothing is held out, the last step of an epoch shows in no loss of it.
        is_finite = all(map(math.isfinite, rank)) and all(bool(tensor.isfinite().all()) for tensor in weights.values())
        if is_finite and (self.best_epoch is None or rank > self.best_rank):
            self.best_epoch, self.best_rank = epoch.epoch, rank
            self.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def num_without_better(self) -> int:
        """Returns how many epochs have ended since the best one."""
        return len(self.epochs) - (0 if self.best_epoch is None else self.best_epoch + 1)


def fit(
    network: nn.Module,
    params: FitParams,
    precision: Callable[[], Precision],
    steps_per_epoch: int,
    lessons: Lessons[BatchT],
    bar: Progress,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Trains a network and leaves the weights of its best epoch in it, and it in evaluation mode.

    Training that diverges, or has not become better for `params.patience` epochs, ends before its last epoch, and the
    best one before that is kept; `History.stopped` says why.

    Args:
        network: trained in place, where it is.
        params: how; their precision and seed are the caller's to apply.
        precision: says what to compute in, see `choose_precision`; not asked where training goes on.
        steps_per_epoch: gradient steps of one epoch, by which the learning rate falls.
        lessons: what is learned.
        bar: counts frames and shows losses.
        checkpoints: those of an earlier start are gone on from, and new ones written: every `params.checkpoint_s`, at
            Ctrl-C and the like, and at the end. On the CPU in float32 the result is the same as without a stop, bit for
            bit.

    Raises:
        FitError: if no epoch came to its end with finite losses and weights.
        StopRequestedError: if somebody asked to stop; a checkpoint was saved.
        CheckpointError: if a checkpoint cannot be written, or all are damaged.
    """
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, eps=1e-6
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_factor(params.epochs * steps_per_epoch))
    done = _Done()
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule, "done": done, **lessons.keeps}
    with StopSignals() as stop:
        keeper = Keeper(checkpoints, params.checkpoint_s, parts, stop)
        if keeper.restore():
            bar.skip(done.all_frames)
        else:
            done.precision = precision()
        step = _Step(network, optimizer, schedule, params.max_grad_norm, done.precision)
        while done.stopped is None and len(done.epochs) < params.epochs:
            _train_epoch(step, lessons, done, keeper, bar, params)
            if done.stopped is None:
                keeper.look(done.num_steps)
        if done.best_epoch is None:
            message = "no epoch ended with finite losses and weights"
            if done.stopped is not None and done.has_diverged:
                message = done.stopped
            raise FitError(message, hint="Lower the learning_rate of this stage in params.yaml.")
        keeper.save(done.num_steps)
    network.load_state_dict(done.best_weights)
    network.eval()
    return History(tuple(done.epochs), done.best_epoch, done.precision, done.stopped, done.has_diverged)


def say_if_stopped(stage: str, history: History) -> None:
    """Writes one line where training ended early, as the weights that are kept do not show it."""
    if history.stopped is not None:
        advice = "; a lower learning_rate may do better" if history.has_diverged else ""
        kept = f"the weights of epoch {history.best_epoch + 1} are kept{advice}"
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
    step: _Step,
    lessons: Lessons[BatchT],
    done: _Done,
    keeper: Keeper,
    bar: Progress,
    params: FitParams,
) -> None:
    """Makes one gradient step for each batch that is left of an epoch, validates and judges."""
    network, number = step.network, len(done.epochs)
    device = device_of(network)
    clock_s = time.monotonic()

    def count_time() -> None:
        nonlocal clock_s
        now_s = time.monotonic()
        done.seconds, clock_s = done.seconds + now_s - clock_s, now_s

    network.train()
    # Batches that an earlier start has learned from are read and passed over, which takes a small part of that time.
    batches = itertools.islice(lessons.batches(number), done.num_batches, None)
    try:
        for batch in upload_ahead(batches, device):
            value = step(lessons.loss, batch)
            done.count_batch(len(batch[0]), value)
            bar.advance(len(batch[0]), loss=value)
            count_time()
            keeper.look(done.num_steps)
    except _DivergedError as error:
        done.stopped, done.has_diverged = f"{error} in epoch {number + 1} of {params.epochs}", True
        return
    network.eval()
    with torch.no_grad():
        with autocast(step.precision, device):
            validation_loss = lessons.validate()
        rank = None if lessons.judge is None else lessons.judge(number)
    count_time()
    done.end_epoch(validation_loss, rank, network)
    has_looked = lessons.judge is None or rank is not None  # what was not judged is no better than what was
    if params.patience is not None and has_looked and done.num_without_better() >= params.patience:
        done.stopped = f"no better epoch in {params.patience}, at epoch {number + 1} of {params.epochs}"


def _rate_factor(num_steps: int) -> Callable[[int], float]:
    """Returns the learning rate as a share of the highest: a short rise, then half a cosine down to zero."""
    num_warmup = max(1, round(WARMUP_SHARE * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    return factor
