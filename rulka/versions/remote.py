"""The remote: a place outside this folder that holds the data of every version, for other clones and for bad days.

DVC reads the settings of each commit by themselves, so that data of commits from before there was a remote would stay
here without a word, and a path that is relative would lead those of later ones to the root of the disk. So what is set
now stands above what any commit says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dvc.exceptions import DvcException
from dvc.repo import Repo

from rulka.errors import UserError
from rulka.folders import KEPT_AGENTS, NIGHTS, RECORDINGS
from rulka.graph import LOCK_FILE, PARAMS_FILE
from rulka.outputs import check_folder
from rulka.versions.dvc import DVC_FOLDER, RemoteError, opened, recorded_outs
from rulka.versions.git import has_git, recording_commits, uncommitted

NAME = "storage"
OBJECTS = "files"
"""The folder in a remote, below which DVC keeps what it stores."""
NUM_NAMED = 3
"""Of how many commits without data a push names before it counts."""
UNSAVED = "Can't remove the following unsaved files"
"""How DVC's error begins, before a line for each."""
ADDED = {
    RECORDINGS: "rulka recordings add",
    KEPT_AGENTS: f"dvc add {KEPT_AGENTS.as_posix()}",
    NIGHTS: f"dvc add {NIGHTS.as_posix()}",
}
"""Folders that are no outputs of stages, and what puts them under DVC."""


class NoRemoteError(UserError):
    """No remote is set."""


class OtherRemoteError(UserError):
    """Another remote is set."""


class NoOutputsError(UserError):
    """A version has no outputs: nothing was recorded in it."""


class MissingDataError(UserError):
    """Data of a version are neither here nor in the remote."""


class UnsavedDataError(UserError):
    """Data here would be lost, as they are nowhere else."""


@dataclass(frozen=True)
class Remote:
    """Where data go.

    Attributes:
        name: in DVC's settings.
        place: a folder, whole, or an address.
        settings: what DVC is told of it.
    """

    name: str
    place: str
    settings: dict[str, Any]

    @property
    def folder(self) -> Path | None:
        """The folder that it is; None where it is an address."""
        return None if _is_address(self.place) else Path(self.place)

    def above_commits(self) -> dict[str, Any]:
        """Returns the settings by which it stands above whatever a commit says of remotes."""
        return {"core": {"remote": self.name}, "remote": {self.name: self.settings}}


def current_remote(repo: Repo) -> Remote | None:
    """Returns the remote that is set, None where there is none."""
    name = repo.config["core"].get("remote")
    if name is None:
        return None
    settings = dict(repo.config["remote"].get(name, {}))
    return Remote(name, str(settings.get("url", "")), settings)


def set_remote(place: str | None, *, is_local: bool) -> tuple[Remote, bool]:
    """Sets the remote, and makes its folder.

    Args:
        place: a folder, or an address that DVC knows, such as s3://; a folder beside this one when None.
        is_local: for this machine alone, in a file that is not committed.

    Returns:
        The remote, and whether it is new.

    Raises:
        OtherRemoteError: if another one is set.
        RemoteError: if the place cannot be one.
        OutputError: if the folder cannot be made.
    """
    with opened() as repo:
        there = current_remote(repo)
        if there is not None and (place is None or _same(place, there)):
            return there, False
        if there is not None and not is_local:
            message = f"the remote is {there.place} already"
            hint = f"`dvc remote remove {there.name}` forgets it; or `--local` to have another one on this machine."
            raise OtherRemoteError(message, hint=hint)
        place = place or f"../{Path.cwd().name}-{NAME}"
        if _is_address(place):
            with opened({"core": {"remote": NAME}, "remote": {NAME: {"url": place}}}) as tried:
                tried.cloud.get_remote(NAME)  # says which package is missing, if one is
        else:
            _make(Path(place))
        with repo.config.edit("local" if is_local else "repo") as edited:
            settings = cast(dict[str, Any], edited)
            settings["remote"][NAME] = {"url": place}
            settings["core"]["remote"] = NAME
        found = current_remote(repo)
        assert found is not None
        return found, True


def _is_address(place: str) -> bool:
    return re.match(r"\w+://", place) is not None


def _same(place: str, there: Remote) -> bool:
    return place == there.place or (there.folder is not None and Path(place).resolve() == there.folder.resolve())


def _make(folder: Path) -> None:
    if folder.resolve() == Path.cwd() or Path.cwd() in folder.resolve().parents:
        message = f"{folder} lies in the project, and would be lost with it"
        raise RemoteError(message, hint="Name a folder elsewhere, best on another disk.")
    check_folder(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / OBJECTS).is_dir():
        message = f"{folder} holds something else than a remote"
        raise RemoteError(message, hint="Name a new folder, or one that is empty.")
    folder.mkdir(exist_ok=True)


def check_remote(repo: Repo) -> Remote:
    """Returns the remote that is set and, as far as that can be seen at once, is there.

    Raises:
        NoRemoteError: if none is set.
        RemoteError: if its folder is not there.
    """
    remote = current_remote(repo)
    if remote is None:
        message = f"no remote is set in {DVC_FOLDER / 'config'}"
        hint = "`rulka remote init` makes one in a folder beside this one, `rulka remote init PLACE` elsewhere."
        raise NoRemoteError(message, hint=hint)
    if remote.folder is not None and not remote.folder.is_dir():
        message = f"the remote's folder {remote.folder} is not there"
        hint = "Mount its disk; or, where it lies elsewhere on this machine, `rulka remote init FOLDER --local`."
        raise RemoteError(message, hint=hint)
    return remote


