"""The stages of `dvc.yaml`, their records in `dvc.lock`, and what decides their results: parameters, code, data."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pathspec import GitIgnoreSpec

from rulka.machine.errors import UserError
from rulka.stages.folders import is_utf8, utf8_path

GRAPH_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
PARAMS_FILE = Path("params.yaml")
CODE_FOLDERS = ("tasks", "rulka", "models")
SECTIONS_SUFFIX = "params.py"
"""Name ending of every file that only defines sections of parameters."""
IGNORE_FILE = Path(".dvcignore")
MAIN_SECTION = "${train.algorithm}"
"""In a stage's `params`: the section of the trained algorithm, which DVC reads from `params.yaml`."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's if available, six times as fast: an experiment reads `dvc.yaml` once per cell."""
_GONE = "gone"
_NUM_NAMED = 3
"""Number of changes that a message names before it counts the rest."""


def read_graph(file: Path = GRAPH_FILE) -> dict[str, Any]:
    """Returns the stages of `dvc.yaml` by name, in the order of the file, in which they can run.

    `outs` of each are plain paths, without their options for DVC.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        message = f"there is no {file.name} in {file.absolute().parent}"
        raise UserError(message, hint="Run this from the root of the project.") from error
    try:
        stages: dict[str, Any] = yaml.load(text, _LOADER)["stages"]
        return {name: {**parts, "outs": _paths(parts.get("outs", ()))} for name, parts in stages.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        message = f"{file} is damaged: {error}"
        raise UserError(message, hint="Take it back from git; `dvc stage list` says where it is wrong.") from error


def sections_of_stage(entry: Mapping[str, Any], sections: Mapping[str, Any]) -> list[str]:
    """Names the sections of `params.yaml` that decide a stage's result.

    Args:
        entry: the stage's, from `read_graph`.
        sections: of `params.yaml`, of which `train` names the main algorithm; they may be invalid.
    """
    train = sections.get("train")
    main = str(train.get("algorithm")) if isinstance(train, Mapping) else ""
    return list(dict.fromkeys(main if name == MAIN_SECTION else name for name in entry.get("params", ())))


def _paths(outs: Iterable[str | dict[str, Any]]) -> list[str]:
    return [path for out in outs for path in ([out] if isinstance(out, str) else out)]


def stage_of_module(module: str) -> str | None:
    """Returns the stage that runs `python -m MODULE`; None if there is none, or no `dvc.yaml`."""
    if not GRAPH_FILE.exists():
        return None
    commands = {name: shlex.split(parts["cmd"]) for name, parts in read_graph().items()}
    return next((name for name, command in commands.items() if command[-2:] == ["-m", module]), None)


class LockFileError(UserError):
    """`dvc.lock` is damaged."""


def read_lock() -> dict[str, Any]:
    """Returns the entry of each stage in `dvc.lock`, by name; empty if DVC has recorded none.

    Raises:
        LockFileError: if the file is damaged.
    """
    try:
        lock = yaml.safe_load(LOCK_FILE.read_text(encoding="utf-8"))
        return {name: dict(entry) for name, entry in lock["stages"].items()} if lock else {}
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError) as error:
        message = f"{LOCK_FILE} is damaged: {error}"
        hint = "Take it back from git, or remove it: DVC then runs every stage again."
        raise LockFileError(message, hint=hint) from error


def bring_back(folder: Path) -> str:
    """Returns advice on restoring a folder that a `.dvc` file tracks; empty if none does."""
    tracked = f"{folder.as_posix()}.dvc"
    if not Path(tracked).exists():
        return ""
    return f"`dvc pull {tracked}` brings them, or `dvc checkout {tracked}` where DVC's cache has them"


def remake(stage: str) -> str:
    """Returns advice on a missing or damaged output of a stage; a fresh clone has no `dvc.lock` to bring it back by."""
    back = f"`dvc checkout --force {stage}` brings back what DVC has of it; " if LOCK_FILE.exists() else ""
    return f"{back}`dvc repro {stage}` makes it{' anew' if back else ''}."


