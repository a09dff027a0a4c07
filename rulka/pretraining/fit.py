"""Supervised training loop of Levels 0 and 1: runs epochs over frames and keeps the best epoch's weights.

An interrupted training resumes from `runs/<stage>/<fingerprint>/`. The fingerprint is a hash of parameters, inputs and
code, so that a checkpoint is resumed only if all of these are the same. Runs with other fingerprints are kept, because
a changed parameter is often changed back.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from torch import Tensor, nn

from rulka.machine.device import BatchT, device_of, state_on_host, upload_ahead
from rulka.machine.errors import UserError
from rulka.machine.precision import Precision, autocast, chosen_precision
from rulka.machine.progress import Progress
from rulka.machine.terminal import tell
from rulka.pretraining.params import FitParams
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.run_lock import locked
from rulka.runtime.stop import StopSignals
from rulka.stages.provenance import fingerprint

WARMUP_SHARE = 0.05
"""Share of all gradient steps over which the learning rate rises from zero."""


class _DivergedError(Exception):
    """The loss or the gradient is NaN or infinite."""


class Stateful(Protocol):
    """Object whose state, tensors and plain values, can be checkpointed."""

    def state_dict(self) -> Any:
        """Returns the state needed to resume."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Restores a state returned by `state_dict`."""
        ...


