"""Reading and validating JSON: errors name the file, the key and its value."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from rulka.contracts.problems import problems_of
from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError

ValueT = TypeVar("ValueT")
LARGEST = 1e100
"""Limit of floats from files: sums, squares and roundings of such stay finite, so that they can be drawn and sent."""
StoredFloat = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
_adapter = cache(TypeAdapter)


def plain_json(path: Path, what: str, *, error: type[UserError] = UserError, hint: str) -> Any:
    """Reads the JSON file that is written last into its folder and so marks it complete.

    Args:
        path: of the file.
        what: content of the folder, for the message if the file is missing.
        error: class of the error.
        hint: hint of the error.

    Raises:
        UserError: of class `error`, if the file is missing or not JSON.
    """
    try:
        return from_json(check_readable(path).read_bytes())  # unlike `json`, rejects input that nests too deeply
    except FileNotFoundError as problem:
        folder, is_there = path.parent.as_posix(), path.parent.is_dir()
        message = f"{folder} holds no complete {what}: {path.name if is_there else 'the folder'} is missing"
        raise error(message, hint=hint) from problem
    except (OSError, ValueError) as problem:
        raise error(f"{path.as_posix()} cannot be read: {problem}", hint=hint) from problem


def checked(value: Any, kind: type[ValueT], where: str, error: type[UserError] = UserError, hint: str = "") -> ValueT:
    """Validates data read from a file and returns it as the given type.

    Args:
        value: the data; bytes are parsed as JSON.
        kind: the expected type.
        where: the file, for the message.
        error: class of the error.
        hint: hint of the error.

    Raises:
        UserError: of class `error`, if a value has another type or the bytes are not JSON.
    """
    adapter = _adapter(kind)
    try:
        return adapter.validate_json(value) if isinstance(value, bytes) else adapter.validate_python(value)
    except ValidationError as problem:
        raise error(f"{where} is damaged: {'; '.join(problems_of(problem, BaseModel))}", hint=hint) from problem
