"""DVC as our commands call it: within their own process, waiting for others, and with its errors in plain words."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvc.config import ConfigError
from dvc.exceptions import DvcException, FileTransferError, NotDvcRepoError
from dvc.fs import AuthError, RemoteMissingDepsError
from dvc.fs import ConfigError as StorageConfigError
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.scm import SCMError

from rulka.disk import disk_error_of
from rulka.errors import UserError
from rulka.versions.busy import DvcError, holders

DVC_FOLDER = Path(".dvc")


class NoProjectError(UserError):
    """There is no DVC in this folder."""


class BusyError(UserError):
    """Another DVC process works with the same files."""


class RemoteError(UserError):
    """The remote cannot be reached, or lacks what is needed to speak to it."""


NO_REMOTE = "the remote cannot be used: "
IN_PLAIN_WORDS: tuple[tuple[type[Exception], type[UserError], str, str], ...] = (
    (NotDvcRepoError, NoProjectError, "", "Run this from the root of the project."),
    (
        SCMError,
        NoProjectError,
        "DVC finds no git here: ",
        "`git init`; or, to work without git, `dvc config --local core.no_scm true`.",
    ),
    # "s3 is supported, but requires 'dvc-s3' to be installed"
    (ImportError, RemoteError, NO_REMOTE, "Install that into .venv with pip, or take a folder as the remote."),
    (RemoteMissingDepsError, RemoteError, NO_REMOTE, "Install that into .venv with pip, or take a folder."),
    (AuthError, RemoteError, NO_REMOTE, "`dvc remote modify` sets who asks; `dvc remote list` says what is set."),
    (ConfigError, RemoteError, NO_REMOTE, "`dvc remote list` says what is set."),
    (StorageConfigError, RemoteError, NO_REMOTE, "`dvc remote list` says what is set."),
    (FileTransferError, RemoteError, NO_REMOTE, "Run it again: what went over already does not go again."),
    (OSError, RemoteError, "DVC cannot read or write: ", "`dvc remote list` and `dvc cache dir` say where."),
    (DvcException, DvcError, "DVC cannot do that: ", ""),
)
"""Errors of DVC, the narrower first: what is raised instead, how its message begins, and what to do."""


@contextmanager
def opened(settings: dict[str, Any] | None = None) -> Iterator[Repo]:
    """Opens DVC in this folder for a block; errors of DVC within the block are said in our words.

    Args:
        settings: what stands above DVC's own settings, of this folder and of every commit that is looked at.

    Raises:
        NoProjectError: if there is none.
        BusyError: if another process works with the same files.
        RemoteError: if the remote fails.
        DvcError: whatever else DVC says.
    """
    if not DVC_FOLDER.is_dir():
        message = f"there is no {DVC_FOLDER} in {Path.cwd()}"
        raise NoProjectError(message, hint="Run this from the root of the project; `rulka new FOLDER` makes one.")
    with explained(), Repo(".", config=settings, _wait_for_lock=True) as repo:
        yield repo


@contextmanager
def explained() -> Iterator[None]:
    """Turns errors of DVC in the block into errors that say what to do."""
    quiet = logging.getLogger("dvc"), logging.getLogger("dvc_data")
    levels = [logger.level for logger in quiet]
    for logger in quiet:  # what they warn of is said by those who call this, in names and not in hashes
        logger.setLevel(logging.ERROR)
    try:
        yield
    except LockError as error:
        busy = holders()
        who = ", ".join(f"process {pid} (`{command}`)" for pid, command in busy.items())
        message = f"another DVC is at work: {str(error).splitlines()[0]}"
        raise BusyError(message, hint=f"Wait until {who or 'it'} has ended, then run this again.") from error
    except tuple(kind for kind, *_ in IN_PLAIN_WORDS) as error:
        if disk_error_of(error) is not None:  # said in one line wherever it comes from
            raise
        _, raised, begin, hint = next(words for words in IN_PLAIN_WORDS if isinstance(error, words[0]))
        message = f"{begin}{error}"
        raise raised(message, hint=hint) from error
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)


def recorded_outs(repo: Repo, commits: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns what commits record: by commit, the hash of each output and each folder that was added, by its path.

    Raises:
        DvcError: if what one of them says of DVC cannot be read.
    """
    found: dict[str, dict[str, str]] = {}
    if not commits:
        return found
    for commit in repo.brancher(revs=list(commits), workspace=False, sha_only=True):
        try:
            found[commit] = outs_of(repo)
        except DvcException as error:
            message = f"what commit {commit} says of its data cannot be read: {error}"
            raise DvcError(message, hint=f"`git show {commit}` shows it.") from error
    return found


def outs_of(repo: Repo) -> dict[str, str]:
    """Returns the hash of each output and each folder that was added, by its path, where one is known."""
    hashes = {repo.fs.relpath(out.fs_path, repo.root_dir): out.hash_info for out in repo.index.outs if out.use_cache}
    return {path: info.value for path, info in hashes.items() if info is not None and info.value}


def add(folders: Sequence[Path]) -> list[str]:
    """Puts folders that are no outputs into DVC's cache, and a .dvc file beside each.

    Returns:
        What is to be committed now: the .dvc files, and where DVC wrote what git shall ignore.

    Raises:
        DvcError: if DVC cannot; see `opened`.
    """
    with opened() as repo:
        Repo.add(repo, targets=[folder.as_posix() for folder in folders])
    files = [folder.with_name(f"{folder.name}.dvc") for folder in folders]
    ignoring = {file.with_name(".gitignore") for file in files}
    return sorted(path.as_posix() for path in (*files, *ignoring) if path.is_file())
