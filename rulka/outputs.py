"""Where commands may write, and how: one rule for all of them.

A file or folder that a command is told to write lies in a folder that exists: none is made on the way to it, as a
mistyped path would otherwise leave folders about. A folder to write into is made where it is missing.

What is written takes its place once it is complete. A full disk, a missing permission or an interrupt leaves nothing
half written, and what was there before stays.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rulka.disk import NO_ROOM, NOT_ALLOWED
from rulka.errors import UserError


class OutputError(UserError):
    """Something cannot be written; the message says what and why."""


@contextmanager
def new_file(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """Yields the path of a file to write in the block, which takes its place at `path` when the block ends well.

    After an exception, an interrupt included, the new file is removed and whatever lay at `path` is untouched.

    Args:
        path: of the file; the one that is yielded lies beside it and has the same ending.
        may_replace: whether a file that is there is replaced.

    Raises:
        OutputError: if the file cannot be written, or is there and may not be replaced.
    """
    check_file(path)
    beside = path.with_name(f".new-{os.getpid()}-{path.name}")
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
    """Yields an empty folder to write into, whose content is moved into `folder` when the block ends well.

    Files of the same name are replaced, others stay. After an exception, an interrupt included, `folder` is as it was
    before, missing if it was missing.

    Raises:
        OutputError: if something cannot be written.
    """
    check_folder(folder)
    was_there = folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        # Inside, not beside: who may write into a folder need not be allowed to write next to it.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder, ignore_cleanup_errors=True) as inside:
            yield Path(inside)
            for made in sorted(Path(inside).iterdir()):
                made.replace(folder / made.name)
    except OSError as error:
        _raise_if_about_another(error, folder)
        raise not_written(folder, error) from error
    finally:
        if not was_there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def not_written(path: Path, error: OSError) -> OutputError:
    """Returns the error to raise when writing `path` failed and changed nothing."""
    hint = "Nothing was changed."
    if error.errno in NO_ROOM:
        hint = f"{hint} Make room there, or name another place."
    elif error.errno in NOT_ALLOWED:
        hint = f"{hint} Allow writing to it, or name another place."
    return OutputError(f"{path} cannot be written: {error.strerror or error}", hint=hint)


def check_file(path: Path, *suffixes: str) -> Path:
    """Returns the path of a file to write.

    Args:
        path: of the file.
        *suffixes: endings in lower case, one of which its name must have in either case; none for any name.

    Raises:
        OutputError: if it is a folder, or a device, has another ending, or the folder it shall lie in is missing or may
            not be written to.
    """
    if path.is_dir():
        message = f"{path} is a folder, and a file is to be written"
        raise OutputError(message, hint=f"Name a file in it, such as {path / 'NAME'}.")
    if path.exists() and not path.is_file():
        message = f"{path} is a device or a pipe, and a file is to be written"
        raise OutputError(message, hint="Name a file: it takes the place of what is there.")
    if suffixes and not path.name.lower().endswith(suffixes):
        message = f"{path} must end in {' or '.join(suffixes)}"
        raise OutputError(message, hint="The ending says what is written.")
    _check_parent(path)
    return path


def check_folder(path: Path) -> Path:
    """Returns the path of a folder to write into, which need not exist.

    Raises:
        OutputError: if it is a file, or the folder it shall lie in is missing, or it may not be written to.
    """
    if path.is_dir():
        _check_writable(path)
    elif path.exists():
        message = f"{path} is a file, and a folder is to be written into"
        raise OutputError(message, hint="Name a folder.")
    else:
        _check_parent(path)
    return path


def _raise_if_about_another(error: OSError, place: Path) -> None:
    """Raises an error again that came from reading some other file, which is no fault of the place written to."""
    if error.filename is not None and place not in (found := Path(os.fsdecode(error.filename)), *found.parents):
        raise error


def _check_absent(path: Path, may_replace: bool) -> None:
    if path.exists() and not may_replace:
        message = f"{path} exists"
        raise OutputError(message, hint="Name another file, nothing is overwritten.")


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        message = f"{path} cannot be written: there is no folder {path.parent}"
        raise OutputError(message, hint="Make the folder first, or name another place.")
    _check_writable(parent)


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"{folder} is not writable"
        raise OutputError(message, hint="Allow writing to it, or name another place.")