def check_names(folder: Path) -> None:
    """Checks that DVC can read the path of a folder and the names in it.

    Raises:
        UserError: if a name is not UTF-8; DVC's own error tells neither the problem nor the place.
    """
    for path in (folder.absolute(), *folder.rglob("*")):
        if not is_utf8(path):
            raise UserError(f"the name of {utf8_path(path)} is not UTF-8, and DVC takes no other", hint="Rename it.")


def is_cached(out: Path) -> bool:
    """True if DVC's cache holds an output as `dvc.lock` records it, so that `dvc checkout` restores it."""
    try:
        outs = [each for entry in read_lock().values() for each in entry.get("outs", ())]
    except LockFileError:  # DVC cannot read it either, and restores nothing
        return False
    md5 = next((each.get("md5", "") for each in outs if out == Path(each["path"])), "")
    if not md5:
        return False
    return (cache_folder() / "files" / "md5" / md5[:2] / md5[2:]).exists()


def cache_folder() -> Path:
    """Returns the folder of DVC's cache, which may be on another disk; the current one where DVC does not work."""
    answer = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True, check=False)
    return Path(answer.stdout.strip())


def code_files(stage: str) -> list[Path]:
    """Returns every source file that decides a stage's result, in a fixed order.

    These are the files that `dvc.yaml` names, directly or by folder, except those that `.dvcignore` lists, as for DVC,
    and those that only define defaults of parameters: callers that hash code also hash parameters with their defaults.
    """
    files = _files(_deps(read_graph()[stage], is_code=True))
    return [file for file in files if not file.name.endswith(SECTIONS_SUFFIX)]


def hash_code(files: Iterable[Path], root: Path = Path()) -> str:
    """Returns the SHA-256 of source files: their contents, and their names relative to a folder."""
    digest = sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _deps(entry: Mapping[str, Any], *, is_code: bool) -> list[Path]:
    return [Path(path) for path in entry.get("deps", ()) if (path.split("/")[0] in CODE_FOLDERS) == is_code]


def ignored_by_dvc() -> GitIgnoreSpec:
    """Returns the patterns of files that DVC ignores in `deps`; `match_file` takes a path from the root."""
    text = IGNORE_FILE.read_text(encoding="utf-8") if IGNORE_FILE.is_file() else ""
    return GitIgnoreSpec.from_lines(text.splitlines())


def _files(paths: Iterable[Path]) -> list[Path]:
    """Returns all files that DVC reads, with folders expanded, in a fixed order."""
    ignored = ignored_by_dvc()
    files: set[Path] = set()
    for path in paths:
        found = (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else (path,)
        files |= {file for file in found if not ignored.match_file(file)}
    return sorted(files)


# Inputs of a result ---------------------------------------------------------------------------------------------------


def note_inputs(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Records everything that decides the result of a stage now, by its name in messages.

    Sections of `params.yaml` by value, code by its SHA-256, data by size, modification time and inode of each file:
    reading contents would take too long.

    Args:
        entry: the stage's, from `read_graph`. DVC reads it once, before the stage, so `dvc.yaml` may change later.
    """
    sections = _sections()
    noted = {f"{name} in {PARAMS_FILE}": sections.get(name) for name in sections_of_stage(entry, sections)}
    noted |= {file.as_posix(): _hash(file) for file in _files(_deps(entry, is_code=True))}
    return noted | {file.as_posix(): _mark(file) for file in _files(_deps(entry, is_code=False))}


def changes_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names the differences between two results of `note_inputs`, the first few by name; empty if none."""
    names = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    rest = len(names) - _NUM_NAMED
    return names if rest <= 1 else [*names[:_NUM_NAMED], f"{rest} more"]


def _sections() -> dict[str, Any]:
    """Returns `params.yaml` unchecked, since `rulka.params` takes a second to import; empty if it cannot be read.

    It may be half written at the moment: that is a change, and no reason to lose finished work.
    """
    try:
        sections = yaml.safe_load(PARAMS_FILE.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return sections if isinstance(sections, dict) else {}


def _hash(file: Path) -> str:
    try:
        return hash_code([file])
    except OSError:  # removed, perhaps just now: a change as well
        return _GONE


def _mark(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:
        return _GONE
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
