"""Exclusive use of a folder, such as a run's: a process holds `run.lock` and `run.pid` there as long as it lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from rulka.machine.errors import UserError

LOCK_FILE, PID_FILE = "run.lock", "run.pid"


class RunInUseError(UserError):
    """Another process uses the folder."""


@contextmanager
def locked(folder: Path, patience_s: float = 0.0, *, doing: str = "trains") -> Iterator[None]:
    """Locks a folder against other processes; the system releases the lock of a process that dies.

    Args:
        folder: created if missing.
        patience_s: how long to wait for the lock.
        doing: verb of the message: what the other process does there.

    Raises:
        RunInUseError: if another process holds the lock; the message names it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE, timeout=patience_s)
    try:
        lock.acquire()
    except Timeout as error:
        message = f"{folder.as_posix()} is in use: {_owner(folder)} {doing} there"
        raise RunInUseError(message, hint="Wait until it ends, or stop it with Ctrl-C where it runs.") from error
    try:
        (folder / PID_FILE).write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        (folder / PID_FILE).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        return f"process {int((folder / PID_FILE).read_text(encoding='utf-8'))}"
    except (OSError, ValueError):  # it has only just begun, or is just ending
        return "another process"