# To the remote and back -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pushed:
    """What came of sending data to the remote.

    Attributes:
        place: where to.
        num_files: that were not there yet.
        num_commits: whose data were looked at, besides those in use now.
        remarks: what keeps a clone from having everything, and the command for each.
    """

    place: str
    num_files: int
    num_commits: int
    remarks: tuple[str, ...]


def push() -> Pushed:
    """Sends the data of this folder, and of every commit of branches and tags, to the remote.

    Raises:
        NoRemoteError: if none is set.
        RemoteError: if it cannot be reached.
    """
    with opened() as repo:
        remote = check_remote(repo)
        remarks = _not_under_dvc(repo)
    commits = recording_commits(("--branches", "--tags", "--remotes", "HEAD")) if has_git() else []
    with opened(remote.above_commits()) as repo:
        num_files = repo.push(revs=commits)
        gone = _gone(repo, commits)
    return Pushed(remote.place, num_files, len(commits), (*remarks, *gone, *_not_committed()))


def _gone(repo: Repo, commits: Sequence[str]) -> list[str]:
    """Names data of commits that are nowhere any more, the newest commit first."""
    kept, remote = repo.cache.local, repo.cloud.get_remote_odb()
    lacking: dict[str, list[str]] = {}
    seen: dict[str, bool] = {}
    for commit, outs in recorded_outs(repo, commits).items():
        for path, value in outs.items():
            if value not in seen:
                seen[value] = kept.exists(value) or remote.exists(value)
            if not seen[value]:
                lacking.setdefault(commit, []).append(path)
    lines = [f"of commit {commit[:8]}, neither here nor there: {', '.join(paths)}" for commit, paths in lacking.items()]
    rest = len(lines) - NUM_NAMED
    return lines if rest <= 0 else [*lines[:NUM_NAMED], f"nor are data of {rest} older commits"]


def _not_under_dvc(repo: Repo) -> list[str]:
    """Says which data DVC does not know, or not as they are."""
    remarks = []
    for folder, command in ADDED.items():
        file = folder.with_name(f"{folder.name}.dvc")
        if not file.is_file():
            held = [path for path in folder.rglob("*") if path.is_file() and path.name != ".gitkeep"]
            remarks += [f"{folder.as_posix()} is not under DVC: `{command}` puts it there"] if held else []
        elif folder.is_dir() and repo.status(targets=[file.as_posix()]):
            remarks.append(f"{folder.as_posix()} has changed since DVC saw it: `{command}`")
    return remarks


def _not_committed() -> list[str]:
    """Says what a clone cannot know of, because no commit holds it."""
    if not has_git():
        return ["no git repository is here, so that no clone can know of these data: `git init`"]
    files = [
        PARAMS_FILE,
        LOCK_FILE,
        DVC_FOLDER / "config",
        *(folder.with_name(f"{folder.name}.dvc") for folder in ADDED),
    ]
    open_files = uncommitted([file.as_posix() for file in files])
    if not open_files:
        return []
    names = " ".join(open_files)
    return [f"not committed: {names}. A clone has what commits name: `git add {names} && git commit`"]


@dataclass(frozen=True)
class Pulled:
    """What came of bringing data here.

    Attributes:
        num_files: that came from the remote; others were here.
        changed: outputs that are other ones now, or new.
        unknown: outputs of stages that have not been run in this version.
    """

    num_files: int
    changed: tuple[str, ...]
    unknown: tuple[str, ...]


def pull() -> Pulled:
    """Brings everything here that this version names, from DVC's cache or from the remote.

    Raises:
        NoRemoteError: if none is set.
        NoOutputsError: if this version names nothing.
        MissingDataError: if something is in neither.
        UnsavedDataError: if data here, which are nowhere else, would be lost.
    """
    with opened() as repo:
        remote = check_remote(repo)
        outs = [out for out in repo.index.outs if out.use_cache]
        known = [out for out in outs if out.hash_info]
        if not known:
            message = f"nothing is recorded in this version: {LOCK_FILE} names no outputs, and there are no .dvc files"
            hint = f"`rulka run` makes them; `git log --all -- {LOCK_FILE}` shows the versions that have some."
            raise NoOutputsError(message, hint=hint)
        try:
            result = repo.pull(targets=[out.fs_path for out in known], allow_missing=True)
        except DvcException as error:
            if not str(error).startswith(UNSAVED):
                raise
            files = ", ".join(Path(line).relative_to(Path.cwd()).as_posix() for line in str(error).splitlines()[1:])
            message = f"these files would be replaced, and no version holds them: {files}"
            hint = "Record them (`dvc commit`, `dvc add`), move them away, or give them up: `dvc checkout --force`."
            raise UnsavedDataError(message, hint=hint) from error
        missing = [str(out) for out in known if out.workspace_status()]
    if missing:
        message = f"{', '.join(missing)}: neither in DVC's cache here nor whole in {remote.place}"
        raise MissingDataError(message, hint="`rulka remote push` where they were made brings them there.")
    changed = tuple(sorted(path for what in ("added", "modified") for path in result[what]))
    return Pulled(result["stats"]["fetched"], changed, tuple(str(out) for out in outs if not out.hash_info))
