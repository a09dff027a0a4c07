"""A training that was stopped goes on from its checkpoint as if nothing had been, and from no other's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from models.encoders.config import ConvConfig
from rulka.machine.device import CPU, Generators, make_generator, upload
from rulka.machine.progress import Progress
from rulka.pretraining.fit import History, TrainingTask, fit, resumable
from rulka.pretraining.objectives import Objective, build_objective
from rulka.pretraining.params import FitParams, VicregParams
from rulka.runtime.checkpoint import CheckpointError, Checkpoints
from rulka.runtime.run_lock import RunInUseError
from rulka.runtime.stop import StopRequestedError
from tests.conftest import Killed, sees

VIEWS: dict[str, Any] = {"projection": 8, "crop_pixels": 4.0, "brightness": 0.2, "blur_pixels": 1.0, "noise": 0.1}
VICREG = VicregParams(kind="vicreg", invariance=25.0, variance=25.0, covariance=1.0, **VIEWS)
OBSERVATION = sees(34, 34)
NUM_BATCHES = 4
ORIGIN = {"params_sha256": "a", "inputs_sha256": {"frames": "b"}, "code_sha256": "c", "commit": "d"}


class Images(NamedTuple):
    image: torch.Tensor


def params(checkpoint_s: float = 1e-9) -> FitParams:
    return FitParams(
        epochs=3,
        batch_size=6,
        learning_rate=0.003,
        weight_decay=0.01,
        precision="float32",
        checkpoint_s=checkpoint_s,
        seed=0,
    )


def batches(epoch: int) -> Iterator[Images]:
    generator = torch.Generator().manual_seed(epoch)
    for _ in range(NUM_BATCHES):
        yield Images(torch.randint(0, 256, (6, 1, 34, 34), dtype=torch.uint8, generator=generator))


class Outcome(NamedTuple):
    history: History
    objective: Objective
    bar: Progress
    steps: list[int]


def run(
    checkpoints: Checkpoints | None,
    at_step: int = 0,
    strike: Callable[[], None] = lambda: None,
    chosen: FitParams | None = None,
    device: torch.device = CPU,
) -> Outcome:
    """Trains; `strike` is called before a gradient step of a number, counted from 1 in this start."""
    torch.manual_seed(0)
    objective = build_objective(VICREG, ConvConfig(kind="conv", adaptive_pool=1), OBSERVATION).to(device)
    generators, steps = Generators(device, 1), []

    def loss(batch: Images) -> torch.Tensor:
        steps.append(len(steps) + 1)
        if steps[-1] == at_step:
            strike()
        # Noise of the global generator too, as a network may draw it.
        return objective.loss(batch.image, generators.device) * (1.0 + 0.1 * float(torch.rand(())))

    def validate() -> float:
        held_out = upload(next(batches(100)), device)
        return float(objective.loss(held_out.image, make_generator(device, 0)))

    bar = Progress("", None, "frames", stream=StringIO())
    task = TrainingTask(batches, loss, validate, keeps={"generators": generators})
    history = fit(objective, chosen or params(), NUM_BATCHES, task, bar, checkpoints)
    return Outcome(history, objective, bar, steps)


def kill() -> None:
    raise Killed


def assert_same(one: Outcome, other: Outcome) -> None:
    for name, tensor in one.objective.state_dict().items():
        assert torch.equal(tensor, other.objective.state_dict()[name]), name
    assert one.history.best_epoch == other.history.best_epoch
    losses = [[(e.train_loss, e.validation_loss) for e in each.history.epochs] for each in (one, other)]
    assert losses[0] == losses[1]
    assert one.bar.done == other.bar.done


def test_a_killed_run_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    """In mid-epoch, at the end of one, before anything was saved, and again and again; views are drawn at random."""
    whole = run(None)
    for at_step in (1, 2, 4, 5, 7, 12):
        folder = tmp_path / str(at_step)
        with pytest.raises(Killed):
            run(Checkpoints(folder), at_step, kill)
        resumed = run(Checkpoints(folder))
        assert_same(resumed, whole)
        assert len(resumed.steps) == 3 * NUM_BATCHES + 1 - at_step
    for _ in range(4):
        with pytest.raises(Killed):
            run(Checkpoints(tmp_path), 3, kill)
    assert_same(run(Checkpoints(tmp_path)), whole)


def test_a_killed_run_goes_on_on_another_device(tmp_path: Path, device: torch.device) -> None:
    """Where it was killed, and the losses are those of a run that was not, to rounding."""
    with pytest.raises(Killed):
        run(Checkpoints(tmp_path), 7, kill, device=device)
    resumed, whole = run(Checkpoints(tmp_path), device=device), run(None, device=device)
    assert len(resumed.steps) == 3 * NUM_BATCHES - 6
    losses = [[epoch.train_loss for epoch in each.history.epochs] for each in (resumed, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_signal_saves_first(tmp_path: Path) -> None:
    """Long before the next checkpoint is due; the batch that is learned from is still counted."""
    rare, whole = params(checkpoint_s=1e5), run(None)
    with pytest.raises(Killed):
        run(Checkpoints(tmp_path), 6, kill, rare)
    assert Checkpoints(tmp_path).files() == [], "without a signal nothing is saved before it is due"
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / number.name
        with pytest.raises(StopRequestedError):
            run(Checkpoints(folder), 6, lambda number=number: os.kill(os.getpid(), number), rare)
        resumed = run(Checkpoints(folder), chosen=rare)
        assert len(resumed.steps) == 3 * NUM_BATCHES - 6
        assert_same(resumed, whole)


def test_damaged_checkpoints_end_it_with_what_to_do(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, {}).write_bytes(b"{}\n")
    with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged") as caught:
        run(Checkpoints(tmp_path))
    assert "Remove that folder" in caught.value.hint


# Whose checkpoints ----------------------------------------------------------------------------------------------------


def save(runs: Path, origin: dict[str, Any]) -> None:
    """A run that saves and is killed."""
    with suppress(Killed), resumable(runs, origin) as checkpoints:
        checkpoints.save(1, {"one": 1})
        raise Killed


def test_other_parameters_inputs_or_code_begin_anew(tmp_path: Path) -> None:
    for number, change in enumerate(
        ({"params_sha256": "other"}, {"inputs_sha256": {"frames": "other"}}, {"code_sha256": "other"})
    ):
        runs = tmp_path / str(number)
        save(runs, ORIGIN)
        with resumable(runs, ORIGIN | change) as checkpoints:
            assert checkpoints.load_newest() is None
        with resumable(runs, ORIGIN | {"commit": "e"}) as checkpoints:
            assert checkpoints.load_newest() == {"one": 1}
            with pytest.raises(RunInUseError, match="trains there"), resumable(runs, ORIGIN):
                pass
        assert Checkpoints(checkpoints.folder).files() == [], "they go once the output is there"


def test_other_runs_that_were_stopped_stay(tmp_path: Path) -> None:
    others = [Checkpoints(tmp_path / name).save(1, {}) for name in ("older", "last")]
    with resumable(tmp_path, ORIGIN):
        assert all(file.is_file() for file in others)
