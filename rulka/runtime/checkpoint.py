"""Live checkpoints: the complete state from which a killed run resumes.

One file each: a line of JSON with schema, length and SHA-256, then the output of `torch.save`. A file is written under
a temporary name and renamed, so that it is either whole or absent. The last two are kept, in case one is damaged later.
Once an older checkpoint has been read, damaged newer ones are renamed to `.damaged`, so that they do not count as kept.
Read with `weights_only=True`: a checkpoint holds data and never code.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError

SCHEMA_VERSION = 5
NUM_KEPT = 2
DAMAGED_SUFFIX = ".damaged"

_PATTERN = "checkpoint-*.ckpt"
_LOGGER = logging.getLogger(__name__)


class CheckpointError(UserError):
    """A live checkpoint could not be written, or none of them can be read."""


class Checkpoints:
    """The live checkpoints of one run.

    Attributes:
        folder: of the checkpoints; created by the first `save`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Writes a checkpoint atomically and removes all but the last `NUM_KEPT`.

        Args:
            step: progress of the run, in any unit; orders the checkpoints.
            state: nested dictionaries, lists and tuples of tensors, numbers and strings.

        Raises:
            CheckpointError: if it cannot be written; earlier checkpoints are untouched.
        """
        path = self.folder / f"checkpoint-{step:012d}.ckpt"
        try:
            with write_file(path) as file:
                file.write(_encode(state))
        except OSError as error:
            message = f"cannot write {path.as_posix()}: {error.strerror}; earlier checkpoints are untouched"
            raise CheckpointError(message) from error
        for old in self.files()[NUM_KEPT:]:
            old.unlink()
        return path

    def load_newest(self) -> dict[str, Any] | None:
        """Reads the newest intact checkpoint, logging damaged newer ones; returns None if there are no checkpoints.

        Raises:
            CheckpointError: if there are checkpoints but all of them are damaged.
        """
        paths, damaged = self.files(), []
        for path in paths:
            try:
                state = load_checkpoint(path)
            except CheckpointError as error:
                _LOGGER.warning("%s is damaged (%s); trying the one before it", path.as_posix(), error.__cause__)
                damaged.append(path)
                continue
            for other in damaged:
                other.replace(other.with_name(other.name + DAMAGED_SUFFIX))
            _LOGGER.warning("going on from %s", path.as_posix())
            return state
        if paths:
            message = f"all checkpoints in {self.folder.as_posix()} are damaged"
            raise CheckpointError(message, hint="Remove that folder to train from the beginning.")
        return None

    def clear(self) -> None:
        """Removes all checkpoints, damaged ones included."""
        for path in (*self.files(), *self.folder.glob(_PATTERN + DAMAGED_SUFFIX)):
            path.unlink()

    def files(self) -> list[Path]:
        """Returns all checkpoint files that are not marked as damaged, newest first."""
        return sorted(self.folder.glob(_PATTERN), reverse=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads exactly this checkpoint, without falling back to an older one.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    try:
        return _decode(check_readable(path).read_bytes())
    except (OSError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path.as_posix()} is missing or damaged: {error}") from error


def _encode(state: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    header = {"schema_version": SCHEMA_VERSION, "num_bytes": len(content), "sha256": digest}
    return json.dumps(header).encode() + b"\n" + content


def _decode(data: bytes) -> dict[str, Any]:
    """Verifies the header and unpacks; raises `ValueError` with the reason for a mismatch."""
    line, _, content = data.partition(b"\n")
    header = json.loads(line)
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"its schema version is not {SCHEMA_VERSION}")
    if header.get("num_bytes") != len(content) or header.get("sha256") != hashlib.sha256(content).hexdigest():
        raise ValueError("its checksum does not match")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


@contextmanager
def write_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file, and renames it to `path` once all of it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Removes a killed process's temporary files in and below a folder; no process may be writing there."""
    for path in folder.rglob("*.tmp"):
        path.unlink()


def _sync_folder(folder: Path) -> None:
    """Syncs a folder, on POSIX, so that a rename survives a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
