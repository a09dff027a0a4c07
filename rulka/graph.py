"""The stages of `dvc.yaml`, what DVC remembers of them, and what decides their results: parameters, code, data."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from pathspec import GitIgnoreSpec

from rulka.errors import UserError
from rulka.folders import utf8_path

GRAPH_FILE = Path("dvc.yaml")
LOCK_FILE = Path("dvc.lock")
PARAMS_FILE = Path("params.yaml")
CODE_FOLDERS = ("tasks", "rulka", "models")
SECTIONS_SUFFIX = "params.py"
"""Ends the name of every file that holds nothing but sections of parameters."""
IGNORE_FILE = Path(".dvcignore")
MAIN_SECTION = "${train.algorithm}"
"""Among `params` of a stage: the section of the algorithm that is trained; DVC takes its name from `params.yaml`."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of libyaml where that is there, six times as fast: an experiment reads `dvc.yaml` once for each of its cells."""
_GONE = "gone"
_NUM_NAMED = 3
"""Of how many changes a message names before it counts."""


def read_graph(file: Path = GRAPH_FILE) -> dict[str, Any]:
    """Returns the stages of `dvc.yaml` by name, in the order of the file, which is an order to run them in.

    `outs` of each are plain paths, without the options that DVC reads beside them.

    Raises:
        UserError: if there is none here.
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
        entry: what `read_graph` says of the stage.
        sections: of `params.yaml`, of which `train` names the main algorithm; they need not be right.
    """
    train = sections.get("train")
    main = str(train.get("algorithm")) if isinstance(train, Mapping) else ""
    return list(dict.fromkeys(main if name == MAIN_SECTION else name for name in entry.get("params", ())))


def _paths(outs: Iterable[str | dict[str, Any]]) -> list[str]:
    return [path for out in outs for path in ([out] if isinstance(out, str) else out)]


def stage_of_module(module: str) -> str | None:
    """Returns the stage that runs a module as `python -m MODULE`; None where there is none, or no `dvc.yaml`."""
    if not GRAPH_FILE.exists():
        return None
    commands = {name: shlex.split(parts["cmd"]) for name, parts in read_graph().items()}
    return next((name for name, command in commands.items() if command[-2:] == ["-m", module]), None)


class LockFileError(UserError):
    """`dvc.lock` is damaged."""


def read_lock() -> dict[str, Any]:
    """Returns what `dvc.lock` says of each stage that DVC has recorded, by name; empty where it has recorded none.

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
    """Returns how to bring back a folder that DVC tracks by a file beside it; empty where it tracks none."""
    tracked = f"{folder.as_posix()}.dvc"
    if not Path(tracked).exists():
        return ""
    return f"`dvc pull {tracked}` brings them, or `dvc checkout {tracked}` where DVC's cache has them"


def check_names(folder: Path) -> None:
    """Makes sure that DVC can read a folder.

    Raises:
        UserError: if the name of something in it is not UTF-8, of which DVC says neither what nor where it is.
    """
    for path in folder.rglob("*"):
        if str(path).encode(errors="ignore") != os.fsencode(path):
            message = f"the name of {utf8_path(path)} is not UTF-8, and DVC takes no other"
            raise UserError(message, hint="Rename it.")


def is_cached(out: Path) -> bool:
    """Whether DVC's cache holds what `dvc.lock` says of an output, so that `dvc checkout` brings it back."""
    try:
        outs = [each for entry in read_lock().values() for each in entry.get("outs", ())]
    except LockFileError:  # DVC cannot read it either, and brings nothing back
        return False
    md5 = next((each.get("md5", "") for each in outs if out == Path(each["path"])), "")
    if not md5:
        return False
    answer = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True, check=False)
    return Path(answer.stdout.strip(), "files", "md5", md5[:2], md5[2:]).exists()


def code_files(stage: str) -> list[Path]:
    """Returns every file of code that decides a stage's result, in a fixed order.

    They are those that `dvc.yaml` names, itself or by their folder, less what `.dvcignore` lists, as for DVC, and less
    what only says defaults of parameters: whoever hashes code hashes parameters with their defaults beside it.
    """
    files = _files(_deps(read_graph()[stage], is_code=True))
    return [file for file in files if not file.name.endswith(SECTIONS_SUFFIX)]


def hash_code(files: Iterable[Path], root: Path = Path()) -> str:
    """Returns the SHA-256 of the contents of source files, and of their names as seen from a folder."""
    digest = sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _deps(entry: Mapping[str, Any], *, is_code: bool) -> list[Path]:
    return [Path(path) for path in entry.get("deps", ()) if (path.split("/")[0] in CODE_FOLDERS) == is_code]


def ignored_by_dvc() -> GitIgnoreSpec:
    """Returns which files DVC leaves out of folders among `deps`; `match_file` of it takes a path from the root."""
    text = IGNORE_FILE.read_text(encoding="utf-8") if IGNORE_FILE.is_file() else ""
    return GitIgnoreSpec.from_lines(text.splitlines())


def _files(paths: Iterable[Path]) -> list[Path]:
    """Returns all files, those below folders included, that DVC looks at, in a fixed order."""
    ignored = ignored_by_dvc()
    files: set[Path] = set()
    for path in paths:
        found = (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else (path,)
        files |= {file for file in found if not ignored.match_file(file)}
    return sorted(files)


# What decides a result ------------------------------------------------------------------------------------------------


def note_inputs(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what decides the result of a stage now, by what messages call it.

    Sections of `params.yaml` by value, code by its SHA-256, data by size, time of change and inode of each file:
    contents would take too long to read.

    Args:
        entry: what `read_graph` says of the stage. DVC reads it once, before the stage; so `dvc.yaml` may change.
    """
    sections = _sections()
    noted = {f"{name} in {PARAMS_FILE}": sections.get(name) for name in sections_of_stage(entry, sections)}
    noted |= {file.as_posix(): _hash(file) for file in _files(_deps(entry, is_code=True))}
    return noted | {file.as_posix(): _mark(file) for file in _files(_deps(entry, is_code=False))}


def changes_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names what is different between two answers of `note_inputs`, the first few by name; empty when nothing is."""
    names = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
    rest = len(names) - _NUM_NAMED
    return names if rest <= 1 else [*names[:_NUM_NAMED], f"{rest} more"]


def _sections() -> dict[str, Any]:
    """Returns `params.yaml` unchecked, as `rulka.params` takes a second to import; empty where it cannot be read.

    It may be half written just now: a change, and no reason to lose what is finished.
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
