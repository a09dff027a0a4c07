"""Checksums by which damage inside data is noticed: of every file, and of the JSON file that lists them.

SHA-256, of which a core hashes more than 1 GB a second, about as fast as a good disk reads. Files are hashed once where
they are opened, before anything is believed that they hold; what happens to a memory-mapped file later goes unseen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rulka.errors import UserError
from rulka.stored import ValueT, checked, plain_json

SEAL = "content_sha256"
"""Key under which a JSON file holds the checksum of everything else in it."""


def checksums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of files of a folder, in hexadecimal, by their names relative to it."""
    return {name: _checksum(folder / name) for name in names}


def find_damage(folder: Path, checksums: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Reads files of a folder and compares their checksums.

    Args:
        folder: where they lie.
        checksums: what `checksums_of` returned when they were written.
        names: of the files to read.

    Returns:
        What is wrong with the first that is missing, unreadable or changed, in words; None where all are as written.
    """
    for name in names:
        path = folder / name
        if name not in checksums:
            return f"{path.as_posix()} has no checksum"
        try:
            found = _checksum(path)
        except OSError as error:
            return f"{path.as_posix()} cannot be read: {error.strerror or error}"
        if found != checksums[name]:
            return f"{path.as_posix()} is damaged or was changed: its SHA-256 is not the one it was written with"
    return None


def write_sealed(path: Path, version: int, content: Mapping[str, Any]) -> None:
    """Writes a JSON object with the version of its schema and its own checksum in it."""
    text = json.dumps(sealed({"schema_version": version, **content}), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def read_sealed(
    path: Path, kind: str, version: int, form: type[ValueT], *, error: type[UserError], hint: str
) -> ValueT:
    """Reads what `write_sealed` wrote, without version and checksum.

    Args:
        path: of the file, which is the last of its folder to be written.
        kind: what the folder holds, for messages: `race`, `frame`.
        version: the one that is read here.
        form: of the rest.
        error: what is raised.
        hint: what to do about it.

    Raises:
        UserError: of the class of `error`, if it is missing, unreadable, damaged, or of another version.
    """
    folder = path.parent.as_posix()
    content = plain_json(path, f"{kind} dataset", error=error, hint=hint)
    if not isinstance(content, dict) or SEAL not in content:
        message = f"{folder} holds no {kind} dataset: {path.name} is of something else, or of a version without {SEAL}"
        raise error(message, hint=hint)
    found = content.get("schema_version", 0)
    if found != version:
        age = "newer" if isinstance(found, int) and found > version else "older"
        message = f"{folder} has {kind} schema {found}, {age} than the {version} that is read here"
        raise error(message, hint=hint)
    if content.get(SEAL) != _seal(content):
        message = f"{path.as_posix()} is damaged or was changed: its SHA-256 is not the {SEAL} in it"
        raise error(message, hint=hint)
    found = {name: value for name, value in content.items() if name not in ("schema_version", SEAL)}
    return checked(found, form, path.as_posix(), error, hint)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns plain JSON with its own checksum in it."""
    return {**content, SEAL: _seal(content)}


def _seal(content: Mapping[str, Any]) -> str:
    parts = {name: value for name, value in content.items() if name != SEAL}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
