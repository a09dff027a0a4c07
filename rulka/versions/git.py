"""What is asked of git: whether there is one, which commits recorded results, what is not committed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from rulka.errors import UserError
from rulka.graph import LOCK_FILE

RECORDING = (LOCK_FILE.as_posix(), "*.dvc")
"""Files by which a commit says which data belong to it, as git's patterns."""


class GitError(UserError):
    """Git cannot do what was asked."""


class NoGitError(GitError):
    """This folder is no git repository, and only that would have versions."""


def git(*arguments: str, folder: Path = Path()) -> str:
    """Returns what git answers, without the end of its last line.

    Raises:
        GitError: if it cannot.
    """
    command = ["git", *arguments]
    try:
        answer = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError as error:
        message = "git is not installed, or not on PATH"
        raise NoGitError(message, hint="Versions of results are commits of git: install it.") from error
    if answer.returncode != 0:
        message = f"`git {' '.join(arguments)}` failed: {answer.stderr.strip()}"
        raise GitError(message)
    return answer.stdout.rstrip("\n")


def has_git() -> bool:
    """Whether this folder is part of a git repository."""
    try:
        return git("rev-parse", "--is-inside-work-tree") == "true"
    except GitError:
        return False


def check_git() -> None:
    """Checks that this folder is part of a git repository.

    Raises:
        NoGitError: if it is none.
    """
    if not has_git():
        message = f"{Path.cwd()} is no git repository, so that there are no versions"
        hint = "`git init`, remove .dvc/config.local if there is one, then commit dvc.lock beside params.yaml."
        raise NoGitError(message, hint=hint)


def recording_commits(refs: Sequence[str] = ("--all", "HEAD")) -> list[str]:
    """Returns the commits that changed what is recorded, newest first; those between them record the same.

    Args:
        refs: where to begin, as `git log` takes it.
    """
    if not git("rev-list", "--all", "--max-count=1"):
        return []
    return git("log", "--full-history", "--format=%H", *refs, "--", *RECORDING).splitlines()


def uncommitted(paths: Sequence[str]) -> list[str]:
    """Returns which of some files differ from the last commit, or are not in it."""
    lines = git("status", "--porcelain", "--untracked-files=all", "--", *paths).splitlines()
    return sorted(line[3:] for line in lines)
