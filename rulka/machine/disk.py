"""Errors of the operating system that the user can fix, no room and no permission, each as one clear message."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from rulka.machine.errors import UserError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_ALLOWED = {errno.EROFS, errno.EACCES, errno.EPERM}
# Libraries with their own file writers raise their own errors; numpy only says how many items it could write.
_NO_ROOM_TEXT = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|\d+ requested and \d+ written", re.IGNORECASE
)
_NOT_ALLOWED_TEXT = re.compile(r"Read-only file system|Permission denied", re.IGNORECASE)


WRITTEN = (".", "dvc.lock", ".dvc", ".dvc/tmp", ".dvc/cache", ".prefect", ".prefect/prefect.db", "data", "runs")
"""Paths in the root of the project that a run writes, as far as they exist."""


def disk_error_of(error: BaseException) -> UserError | None:
    """Returns a `UserError` with a remedy if the error, or one that caused it, comes from the disk; else None."""
    for each in _chain(error):
        number = each.errno if isinstance(each, OSError) else None
        if number in NO_ROOM or _NO_ROOM_TEXT.search(str(each)):
            return UserError(
                f"there was no room for what had to be written: {_described(each)}",
                hint="Make room on the disk, or raise your quota or the limit on the size of files, then run it again.",
            )
        if number in NOT_ALLOWED or (isinstance(each, OSError) and _NOT_ALLOWED_TEXT.search(str(each))):
            return UserError(f"not allowed: {_described(each)}", hint="Allow it, or work in a folder of your own.")
        if number == errno.ENAMETOOLONG:
            return UserError(_described(each), hint="Take a shorter name.")
    return None


def check_readable(path: Path) -> Path:
    """Returns a path to read; opening a pipe or a device may wait for ever.

    Raises:
        OSError: if it is one, or does not exist.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):  # reading a folder fails by itself
        shown = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}.get(kind, "a device")
        raise OSError(errno.EINVAL, f"it is {shown}, and a file is to be read", str(path))
    return path


def check_can_hold(folder: Path) -> None:
    """Checks that a folder can be written to; it need not exist yet.

    Raises:
        UserError: if it, or the nearest folder above it that exists, is not writable.
    """
    there = existing(folder)
    if not os.access(there, os.W_OK | os.X_OK):
        message = f"{there if there != folder.absolute() else folder} is not writable"
        raise UserError(message, hint="Allow writing to it, or work in a folder of your own.")


def existing(folder: Path) -> Path:
    """Returns a folder as an absolute path, or the nearest one above it that exists."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())


def unwritable_paths() -> list[Path]:
    """Returns the paths of `WRITTEN` that exist and are not writable."""
    return [Path(name) for name in WRITTEN if Path(name).exists() and not os.access(name, os.W_OK)]


def file_of(error: OSError) -> str | None:
    """Returns the file that an error is about: the target of a copy or a rename, which Python names second."""
    name = error.filename2 or error.filename
    return None if name is None or isinstance(name, int) else os.fsdecode(name)


def _described(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {error.strerror}" if (name := file_of(error)) else error.strerror
    return str(error).splitlines()[0]


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
