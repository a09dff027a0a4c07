"""The one way in which JSON is read and validated: an error names the file, the key and what it holds."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from rulka.errors import UserError
from rulka.params.problems import problems_of

ValueT = TypeVar("ValueT")
_adapter = cache(TypeAdapter)


def plain_json(path: Path, what: str, *, error: type[UserError], hint: str) -> Any:
    """Reads the JSON file that is the last of its folder to be written.

    Args:
        path: of the file.
        what: the folder holds, for the message where the file is missing.
        error: what is raised.
        hint: what to do about it.

    Raises:
        UserError: of the class of `error`, if the file is missing or no JSON.
    """
    try:
        return from_json(path.read_bytes())  # unlike `json`, it refuses what nests too deeply
    except FileNotFoundError as problem:
        folder, is_there = path.parent.as_posix(), path.parent.is_dir()
        message = f"{folder} holds no complete {what}: {path.name if is_there else 'the folder'} is missing"
        raise error(message, hint=hint) from problem
    except (OSError, ValueError) as problem:
        message = f"{path.as_posix()} cannot be read: {problem}"
        raise error(message, hint=hint) from problem


def checked(value: Any, kind: type[ValueT], where: str, error: type[UserError] = UserError, hint: str = "") -> ValueT:
    """Returns what was read from a file as values of a type.

    Args:
        value: what was read; bytes are JSON.
        kind: what it must be.
        where: the file, for the message.
        error: what is raised.
        hint: what to do about it.

    Raises:
        UserError: of the class of `error`, if a value is of another type, or the bytes are no JSON.
    """
    adapter = _adapter(kind)
    try:
        return adapter.validate_json(value) if isinstance(value, bytes) else adapter.validate_python(value)
    except ValidationError as problem:
        message = f"{where} is damaged: {'; '.join(problems_of(problem, BaseModel))}"
        raise error(message, hint=hint) from problem