@dataclass(frozen=True)
class Epoch:
    """Losses of one epoch; `validation_loss` is None if no frames are held out."""

    epoch: int
    train_loss: float
    validation_loss: float | None

    def to_json(self) -> dict[str, float | int | None]:
        """Returns plain JSON; a loss that is NaN or infinite becomes null."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in asdict(self).items()}


@dataclass
class History:
    """Progress and outcome of a training; saved in checkpoints.

    Attributes:
        precision: of the computation.
        epochs: completed epochs.
        best_epoch: index of the epoch whose weights are kept; -1 if there is none yet.
        best_score: its score; larger is better.
        best_weights: weights at its end.
        stopped: reason why training ended early; None if it did not.
        has_diverged: True if the reason is a NaN or infinite loss or gradient.
        num_steps: gradient steps in all epochs.
        all_frames: frames in all epochs.
        num_batches: batches so far in the current epoch.
        num_frames: frames so far in the current epoch.
        loss_sum: sum of the losses of these frames.
    """

    precision: Precision = "auto"
    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = -1
    best_score: tuple[float, ...] = ()
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    stopped: str | None = None
    has_diverged: bool = False
    num_steps: int = 0
    all_frames: int = 0
    num_batches: int = 0
    num_frames: int = 0
    loss_sum: float = 0.0

    @property
    def best(self) -> Epoch:
        """The epoch whose weights are kept."""
        return self.epochs[self.best_epoch]

    def to_json(self) -> dict[str, Any]:
        """Returns the outcome as plain JSON."""
        return {
            "best_epoch": self.best_epoch,
            "stopped": self.stopped,
            "precision": self.precision,
            "epochs": [epoch.to_json() for epoch in self.epochs],
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns all attributes as plain values and tensors."""
        return vars(self) | {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state returned by `state_dict`."""
        vars(self).update(dict(state) | {"epochs": [Epoch(**row) for row in state["epochs"]]})

    def count_batch(self, num_frames: int, loss: float) -> None:
        """Counts a training batch."""
        self.num_steps, self.num_batches = self.num_steps + 1, self.num_batches + 1
        self.num_frames, self.all_frames = self.num_frames + num_frames, self.all_frames + num_frames
        self.loss_sum += loss * num_frames

    def end_epoch(self, validation_loss: float | None, score: tuple[float, ...] | None, network: nn.Module) -> None:
        """Ends the current epoch, and keeps its weights if it is the best so far.

        Args:
            validation_loss: on held-out frames.
            score: from the judge; None to judge by the loss.
            network: the trained network.
        """
        train_loss = self.loss_sum / self.num_frames
        self.epochs.append(Epoch(len(self.epochs), train_loss, validation_loss))
        self.num_batches, self.num_frames, self.loss_sum = 0, 0, 0.0
        judged_loss = train_loss if validation_loss is None else validation_loss
        score = (0.0, -judged_loss) if score is None else (1.0, *score)
        weights = network.state_dict()
        # Comparisons with NaN are false, so check the loss explicitly. Check the weights too: without held-out frames,
        # the last step of an epoch affects none of its losses.
        is_finite = all(map(math.isfinite, score)) and all(bool(tensor.isfinite().all()) for tensor in weights.values())
        if is_finite and (self.best_epoch < 0 or score > self.best_score):
            self.best_epoch, self.best_score = len(self.epochs) - 1, score
            self.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}


@dataclass(frozen=True)
class TrainingTask(Generic[BatchT]):
    """Training data, loss, and the criteria for the best epoch.

    Attributes:
        batches: training batches of an epoch, by its index from 0, in main memory; all columns have one row per frame.
        loss: mean loss [] of a batch; called under autocast, in training mode.
        validate: loss on held-out frames, or None if there are none (the training loss then decides); called without
            gradients, in evaluation mode.
        judge: returns the score of the weights after an epoch, by its index from 0, larger is better; None if it skips
            the epoch. A judged epoch beats all others, which are ranked by their losses. Called like `validate`, in
            float32.
        keeps: further state of the caller to checkpoint, by name: the generator of `loss`, the memory of `judge`.
    """

    batches: Callable[[int], Iterator[BatchT]]
    loss: Callable[[BatchT], Tensor]
    validate: Callable[[], float | None]
    judge: Callable[[int], tuple[float, ...] | None] | None = None
    keeps: Mapping[str, Stateful] = field(default_factory=dict)


def fit(
    network: nn.Module,
    params: FitParams,
    steps_per_epoch: int,
    task: TrainingTask[BatchT],
    bar: Progress,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Trains a network; leaves it with the weights of its best epoch, in evaluation mode.

    Training stops early if it diverges, or after `params.patience` epochs without improvement. The best epoch is kept,
    and `History.stopped` gives the reason.

    Args:
        network: trained in place, on its device.
        params: of the training; the caller applies their seed.
        steps_per_epoch: gradient steps per epoch, for the learning rate schedule.
        task: training data, loss and criteria.
        bar: counts frames and shows losses.
        checkpoints: to resume from the newest and to save new ones: every `params.checkpoint_s`, on Ctrl-C and similar
            signals, and at the end. In float32 on a CPU the result is bit-identical to an uninterrupted run.

    Raises:
        UserError: if no epoch ended with finite losses and weights.
        StopRequestedError: if a stop was requested; a checkpoint was saved.
        CheckpointError: if a checkpoint cannot be written, or all are damaged.
    """
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay, eps=1e-6
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _rate_factor(params.epochs * steps_per_epoch))
    done = History(chosen_precision(params.precision, device_of(network)))
    with StopSignals() as stop:
        training = _Training(network, optimizer, schedule, params, task, done, checkpoints, stop, bar)
        training.restore()
        bar.skip(done.all_frames)
        while done.stopped is None and len(done.epochs) < params.epochs:
            training.epoch()
            if done.stopped is None:
                training.save_if_due()
        if done.best_epoch < 0:
            message = (done.stopped if done.has_diverged else None) or "no epoch ended with finite losses and weights"
            raise UserError(message, hint="Lower the learning_rate of this stage in params.yaml.")
        training.save()
    network.load_state_dict(done.best_weights)
    network.eval()
    return done


@contextmanager
def resumable(runs: Path, origin: Mapping[str, Any]) -> Iterator[Checkpoints]:
    """Locks a run and yields its checkpoints; removes them if the block succeeds.

    Args:
        runs: folder of all runs of the stage.
        origin: provenance of the output, from `rulka.stages.provenance.provenance`.

    Raises:
        RunInUseError: if another process works on the same run.
    """
    folder = runs / fingerprint(origin)[:16]
    with locked(folder):
        remove_unfinished(folder)
        checkpoints = Checkpoints(folder)
        yield checkpoints
        checkpoints.clear()


