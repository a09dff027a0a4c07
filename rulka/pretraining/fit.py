"""The supervised training loop of Levels 0 and 1: epochs over frames, the best epoch's weights kept.

A training that was stopped goes on from `runs/<stage>/<fingerprint>/`. The fingerprint is a hash of parameters, inputs
and code, so that a checkpoint of others is never gone on with. Runs with another one stay, as a changed parameter is
often changed back.
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

from rulka.agents.precision import Precision, autocast, chosen_precision
from rulka.device import BatchT, device_of, state_on_host, upload_ahead
from rulka.errors import UserError
from rulka.pretraining.params import FitParams
from rulka.progress import Progress
from rulka.provenance import fingerprint
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.run_lock import locked
from rulka.runtime.stop import StopSignals
from rulka.terminal import tell

WARMUP_SHARE = 0.05
"""Share of all gradient steps over which the learning rate rises from zero."""


class FitError(UserError):
    """Training went wrong in a way that another parameter can cure."""


class _DivergedError(Exception):
    """Training cannot go on from here."""


class Stateful(Protocol):
    """What can be put into a checkpoint: tensors and plain values."""

    def state_dict(self) -> Any:
        """Returns all that it needs to go on."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Goes on from what `state_dict` returned."""
        ...


@dataclass(frozen=True)
class Epoch:
    """What one pass over the frames gave; `validation_loss` is None where nothing is held out."""

    epoch: int
    train_loss: float
    validation_loss: float | None

    def to_json(self) -> dict[str, float | int | None]:
        """Returns plain JSON, which knows no NaN: a loss that was none becomes null."""
        return {name: value if value is None or math.isfinite(value) else None for name, value in asdict(self).items()}


@dataclass
class History:
    """How far training is, and at its end what became of it; all of it goes into checkpoints.

    Attributes:
        precision: in which it is computed.
        epochs: those that came to their end.
        best_epoch: number of the one whose weights are kept; -1 where there is none yet.
        best_rank: how good it is, larger being better.
        best_weights: those at its end.
        stopped: why training ended before its last epoch, None where it did not.
        has_diverged: whether that is because losses, gradients or weights were no numbers any more.
        num_steps: gradient steps of all epochs.
        all_frames: of all epochs.
        num_batches: of the epoch under way.
        num_frames: of the epoch under way.
        loss_sum: of its frames.
    """

    precision: Precision = "auto"
    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = -1
    best_rank: tuple[float, ...] = ()
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
        """Returns plain JSON of what became of it."""
        return {
            "best_epoch": self.best_epoch,
            "stopped": self.stopped,
            "precision": self.precision,
            "epochs": [epoch.to_json() for epoch in self.epochs],
        }

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
        train_loss = self.loss_sum / self.num_frames
        self.epochs.append(Epoch(len(self.epochs), train_loss, validation_loss))
        self.num_batches, self.num_frames, self.loss_sum = 0, 0, 0.0
        judged_loss = train_loss if validation_loss is None else validation_loss
        rank = (0.0, -judged_loss) if rank is None else (1.0, *rank)
        weights = network.state_dict()
        # Comparisons with NaN are false, so a loss that is no number is looked for, and so are such weights: where
        # nothing is held out, the last step of an epoch shows in no loss of it.
        is_finite = all(map(math.isfinite, rank)) and all(bool(tensor.isfinite().all()) for tensor in weights.values())
        if is_finite and (self.best_epoch < 0 or rank > self.best_rank):
            self.best_epoch, self.best_rank = len(self.epochs) - 1, rank
            self.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}


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


