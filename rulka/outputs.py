"""Where commands may write: one rule for all of them.

A file or folder that a command is told to write lies in a folder that exists: none is made on the way to it, as a
mistyped path would otherwise leave folders about. A folder to write into is made where it is missing.
"""

from __future__ import annotations

import os
from pathlib import Path

from rulka.errors import UserError


class OutputError(UserError):
    """A place where nothing can be written; found before any work is done."""


def check_file(path: Path, *suffixes: str) -> Path:
    """Returns the path of a file to write.

    Args:
        path: of the file.
        *suffixes: endings in lower case, one of which its name must have in either case; none for any name.

    Raises:
        OutputError: if it is a folder, has another ending, or the folder it shall lie in is missing or may not be
            written to.
    """
    if path.is_dir():
        message = f"{path} is a folder, and a file is to be written"
        raise OutputError(message, hint=f"Name a file in it, such as {path / 'NAME'}.")
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


def _check_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        message = f"{path} cannot be written: there is no folder {path.parent}"
        raise OutputError(message, hint="Make the folder first, or name another place.")
    _check_writable(parent)


def _check_writable(folder: Path) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"nothing may be written into {folder}"
        raise OutputError(message, hint="Allow writing to it, or name another place.")