def say_if_stopped(stage: str, history: History) -> None:
    """Writes one line if training ended early, because the kept weights do not show it."""
    if history.stopped is not None:
        advice = "; a lower learning_rate may do better" if history.has_diverged else ""
        kept = f"the weights of epoch {history.best_epoch + 1} are kept{advice}"
        tell(f"{stage}: {history.stopped}; {kept}")


@dataclass
class _Training(Generic[BatchT]):
    """State of a training, see `fit`, and the time of the last checkpoint."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    params: FitParams
    task: TrainingTask[BatchT]
    done: History
    checkpoints: Checkpoints | None
    stop: StopSignals
    bar: Progress
    saved_s: float = field(default_factory=time.monotonic)

    @property
    def _parts(self) -> dict[str, Stateful]:
        own = {"network": self.network, "optimizer": self.optimizer, "schedule": self.schedule, "done": self.done}
        return {**own, **self.task.keeps}

    def restore(self) -> None:
        """Restores the newest checkpoint, if there is one."""
        if self.checkpoints and (state := self.checkpoints.load_newest()) is not None:
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            torch.set_rng_state(state["torch_generator"])

    def save(self) -> None:
        """Saves a checkpoint, including the state of torch's global CPU generator."""
        if self.checkpoints is not None:
            states = {name: state_on_host(part.state_dict()) for name, part in self._parts.items()}
            self.checkpoints.save(self.done.num_steps, states | {"torch_generator": torch.get_rng_state()})
        self.saved_s = time.monotonic()

    def save_if_due(self) -> None:
        """Saves, between two steps, if a checkpoint is due or a stop is requested.

        Raises:
            StopRequestedError: if a stop was requested; the checkpoint was saved.
        """
        if self.stop.is_requested or time.monotonic() - self.saved_s >= self.params.checkpoint_s:
            self.save()
        self.stop.check()

    def epoch(self) -> None:
        """Runs one gradient step per remaining batch of the epoch, then validates and judges."""
        done, task, number = self.done, self.task, len(self.done.epochs)
        device = device_of(self.network)
        self.network.train()
        # After a resume, read and skip batches that were already used; this takes a small part of their training time.
        batches = itertools.islice(task.batches(number), done.num_batches, None)
        try:
            for batch in upload_ahead(batches, device):
                loss = self._step(batch)
                done.count_batch(len(batch[0]), loss)
                self.bar.advance(len(batch[0]), loss=loss)
                self.save_if_due()
        except _DivergedError as error:
            done.stopped, done.has_diverged = f"{error} in epoch {number + 1} of {self.params.epochs}", True
            return
        self.network.eval()
        with torch.no_grad():
            with autocast(done.precision, device):
                validation_loss = task.validate()
            score = None if task.judge is None else task.judge(number)
        done.end_epoch(validation_loss, score, self.network)
        has_looked = task.judge is None or score is not None  # a skipped epoch cannot beat a judged one
        patience = self.params.patience
        if patience is not None and has_looked and number - done.best_epoch >= patience:
            done.stopped = f"no better epoch in {patience}, at epoch {number + 1} of {self.params.epochs}"

    def _step(self, batch: BatchT) -> float:
        """Runs a gradient step and returns the loss.

        Raises:
            _DivergedError: if the loss or the gradient is NaN or infinite; the weights are unchanged.
        """
        with autocast(self.done.precision, device_of(self.network)):
            loss = self.task.loss(batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise _DivergedError(f"the training loss became {value}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), self.params.max_grad_norm))
        if not math.isfinite(norm):
            raise _DivergedError(f"the norm of the gradient became {norm}")
        self.optimizer.step()
        self.schedule.step()
        return value


def _rate_factor(num_steps: int) -> Callable[[int], float]:
    """Returns the learning rate factor: a short linear warm-up, then half a cosine down to zero."""
    num_warmup = max(1, round(WARMUP_SHARE * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    return factor
