"""Recordings under DVC: copied to where the stage `races` reads them, with a .dvc file that a commit can hold."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rulka.datasets.from_recordings import find_recordings
from rulka.errors import UserError
from rulka.folders import RECORDINGS
from rulka.outputs import new_file
from rulka.recordings.summary import inspect_file
from rulka.versions.dvc import DVC_FOLDER, NoProjectError, add
from rulka.versions.git import git, has_git

KEEPER = RECORDINGS / ".gitkeep"
"""What holds the folder in git as long as it is empty; DVC adds no folder of which git holds a part."""


class NoRecordingError(UserError):
    """What is to be added is no recording, or there is none."""


class OtherRecordingError(UserError):
    """Another recording has the name already."""


class HeldByGitError(UserError):
    """Git holds recordings, which DVC is to hold."""


@dataclass(frozen=True)
class Added:
    """What came of adding recordings.

    Attributes:
        num_new: files that were copied.
        num_files: recordings that there are now.
        unreadable: of the new ones those that cannot be read, with the reason.
        to_commit: files that a commit should hold now.
    """

    num_new: int
    num_files: int
    unreadable: tuple[str, ...]
    to_commit: tuple[str, ...]


def add_recordings(paths: Sequence[Path]) -> Added:
    """Copies recordings to `data/recordings` and puts that folder under DVC; nothing is overwritten.

    Args:
        paths: Gbx files, and folders of them, which become folders there; none for what lies there already.

    Raises:
        NoRecordingError: if a path is no Gbx file or holds none, or there is no recording at all.
        OtherRecordingError: if another file has the name already.
        HeldByGitError: if git holds recordings there.
        NoProjectError: if there is no DVC here.
    """
    if not DVC_FOLDER.is_dir():
        message = f"there is no {DVC_FOLDER} in {Path.cwd()}"
        raise NoProjectError(message, hint="Run this from the root of the project; `rulka new FOLDER` makes one.")
    held = _held_by_git()
    new = _to_copy(paths)
    unreadable = tuple(f"{file}: {reason}" for file in new if (reason := inspect_file(file)["error"]))
    for source, target in new.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_file(target, may_replace=False) as beside:
            shutil.copyfile(source, beside)
    files = find_recordings(RECORDINGS)
    if not files:
        message = f"there are no recordings in {RECORDINGS.as_posix()}"
        raise NoRecordingError(message, hint="Name Gbx files or folders of them, or fetch some: `rulka fetch`.")
    if held:
        git("rm", "--quiet", "--cached", KEEPER.as_posix())
    KEEPER.unlink(missing_ok=True)
    return Added(len(new), len(files), unreadable, (*add([RECORDINGS]), *held))


def _to_copy(paths: Sequence[Path]) -> dict[Path, Path]:
    """Returns where each file goes; those that lie there already, with the same content, are left out."""
    targets: dict[Path, Path] = {}
    for path in paths:
        files = find_recordings(path) if path.is_dir() else [path]
        if not files or not all(file.is_file() and file.name.lower().endswith(".gbx") for file in files):
            message = f"{path} {'holds no Gbx file' if path.is_dir() else 'is no Gbx file'}"
            raise NoRecordingError(message, hint="Recordings end in .Replay.Gbx; `rulka inspect` looks into them.")
        inside = path.resolve().parent if path.is_dir() else None
        for file in files:
            if RECORDINGS.resolve() in file.resolve().parents:
                continue
            target = RECORDINGS / (file.resolve().relative_to(inside) if inside else file.name)
            if target in targets.values() or (target.exists() and not filecmp.cmp(file, target, shallow=False)):
                message = f"{target.as_posix()} is another recording than {file}"
                raise OtherRecordingError(message, hint="Nothing was copied. Rename one of the two.")
            if not target.exists():
                targets[file] = target
    return targets


def _held_by_git() -> list[str]:
    """Returns the keeper's path where git holds it; it alone may be."""
    held = git("ls-files", "--", RECORDINGS.as_posix()).splitlines() if has_git() else []
    others = [path for path in held if path != KEEPER.as_posix()]
    if others:
        message = f"git holds {len(others)} files of {RECORDINGS.as_posix()}, such as {others[0]}"
        hint = f"`git rm -r --cached {RECORDINGS.as_posix()}` takes them out of git and leaves them here; then again."
        raise HeldByGitError(message, hint=hint)
    return held
