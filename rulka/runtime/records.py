"""The best greedy race of a run: driven again to confirm it, and kept whole.

Training races explore, so they make no records; a race that did not finish is none either.

File `record.npz` (plain arrays): `env_steps`, `seed`, `car`, `time_ms`, `image` [T, L, H, W] uint8, `floats` [T, F]
float32 and `action` [T] uint8, one entry for each decision; and what the agent thought of every action before it,
[T, A] float32: IQN's mean Q-values as `q_value`, PPO's policy as `probability`. The action's is the largest number.
Decisions of K actions have `action` [T, K] and `q_value` [T, K, A].
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rulka.agents.spec import ACTION_VALUES
from rulka.runtime.checkpoint import CheckpointError, write_file
from rulka.runtime.greedy_check import CheckResult, DrivenRace, GreedyCheck, RaceKey

RECORD_FILE = "record.npz"
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """A confirmed record.

    Attributes:
        env_steps: of the run when it was driven.
        race: all of it.
    """

    env_steps: int
    race: DrivenRace

    @property
    def time_s(self) -> float:
        """Race time in seconds."""
        return self.race.key.time_ms / 1000.0


class Records:
    """The record of a run, and the file it lies in.

    Attributes:
        best: the record; None before the first greedy race that finished.
    """

    def __init__(self, folder: Path) -> None:
        """Begins without a record; the file of an earlier start stays until `load_state_dict` or `clear`."""
        self._path = folder / RECORD_FILE
        self.best: Record | None = None

    @property
    def time_s(self) -> float | None:
        """Time of the record in seconds; None where there is none."""
        return self.best.time_s if self.best else None

    def offer(self, check: GreedyCheck, tensors: Mapping[str, Tensor], env_steps: int, result: CheckResult) -> None:
        """Looks whether a check brought a record; drives it again, and keeps it if it can be repeated.

        Args:
            check: that drove the races.
            tensors: the weights that it drove with.
            env_steps: of the run.
            result: of the check.
        """
        fastest = result.fastest
        if fastest is None or (self.best is not None and fastest.time_ms >= self.best.race.key.time_ms):
            return
        race = check.drive_again(tensors, fastest)
        if race is None or race.key != fastest:
            again = "it did not finish" if race is None else f"it took {race.key.time_ms / 1000.0:.3f} s"
            _LOGGER.warning("a record of %.3f s was not confirmed: %s", fastest.time_ms / 1000.0, again)
            return
        self.best = Record(env_steps, race)
        self._write(self.best)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the file's bytes for a checkpoint, so that both are of the same moment; nothing without a record."""
        return {"file": torch.frombuffer(bytearray(self._path.read_bytes()), dtype=torch.uint8)} if self.best else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from what `state_dict` returned; a record that was driven after that is forgotten.

        Raises:
            CheckpointError: if the file of the record has to be written again and cannot be.
        """
        if "file" not in state:
            self.clear()
            return
        content = state["file"].numpy().tobytes()
        try:
            if not self._path.exists() or self._path.read_bytes() != content:
                with write_file(self._path) as file:
                    file.write(content)
        except OSError as error:
            message = f"cannot write {self._path.as_posix()}: {error.strerror}"
            raise CheckpointError(message) from error
        self.best = read_record(self._path)

    def clear(self) -> None:
        """Forgets the record and removes its file."""
        self._path.unlink(missing_ok=True)
        self.best = None

    def _write(self, record: Record) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp.npz")
        key, race = record.race.key, record.race
        np.savez_compressed(
            temporary,
            allow_pickle=False,
            env_steps=record.env_steps,
            seed=key.seed,
            car=key.car,
            time_ms=key.time_ms,
            image=race.image,
            floats=race.floats,
            action=race.action,
            **race.action_values,
        )
        temporary.replace(self._path)


def read_record(path: Path) -> Record | None:
    """Reads a record; None where there is no file, or, with a warning, where it is damaged."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            key = RaceKey(int(stored["seed"]), int(stored["car"]), int(stored["time_ms"]))
            action_values = {name: stored[name] for name in ACTION_VALUES if name in stored}
            race = DrivenRace(key, stored["image"], stored["floats"], stored["action"], action_values)
            return Record(int(stored["env_steps"]), race)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        _LOGGER.warning("the record in %s is damaged and is left out: %s", path.as_posix(), error)
        return None