def fit(
    network: nn.Module,
    params: FitParams,
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
        params: how; their seed is the caller's to apply.
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
    done = History(chosen_precision(params.precision, device_of(network)))
    with StopSignals() as stop:
        training = _Training(network, optimizer, schedule, params, lessons, done, checkpoints, stop, bar)
        if training.restore():
            bar.skip(done.all_frames)
        while done.stopped is None and len(done.epochs) < params.epochs:
            training.epoch()
            if done.stopped is None:
                training.save_if_due()
        if done.best_epoch < 0:
            message = (done.stopped if done.has_diverged else None) or "no epoch ended with finite losses and weights"
            raise FitError(message, hint="Lower the learning_rate of this stage in params.yaml.")
        training.save()
    network.load_state_dict(done.best_weights)
    network.eval()
    return done


@contextmanager
def resumable(runs: Path, origin: Mapping[str, Any]) -> Iterator[Checkpoints]:
    """Yields the checkpoints of a run, which nobody else works on meanwhile; they go when the block ends well.

    Args:
        runs: folder of all runs of the stage.
        origin: what `rulka.provenance.provenance` says of the output that is being made.

    Raises:
        RunInUseError: if another process makes the same.
    """
    folder = runs / fingerprint(origin)[:16]
    with locked(folder):
        remove_unfinished(folder)
        checkpoints = Checkpoints(folder)
        yield checkpoints
        checkpoints.clear()


def say_if_stopped(stage: str, history: History) -> None:
    """Writes one line where training ended early, as the weights that are kept do not show it."""
    if history.stopped is not None:
        advice = "; a lower learning_rate may do better" if history.has_diverged else ""
        kept = f"the weights of epoch {history.best_epoch + 1} are kept{advice}"
        tell(f"{stage}: {history.stopped}; {kept}")


@dataclass
class _Training(Generic[BatchT]):
    """What every epoch needs, see `fit`; and when it was last saved."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    params: FitParams
    lessons: Lessons[BatchT]
    done: History
    checkpoints: Checkpoints | None
    stop: StopSignals
    bar: Progress
    saved_s: float = field(default_factory=time.monotonic)

    @property
    def _parts(self) -> dict[str, Stateful]:
        own = {"network": self.network, "optimizer": self.optimizer, "schedule": self.schedule, "done": self.done}
        return {**own, **self.lessons.keeps}

    def restore(self) -> bool:
        """Goes on from the newest checkpoint; returns whether there is one."""
        state = self.checkpoints.load_newest() if self.checkpoints else None
        if state is None:
            return False
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["torch_generator"])
        return True

    def save(self) -> None:
        """Saves now; torch's global generator in main memory is kept too."""
        if self.checkpoints is not None:
            states = {name: state_on_host(part.state_dict()) for name, part in self._parts.items()}
            self.checkpoints.save(self.done.num_steps, states | {"torch_generator": torch.get_rng_state()})
        self.saved_s = time.monotonic()

    def save_if_due(self) -> None:
        """Saves if it is time to, or somebody asks to stop, between two steps.

        Raises:
            StopRequestedError: if somebody asked to stop; all is saved then.
        """
        if self.stop.is_requested or time.monotonic() - self.saved_s >= self.params.checkpoint_s:
            self.save()
        self.stop.check()

    def epoch(self) -> None:
        """Makes one gradient step for each batch that is left of an epoch, validates and judges."""
        done, lessons, number = self.done, self.lessons, len(self.done.epochs)
        device = device_of(self.network)
        self.network.train()
        # Batches that an earlier start has learned from are read and passed over, in a small part of that time.
        batches = itertools.islice(lessons.batches(number), done.num_batches, None)
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
                validation_loss = lessons.validate()
            rank = None if lessons.judge is None else lessons.judge(number)
        done.end_epoch(validation_loss, rank, self.network)
        has_looked = lessons.judge is None or rank is not None  # what was not judged is no better than what was
        patience = self.params.patience
        if patience is not None and has_looked and number - done.best_epoch >= patience:
            done.stopped = f"no better epoch in {patience}, at epoch {number + 1} of {self.params.epochs}"

    def _step(self, batch: BatchT) -> float:
        """Makes a gradient step and returns the loss.

        Raises:
            _DivergedError: before a step that would put numbers into the weights that are none.
        """
        with autocast(self.done.precision, device_of(self.network)):
            loss = self.lessons.loss(batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            message = f"the training loss became {value}"
            raise _DivergedError(message)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), self.params.max_grad_norm))
        if not math.isfinite(norm):
            message = f"the norm of the gradient became {norm}"
            raise _DivergedError(message)
        self.optimizer.step()
        self.schedule.step()
        return value


def _rate_factor(num_steps: int) -> Callable[[int], float]:
    """Returns the learning rate as a share of the highest: a short rise, then half a cosine down to zero."""
    num_warmup = max(1, round(WARMUP_SHARE * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    return factor
