"""Experience beside the live checkpoints: everything a learner still holds, in write-once files.

A learner's experience comes in numbered pieces that never change, mostly blocks. A checkpoint writes the new pieces,
names all that it needs, and removes those that no kept checkpoint needs: it costs what is new, not the total. Each is
an uncompressed `.npz`, whose CRC-32 is checked on reading; nothing is ever unpickled.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rulka.buffers.experience import LazyPieces, Piece
from rulka.runtime.checkpoint import NUM_KEPT, CheckpointError, write_file

FOLDER = "experience"


class DamagedExperienceError(Exception):
    """A piece of experience cannot be read; the message names the file."""


class ExperienceFiles:
    """The pieces of experience of one run.

    Attributes:
        folder: of the files; created with the first one.
    """

    def __init__(self, folder: Path, num_starts: int) -> None:
        """Starts without any pieces.

        Args:
            folder: of the run.
            num_starts: number of earlier starts of the run; part of new names, since a run resumed from an earlier
                checkpoint reuses the numbers of later pieces.
        """
        self.folder, self._num_starts = folder / FOLDER, num_starts
        self._names: dict[int, str] = {}
        self._kept: dict[int, set[str]] = {}

    def write(self, pieces: Mapping[int, Piece]) -> dict[int, str]:
        """Writes the pieces that are not on disk yet.

        Args:
            pieces: by number; the same number always means the same content.

        Returns:
            The file name of every piece, for the checkpoint.

        Raises:
            CheckpointError: if one cannot be written.
        """
        names = {}
        for number in pieces:  # without reading those that were written before
            name = self._names.get(number)
            if name is None:
                name = f"{self._num_starts:04d}-{number:09d}.npz"
                self._write(self.folder / name, pieces[number])
            names[number] = name
        self._names = names
        return names

    def forget_others(self, env_steps: int) -> None:
        """Removes files that no kept checkpoint needs; call it once the newest checkpoint is on disk.

        Args:
            env_steps: of the newest checkpoint, which replaces one with the same number.
        """
        self._kept[env_steps] = set(self._names.values())
        if len(self._kept) < NUM_KEPT:
            return
        self._kept = dict(sorted(self._kept.items())[-NUM_KEPT:])
        needed = set().union(*self._kept.values())
        for path in self.folder.glob("*.npz"):
            if path.name not in needed:
                path.unlink()

    def pieces(self, names: Mapping[int, str]) -> Mapping[int, Piece]:
        """Returns the pieces that a checkpoint names, read lazily.

        Raises:
            DamagedExperienceError: on access to a missing or damaged piece, naming the file.
        """
        return LazyPieces(names, lambda number: _read(self.folder / names[number]))

    def go_on_from(self, env_steps: int, names: Mapping[int, str]) -> None:
        """Marks the pieces that a checkpoint names as written, once all of them have been read."""
        self._names = dict(names)
        self._kept[env_steps] = set(names.values())

    def clear(self) -> None:
        """Removes all pieces."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, path: Path, piece: Piece) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with write_file(path) as file:
                np.savez(file, allow_pickle=False, **piece)
        except OSError as error:
            message = f"cannot write {path.as_posix()}: {error.strerror or error}; earlier checkpoints are untouched"
            raise CheckpointError(message) from error


def _read(path: Path) -> Piece:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise DamagedExperienceError(f"{path.as_posix()} is damaged or missing ({error})") from error
