"""Reading and validating JSON and files of arrays: errors name the file, the key and its value."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
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
# Raised by NumPy and zipfile for other kinds of files (TypeError for a bare .npy) or corrupt bytes.
# RuntimeError is for encrypted ones, and for ways of packing that zipfile does not know.
_NO_ARRAYS = (ValueError, TypeError, MemoryError, EOFError, BadZipFile, zlib.error, RuntimeError, TokenError)


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


def read_arrays(
    path: Path, what: str, forms: Mapping[str, tuple[str, int]], most_bytes: int, *, error: type[UserError], hint: str
) -> dict[str, NDArray]:
    """Reads an `.npz` file of plain arrays, compressed or not, by name. Nothing is unpickled.

    Args:
        path: of the file.
        what: kind of file, for messages.
        forms: type and number of dimensions of arrays, by name; arrays without an entry are not checked.
        most_bytes: largest size of all arrays together; larger files are refused before they are unpacked.
        error: class of the error.
        hint: hint of the error.

    Raises:
        UserError: of class `error`, if the file is missing, of another kind, too large or damaged, or an array has
            another type or number of dimensions.
    """
    try:
        with np.load(check_readable(path), allow_pickle=False) as stored:
            if sum(member.file_size for member in stored.zip.infolist()) > most_bytes:
                raise ValueError(f"larger than any {what}")
            fields = {name: stored[name] for name in stored.files}
    except OSError as problem:
        raise error(f"{path} is not a readable {what}: {problem.strerror or problem}") from problem
    except _NO_ARRAYS as problem:
        message = f"{path} is not a readable {what}: another kind of file, or damaged"
        raise error(message, hint=hint) from problem
    for name, values in fields.items():
        kind, num_axes = forms.get(name, (values.dtype, values.ndim))
        if not np.can_cast(values.dtype, kind) or values.ndim != num_axes:
            message = f"{path} is not a readable {what}: its {name} is {values.dtype} of shape {values.shape}"
            raise error(message, hint=hint)
    return fields
