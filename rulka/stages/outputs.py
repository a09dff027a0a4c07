"""Output files and folders of commands: one rule for all.

The parent folder of an output must exist. It is not created, because a mistyped path would leave stray folders behind.
A folder to write into is created if missing.

Writes are atomic: an output takes its place once it is complete. A full disk, a missing permission or an interrupt
leaves nothing half written, and the previous content stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rulka.machine.disk import NO_ROOM, NOT_ALLOWED, file_of
from rulka.machine.errors import UserError

UNFINISHED = ".new-"
"""Beginning of the name of a file or folder that is being written, or that a killed process left."""


@contextmanager
def new_file(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """Yields the path of a temporary file, which is moved to `path` if the block succeeds.

    After an exception or an interrupt, the new file is removed and `path` is unchanged.

    Args:
        path: destination; the temporary file lies beside it and has the same suffix.
        may_replace: whether an existing file is replaced.

    Raises:
        UserError: if the file cannot be written, or exists and `may_replace` is false.
    """
    check_file(path)
    beside = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        _check_absent(path, may_replace)
        yield beside
        _check_absent(path, may_replace)  # the block may have taken minutes
        beside.replace(path)
    except OSError as error:
        _raise_if_about_another(error, beside)
        raise not_written(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def filled_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty temporary folder, whose content is moved into `folder` if the block succeeds.

    Files of the same name are replaced, others stay. After an exception or an interrupt, `folder` is as before, missing
    if it was missing. What a killed process left there is removed first.

    Raises:
        UserError: if something cannot be written.
    """
    check_folder(folder)
    was_there = folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        for left in (each for each in folder.glob(f"{UNFINISHED}*") if each.is_dir()):
            with locked_folder(left) as is_free:
                if is_free:
                    shutil.rmtree(left)
        # Inside, not beside: permission to write into a folder does not include its parent.
        with (
            tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder, ignore_cleanup_errors=True) as inside,
            locked_folder(Path(inside)),
        ):
            yield Path(inside)
            for made in sorted(Path(inside).iterdir()):
                made.replace(folder / made.name)
    except OSError as error:
        _raise_if_about_another(error, folder)
        raise not_written(folder, error) from error
    finally:
        if not was_there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def has_content(folder: Path) -> bool:
    """True if a folder holds anything but what killed processes left unfinished; False if it does not exist."""
    return folder.is_dir() and not all(each.name.startswith(UNFINISHED) for each in folder.iterdir())


@contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Tries to lock a folder for the block, or until this process dies; yields whether it succeeded."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems cannot lock folders: there, only DVC keeps two processes apart.
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN)
    return True


def not_written(path: Path, error: OSError) -> UserError:
    """Returns the error for a failed write of `path` that changed nothing."""
    hint = "Nothing was changed."
    if error.errno in NO_ROOM:
        hint = f"{hint} Make room there, or name another place."
    elif error.errno in NOT_ALLOWED:
        hint = f"{hint} Allow writing to it, or name another place."
    return UserError(f"{path} cannot be written: {error.strerror or error}", hint=hint)


def check_file(path: Path, *suffixes: str) -> Path:
    """Checks that a file can be written and returns its path.

    Args:
        path: of the file.
        *suffixes: permitted suffixes in lower case, matched case-insensitively; none permits any name.

    Raises:
        UserError: if it is a folder or a device, has another suffix, or its parent folder is missing or not writable.
    """
    if path.is_dir():
        message = f"{path} is a folder, and a file is to be written"
        raise UserError(message, hint=f"Name a file in it, such as {path / 'NAME'}.")
    if path.exists() and not path.is_file():
        message = f"{path} is a device or a pipe, and a file is to be written"
        raise UserError(message, hint="Name a file: it takes the place of what is there.")
    if suffixes and not path.name.lower().endswith(suffixes):
        raise UserError(f"{path} must end in {' or '.join(suffixes)}", hint="The ending says what is written.")
    _check_parent(path)
    return path


def check_folder(path: Path) -> Path:
    """Checks that a folder, which need not exist, can be written into and returns its path.

    Raises:
        UserError: if it is a file or not writable, or does not exist and its parent is missing or not writable.
    """
    if path.is_dir():
        _check_writable(path)
    elif path.exists():
        raise UserError(f"{path} is a file, and a folder is to be written into", hint="Name a folder.")
    else:
        _check_parent(path)
    return path


def _raise_if_about_another(error: OSError, place: Path) -> None:
    """Re-raises an error about a file outside `place`: it says nothing about the output."""
    if (name := file_of(error)) is not None and place not in (Path(name), *Path(name).parents):
        raise error


def _check_absent(path: Path, may_replace: bool) -> None:
    if path.exists() and not may_replace:
        raise UserError(f"{path} exists", hint="Name another file, nothing is overwritten.")


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        message = f"{path} cannot be written: there is no folder {path.parent}"
        raise UserError(message, hint="Make the folder first, or name another place.")
    _check_writable(parent)


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{folder} is not writable", hint="Allow writing to it, or name another place.")
