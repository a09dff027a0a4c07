"""Provenance of an output: hashes of parameters, inputs and code, the commit, and the library versions."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rulka.stages.graph import CODE_FOLDERS, code_files, hash_code

LIBRARIES = ("rulka", "torch", "numpy", "numba", "safetensors", "transformers")
SHARED_CODE = ("rulka", "models")
SHOWN_DIGITS = 16
_LOGGER = logging.getLogger(__name__)


def provenance(stage: str | None, sections: Mapping[str, BaseModel], inputs: Mapping[str, Path]) -> dict[str, Any]:
    """Returns the provenance of an output.

    Args:
        stage: name of the stage in `dvc.yaml` that writes it; None if there is none, and then all code is hashed.
        sections: the parameter sections used, by name.
        inputs: the files and folders read, by name.

    Returns:
        Plain JSON: `parameters`, `params_sha256`, `inputs_sha256`, `code_sha256` (of the stage's code), `commit`,
        `is_dirty` (see `is_dirty`; both None outside a repository) and `versions`. There is no timestamp, so that a
        reproduced output is identical.
    """
    parameters = {name: section.model_dump(mode="json") for name, section in sections.items()}
    return {
        "parameters": parameters,
        "params_sha256": hash_json(parameters),
        "inputs_sha256": {name: hash_path(path) for name, path in inputs.items()},
        "code_sha256": _hash_package() if stage is None else hash_code(code_files(stage)),
        "commit": current_commit(),
        "is_dirty": is_dirty(),
        "versions": library_versions(),
    }


def fingerprint(origin: Mapping[str, Any]) -> str:
    """Returns the hash of everything that determines an output: parameters, inputs and code of its provenance."""
    return hash_json([origin[name] for name in ("params_sha256", "inputs_sha256", "code_sha256")])


def library_versions() -> dict[str, str | None]:
    """Returns the versions of Python and of the libraries that affect results; None for those not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES}


def code_version() -> dict[str, str]:
    """Returns the versions that must match for two processes to exchange objects, independent of the install path.

    `code` is a hash of all of Rulka's own files. The others are the versions of `rulka`, Python, torch and NumPy.
    """
    versions = {name: _version(name) or "none" for name in ("rulka", "torch", "numpy")}
    return {"code": _hash_package()[:SHOWN_DIGITS], "python": platform.python_version(), **versions}


def _hash_package() -> str:
    """Returns the SHA-256 of all of Rulka's own files, independent of the install path."""
    root = Path(__file__).parents[2]
    return hash_code([file for package in SHARED_CODE for file in sorted((root / package).rglob("*.py"))], root)


def hash_json(value: object) -> str:
    """Returns the SHA-256 of a value's JSON form, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_path(path: Path) -> str:
    """Returns the SHA-256 of a file, or of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def current_commit() -> str | None:
    """Returns the commit of the working folder, or None if there is none or git fails."""
    answer = _git("rev-parse", "--quiet", "--verify", "HEAD")
    return answer.strip() if answer is not None else None


def is_dirty() -> bool | None:
    """Returns whether the working folder differs from its commit; None if there is no git or git fails.

    Untracked files count only in code folders: others cannot affect a result. `dvc.lock` never counts, because every
    stage changes it.
    """
    tracked = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
    unknown_code = _git("ls-files", "--others", "--exclude-standard", "--", *CODE_FOLDERS)
    return None if tracked is None or unknown_code is None else bool(tracked or unknown_code)


def _git(*arguments: str) -> str | None:
    """Returns git's output; None if it fails. Logs the failure unless there is no git, no repository or no commit."""
    command, words = ["git", *arguments], os.environ | {"LC_ALL": "C"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, env=words).stdout
    except FileNotFoundError:
        return None
    except (OSError, subprocess.SubprocessError) as error:
        problem = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
    # Another user's repository, or a wrong GIT_DIR, gives another message; a damaged repository gives the same one.
    if problem and ("not a git repository (or any" not in problem or Path(".git").exists()):
        _LOGGER.warning("the commit is not noted: `git %s` says %s", arguments[0], problem)
    return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
