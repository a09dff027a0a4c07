"""Making room: what DVC's cache holds and nothing needs any more; the promoted agents and what made them stay."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Literal

from dvc.repo import Repo
from dvc_data.hashfile.gc import gc as collect_objects
from dvc_data.hashfile.hash_info import HashInfo

from rulka.artifacts import WEIGHTS_FILE
from rulka.folders import AGENT, KEPT_AGENTS
from rulka.versions.dvc import explained, opened, outs_of, recorded_outs
from rulka.versions.git import git, has_git, recording_commits

Keep = Literal["commits", "promoted"]
"""Besides data in use: of every commit; or of tags, ends of branches, and commits that recorded a promoted agent."""
FOLDER_SUFFIX = ".dir"
"""How the hash of a folder ends; its file in the cache lists what is in it."""


@dataclass(frozen=True)
class Unused:
    """What nothing needs any more.

    Attributes:
        num_files: in DVC's cache.
        num_bytes: of them together.
        num_commits: whose data are kept, besides those in use.
        given_up: commits whose data, or a part, are among these files, newest first, each with what it says.
        is_removed: whether they are gone now.
    """

    num_files: int
    num_bytes: int
    num_commits: int
    given_up: tuple[str, ...]
    is_removed: bool = False


def collect(keep: Keep, *, remove: bool) -> Unused:
    """Finds what nothing needs any more in DVC's cache, and removes it where that is asked for; never in the remote.

    What lies in the folders `data/` and `runs/` is left alone: it is copies, or not under DVC.

    Args:
        keep: what is needed besides the data in use, here and in worktrees of this repository.
        remove: look and then remove; otherwise look only.

    Raises:
        DvcError: if what a commit says of its data cannot be read; nothing is removed then.
    """
    with opened() as repo, repo.lock:  # nobody adds anything between the looking and the removing
        marked = _marked()
        recorded = recorded_outs(repo, list(dict.fromkeys([*marked, *(recording_commits() if has_git() else [])])))
        kept = list(recorded) if keep == "commits" else [*marked, *_promoted(repo, recorded)]
        values = set(outs_of(repo).values()).union(*(recorded[commit].values() for commit in kept))
        for folder in _worktrees():
            with explained(), Repo(str(folder)) as other:
                values |= set(outs_of(other).values())
        needed = _with_content(repo, values)
        cache = repo.cache.local
        sizes = {value: _size(Path(cache.oid_to_path(value))) for value in cache.all() if value not in needed}
        given_up = [
            commit for commit, outs in recorded.items() if commit not in kept and set(outs.values()) & set(sizes)
        ]
        if remove and sizes:
            collect_objects(cache, [HashInfo(cache.hash_name, value) for value in needed])
    named = tuple(git("log", "-1", "--format=%h %s", commit) for commit in given_up)
    return Unused(len(sizes), sum(sizes.values()), len(set(kept)), named, is_removed=remove)


def _marked() -> list[str]:
    """Returns the commits that HEAD, a branch or a tag names; none without git or before the first commit."""
    if not has_git() or not git("rev-list", "--all", "--max-count=1"):
        return []
    names = git("for-each-ref", "--format=%(objectname)", "refs/heads", "refs/tags", "refs/remotes").splitlines()
    return list(dict.fromkeys(git("rev-parse", f"{name}^{{commit}}") for name in ("HEAD", *names)))


def _promoted(repo: Repo, recorded: dict[str, dict[str, str]]) -> list[str]:
    """Returns the commits that recorded an agent that was promoted, alone or as one of those that were compared."""
    weights = {
        md5(file.read_bytes(), usedforsecurity=False).hexdigest() for file in KEPT_AGENTS.glob(f"*/{WEIGHTS_FILE}")
    }
    agents = {commit: outs[AGENT.as_posix()] for commit, outs in recorded.items() if AGENT.as_posix() in outs}
    return [commit for commit, value in agents.items() if _with_content(repo, {value}) & weights]


def _with_content(repo: Repo, values: set[str]) -> set[str]:
    """Returns hashes of files and folders, and of the files in these folders as far as the cache has their lists."""
    found = set(values)
    for value in values:
        listing = Path(repo.cache.local.oid_to_path(value))
        if value.endswith(FOLDER_SUFFIX) and listing.is_file():
            found |= {entry["md5"] for entry in json.loads(listing.read_text(encoding="utf-8"))}
    return found


def _worktrees() -> list[Path]:
    """Returns the project's folder in each other worktree of this repository that is there."""
    if not has_git():
        return []
    inside, here = git("rev-parse", "--show-prefix"), Path.cwd().resolve()
    lines = git("worktree", "list", "--porcelain").splitlines()
    folders = [Path(line.removeprefix("worktree "), inside) for line in lines if line.startswith("worktree ")]
    return [folder for folder in folders if folder.resolve() != here and (folder / ".dvc").is_dir()]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
