"""The stages of `dvc.yaml`, and the code that decides what each of them makes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from rulka.errors import UserError

GRAPH_FILE = Path("dvc.yaml")
CODE_FOLDERS = ("tasks", "rulka", "models")


def read_graph() -> dict[str, Any]:
    """Returns the stages of `dvc.yaml` by name, in the order of the file, which is an order to run them in.

    Raises:
        UserError: if there is none here.
    """
    try:
        text = GRAPH_FILE.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        message = f"there is no {GRAPH_FILE} in {Path.cwd()}"
        raise UserError(message, hint="Run this from the root of the project.") from error
    return yaml.safe_load(text)["stages"]


def code_files(stage: str) -> list[Path]:
    """Returns every file of code that `dvc.yaml` names for a stage, itself or by its folder, in a fixed order.

    `rulka/params/` is not among them: DVC tracks the values it reads.
    """
    named = [Path(path) for path in read_graph()[stage]["deps"] if path.split("/")[0] in CODE_FOLDERS]
    return sorted({file for path in named for file in (path.rglob("*.py") if path.is_dir() else [path])})


def hash_code(files: Iterable[Path]) -> str:
    """Returns the SHA-256 of names and contents of source files."""
    digest = sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
