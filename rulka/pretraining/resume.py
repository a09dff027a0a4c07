"""Stopping a supervised training and going on: `runs/<stage>/<fingerprint>/`, and what its checkpoints hold.

The fingerprint is a hash of parameters, inputs and code, so that a checkpoint of others is never gone on with. Of runs
with another one the last is kept, as a changed parameter is often changed back.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from rulka.device import state_on_host
from rulka.provenance import fingerprint
from rulka.runtime.checkpoint import Checkpoints, remove_unfinished
from rulka.runtime.run_lock import RunInUseError, locked
from rulka.runtime.stop import StopSignals

NUM_OTHERS_KEPT = 1


class Stateful(Protocol):
    """What can be put into a checkpoint: tensors and plain values."""

    def state_dict(self) -> Any:
        """Returns all that it needs to go on."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Goes on from what `state_dict` returned."""
        ...


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
        _forget_others(folder)
        checkpoints = Checkpoints(folder)
        yield checkpoints
        checkpoints.clear()


def _forget_others(folder: Path) -> None:
    others = [other for other in folder.parent.iterdir() if other.is_dir() and other != folder]
    for other in sorted(others, key=_last_saved_s, reverse=True)[NUM_OTHERS_KEPT:]:
        with suppress(RunInUseError), locked(other):
            shutil.rmtree(other)


def _last_saved_s(folder: Path) -> float:
    return max((file.stat().st_mtime for file in Checkpoints(folder).files()), default=0.0)


class Keeper:
    """Saves a training between two of its steps: when it is due, and when somebody asks it to stop.

    torch's global generator in main memory is kept too.

    Args:
        checkpoints: where; None keeps nothing.
        period_s: seconds between two of them.
        parts: what is kept, by name.
        stop: asks it to stop.
    """

    def __init__(
        self, checkpoints: Checkpoints | None, period_s: float, parts: Mapping[str, Stateful], stop: StopSignals
    ) -> None:
        self._checkpoints, self._period_s, self._parts, self._stop = checkpoints, period_s, parts, stop
        self._saved_s = time.monotonic()

    def restore(self) -> bool:
        """Goes on from the newest checkpoint; returns whether there is one.

        Raises:
            CheckpointError: if all are damaged.
        """
        state = self._checkpoints.load_newest() if self._checkpoints else None
        if state is None:
            return False
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["torch_generator"])
        return True

    def look(self, step: int) -> None:
        """Saves if it is time to, by the number of the step that was just made.

        Raises:
            StopRequestedError: if somebody asked to stop; all is saved then.
            CheckpointError: if it cannot be written.
        """
        if self._stop.is_requested or time.monotonic() - self._saved_s >= self._period_s:
            self.save(step)
        self._stop.check()

    def save(self, step: int) -> None:
        """Saves now."""
        if self._checkpoints is not None:
            states = {name: state_on_host(part.state_dict()) for name, part in self._parts.items()}
            self._checkpoints.save(step, states | {"torch_generator": torch.get_rng_state()})
        self._saved_s = time.monotonic()
