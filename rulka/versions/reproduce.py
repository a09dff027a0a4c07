"""An old agent again, with the data, code and parameters that made it, in a folder of its own.

The folder is a worktree of git, whose DVC shares the cache and the remote of this one, whatever that revision said of
them; what is worked on here stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import yaml
from dvc.output import Output
from dvc.repo import Repo

from rulka.artifacts import META_FILE, WEIGHTS_FILE, ArtifactError, check_contracts, read_meta
from rulka.errors import UserError
from rulka.folders import AGENT, AGENT_INIT, TRACKS
from rulka.graph import LOCK_FILE
from rulka.outputs import OutputError, check_folder
from rulka.provenance import hash_path, library_versions
from rulka.registry.kept import HASH_DIGITS
from rulka.versions.dvc import DVC_FOLDER, NoProjectError, opened
from rulka.versions.git import GitError, check_git, git
from rulka.versions.remote import MissingDataError, NoOutputsError, Remote, check_remote, current_remote

INPUTS = {"agent_init": f"{AGENT_INIT.as_posix()}/{META_FILE}", "track": f"{TRACKS.as_posix()}/*.npz"}
"""Where the files lie whose hashes an agent notes, by the name that it gives them."""
SHORT = 8
"""Digits of a commit in names and messages."""


class UnknownRevisionError(UserError):
    """Git knows no such revision."""


class DirtyTreeError(UserError):
    """A folder was changed, and is to be left as it is."""


@dataclass(frozen=True)
class Check:
    """One thing that was compared.

    Attributes:
        name: what.
        is_fine: whether it is as it was then.
        text: what was found.
    """

    name: str
    is_fine: bool
    text: str


@dataclass(frozen=True)
class Reproduced:
    """What came back.

    Attributes:
        folder: where it is.
        commit: the revision, whole.
        subject: what its commit says.
        outputs: paths that came back.
        checks: what was compared with what was noted then.
    """

    folder: str
    commit: str
    subject: str
    outputs: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def is_same(self) -> bool:
        """Whether everything is as it was then."""
        return all(check.is_fine for check in self.checks)


def reproduce(revision: str, out: Path | None, say: Callable[[str], None]) -> Reproduced:
    """Brings the agent of a revision back with its data, and compares everything with what was noted then.

    Args:
        revision: a commit, branch or tag.
        out: folder, new, empty, or one that this made before; beside the project and named after both when None.
        say: gets a line before what takes long.

    Raises:
        NoGitError: outside a repository.
        UnknownRevisionError: if there is no such revision.
        NoOutputsError: if no agent was recorded in it.
        DirtyTreeError: if the folder is there and was changed.
        OutputError: if the folder is taken, or cannot be made.
        MissingDataError: if the agent is neither in DVC's cache here nor in the remote.
        RemoteError: if the remote is needed and is not there.
    """
    check_git()
    commit = _commit_of(revision)
    _check_recorded(revision, commit)
    folder = out or Path("..") / f"{Path.cwd().name}-{commit[:SHORT]}"
    with opened() as repo:
        cache, remote = Path(str(repo.cache.local_cache_dir)), current_remote(repo)
    is_new = _make_worktree(folder, commit)
    project = folder / git("rev-parse", "--show-prefix")
    try:
        if not (project / DVC_FOLDER).is_dir():
            message = f"revision {commit[:SHORT]} has no {DVC_FOLDER}"
            raise NoProjectError(message, hint="It is from before the project was under DVC.")
        say(f"bringing back the data of {commit[:SHORT]}")
        with chdir(project):
            _share(cache, remote)
            with opened() as repo:
                came, lacking = _bring(repo)
                if AGENT.as_posix() not in came:
                    _raise_missing(commit, lacking, remote)
                say("comparing everything with what was noted then")
                checks = (_outputs_check(came, lacking), *_agent_checks(), _stages_check(repo))
    except BaseException:
        if is_new:
            git("worktree", "remove", "--force", str(folder))
        raise
    subject = git("log", "-1", "--format=%s", commit)
    return Reproduced(folder.as_posix(), commit, subject, tuple(came), checks)


# The revision ---------------------------------------------------------------------------------------------------------


def _commit_of(revision: str) -> str:
    try:
        return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitError as error:
        message = f"there is no revision {revision!r}"
        hint = (
            f"`git log --all --oneline -- {LOCK_FILE}` lists those that recorded something; `git fetch` gets others'."
        )
        raise UnknownRevisionError(message, hint=hint) from error


def _check_recorded(revision: str, commit: str) -> None:
    """Refuses a revision without an agent, naming some that have recorded something."""
    try:
        lock = yaml.safe_load(git("show", f"{commit}:./{LOCK_FILE}")) or {}
    except GitError:
        lock = {}
    except yaml.YAMLError as error:
        message = f"{LOCK_FILE} of revision {revision} is damaged: {error}"
        raise NoOutputsError(message, hint=_others()) from error
    stages = lock.get("stages", {})
    outs = [out["path"] for entry in stages.values() for out in entry.get("outs", ())]
    if not outs:
        message = f"revision {revision} ({commit[:SHORT]}) has no outputs: {LOCK_FILE} was not committed in it"
        raise NoOutputsError(message, hint=_others())
    if AGENT.as_posix() not in outs:
        message = f"revision {revision} ({commit[:SHORT]}) has no agent, only {', '.join(sorted(outs))}"
        raise NoOutputsError(message, hint=_others())


def _others() -> str:
    lines = git("log", "--all", "-5", "--format=%h %s", "--", LOCK_FILE.as_posix()).splitlines()
    if not lines:
        return f"No commit has any: commit {LOCK_FILE} beside params.yaml whenever a result is worth keeping."
    return "These recorded something:\n" + "\n".join(f"    {line}" for line in lines)


# The folder -----------------------------------------------------------------------------------------------------------


def _make_worktree(folder: Path, commit: str) -> bool:
    """Makes the folder with the files of a commit; returns whether it is new."""
    git("worktree", "prune")  # forgets those whose folders were removed
    if folder.is_dir() and any(folder.iterdir()):
        if not _is_worktree(folder, commit):
            message = f"{folder} holds something else"
            raise OutputError(message, hint="Name another folder with --out.")
        if changed := git("status", "--porcelain", folder=folder):
            message = f"{folder} was changed: {', '.join(line[3:] for line in changed.splitlines())}"
            hint = f"`git worktree remove --force {folder}` gives it up; or name another folder with --out."
            raise DirtyTreeError(message, hint=hint)
        return False
    check_folder(folder)
    git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    return True


def _is_worktree(folder: Path, commit: str) -> bool:
    try:
        top, head = (git("rev-parse", what, folder=folder) for what in ("--show-toplevel", "HEAD"))
    except GitError:
        return False
    return (folder / ".git").is_file() and Path(top) == folder.resolve() and head == commit


def _share(cache: Path, remote: Remote | None) -> None:
    """Lets DVC in the current folder use the cache and the remote of the project that it comes from."""
    with opened() as repo, repo.config.edit("local") as edited:
        settings = cast(dict[str, Any], edited)
        settings["cache"]["dir"] = str(cache)
        if remote is not None:
            settings["remote"][remote.name] = {**remote.settings, "url": remote.place}
            settings["core"]["remote"] = remote.name


def _bring(repo: Repo) -> tuple[list[str], list[str]]:
    """Returns which outputs came back, and which did not; from the cache, and from the remote what is not there."""
    outs = [out for out in repo.index.outs if out.use_cache and out.hash_info]
    targets = [out.fs_path for out in outs]
    repo.checkout(targets=targets, allow_missing=True, force=True)
    if any(map(_is_lacking, outs)) and current_remote(repo) is not None:
        check_remote(repo)
        repo.pull(targets=targets, allow_missing=True, force=True)
    paths = {repo.fs.relpath(out.fs_path, repo.root_dir): _is_lacking(out) for out in outs}
    return [path for path, lacks in paths.items() if not lacks], [path for path, lacks in paths.items() if lacks]


def _is_lacking(out: Output) -> bool:
    return bool(out.workspace_status())


def _raise_missing(commit: str, lacking: list[str], remote: Remote | None) -> None:
    where = f"nor whole in {remote.place}" if remote is not None else "and no remote is set"
    message = f"of revision {commit[:SHORT]}, {', '.join(lacking)}: not in DVC's cache here, {where}"
    hint = "`rulka remote push` where the agent was trained; here `rulka remote init PLACE` with the same place."
    raise MissingDataError(message, hint=hint)


# What was noted then --------------------------------------------------------------------------------------------------


def _outputs_check(came: list[str], lacking: list[str]) -> Check:
    if lacking:
        return Check("outputs", False, f"{', '.join(lacking)}: neither in DVC's cache nor in the remote")
    return Check("outputs", True, f"{', '.join(came)} are those that {LOCK_FILE} names")


def _agent_checks() -> list[Check]:
    """Compares the agent in the current folder with its own notes; what its format is does not matter."""
    try:
        meta = json.loads((AGENT / META_FILE).read_text(encoding="utf-8"))
        noted, found = meta["weights_sha256"], sha256((AGENT / WEIGHTS_FILE).read_bytes()).hexdigest()
        origin = meta["provenance"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [Check("agent", False, f"{AGENT.as_posix()} is no whole agent: {error!r}")]
    name = f"{meta.get('config', {}).get('algorithm', 'agent')}-{noted[:HASH_DIGITS]}"
    said = f"{name}: its weights have the SHA-256 that it notes, {noted}"
    differ = f"{name}: its weights have the SHA-256 {found}, and it notes {noted}"
    return [
        Check("agent", found == noted, said if found == noted else differ),
        _data_check(origin.get("inputs_sha256", {})),
        _libraries_check(origin.get("versions", {})),
        _contract_check(),
    ]


def _data_check(noted: dict[str, str]) -> Check:
    known = {name: INPUTS[name] for name in noted if name in INPUTS}
    files = {name: sorted(Path().glob(pattern)) for name, pattern in known.items()}
    differing = [name for name, found in files.items() if noted[name] not in map(hash_path, found)]
    if differing:
        return Check("data", False, f"{', '.join(differing)}: not what the agent was trained from")
    if not known:
        return Check("data", True, "the agent notes no hashes of what it was trained from")
    return Check("data", True, f"{', '.join(known)}: by their hashes what the agent was trained from")


def _libraries_check(noted: dict[str, str | None]) -> Check:
    """Other versions of libraries are no fault of what came back."""
    here = library_versions()
    other = [f"{name} {noted[name]}, here {here[name]}" for name in noted if name in here and noted[name] != here[name]]
    return Check("libraries", True, f"then {'; then '.join(other)}" if other else "the same versions as then")


def _contract_check() -> Check:
    """Says whether the code that runs now can race the agent; that of its own revision can in any case."""
    try:
        check_contracts(AGENT, read_meta(AGENT, kind="agent"))
    except ArtifactError as error:
        return Check("contract", True, f"another one than that of the newer code: {error}")
    return Check("contract", True, "that of the newer code too: `rulka compare` takes its folder")


def _stages_check(repo: Repo) -> Check:
    """Says whether code, parameters and data of the revision are those that made what it recorded."""
    changed = repo.status()
    if not changed:
        return Check("stages", True, f"code, parameters and data of the revision are those that {LOCK_FILE} names")
    lines = [f"{stage} ({', '.join(_reasons(entries))})" for stage, entries in changed.items()]
    return Check("stages", False, f"the revision differs from what made its outputs: {'; '.join(lines)}")


def _reasons(entries: list[Any]) -> list[str]:
    """Returns the paths in an entry of `dvc status`: {"changed deps": {path: how}}, or a word."""
    found: list[str] = []
    for entry in entries:
        for what, paths in entry.items() if isinstance(entry, dict) else ():
            found += [str(path) for path in paths] if isinstance(paths, dict) else [f"{what}: {paths}"]
        if not isinstance(entry, dict):
            found.append(str(entry))
    return found
