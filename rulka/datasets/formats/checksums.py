"""Checksums that detect damaged data: one of every file, and one of the JSON file that lists them.

SHA-256: a core hashes more than 1 GB a second, about as fast as a good disk reads. Files are hashed once when they are
opened, before their content is used; later changes to a memory-mapped file go undetected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rulka.contracts.stored import ValueT, checked, plain_json
from rulka.machine.disk import check_readable
from rulka.machine.errors import UserError

SEAL = "content_sha256"
"""JSON key of the checksum over everything else in the file."""


def checksums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the hexadecimal SHA-256 of files in a folder, by relative name."""
    return {name: _checksum(folder / name) for name in names}


def refuse_damage(folder: Path, checksums: Mapping[str, str], names: Iterable[str], *, hint: str) -> None:
    """Verifies the checksums of files in a folder.

    Args:
        folder: the folder.
        checksums: result of `checksums_of` when the files were written.
        names: the files to verify.
        hint: remedy in the error message.

    Raises:
        UserError: about the first file that is missing, unreadable or changed.
    """
    for name in names:
        damage = _damage_of(folder / name, checksums.get(name))
        if damage:
            raise UserError(damage, hint=hint)


def _damage_of(path: Path, checksum: str | None) -> str:
    if checksum is None:
        return f"{path.as_posix()} has no checksum"
    try:
        found = _checksum(path)
    except OSError as error:
        return f"{path.as_posix()} cannot be read: {error.strerror or error}"
    damage = f"{path.as_posix()} is damaged or was changed: its SHA-256 is not the one it was written with"
    return "" if found == checksum else damage


def write_sealed(path: Path, version: int, content: Mapping[str, Any]) -> None:
    """Writes a JSON object with its schema version and its own checksum."""
    text = json.dumps(sealed({"schema_version": version, **content}), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def read_sealed(path: Path, kind: str, version: int, form: type[ValueT], *, hint: str) -> ValueT:
    """Reads and verifies a file from `write_sealed`; returns its content without version and checksum.

    Args:
        path: the file, which is the last one written to its folder.
        kind: kind of dataset, for messages: `race`, `frame`.
        version: the supported schema version.
        form: type of the content.
        hint: remedy, for messages.

    Raises:
        UserError: if it is missing, unreadable, damaged, or of another version.
    """
    folder = path.parent.as_posix()
    content = plain_json(path, f"{kind} dataset", hint=hint)
    if not isinstance(content, dict) or SEAL not in content:
        message = f"{folder} holds no {kind} dataset: {path.name} is of something else, or of a version without {SEAL}"
        raise UserError(message, hint=hint)
    found = content.get("schema_version", 0)
    if found != version:
        age = "newer" if isinstance(found, int) and found > version else "older"
        raise UserError(f"{folder} has {kind} schema {found}, {age} than the {version} that is read here", hint=hint)
    if content.get(SEAL) != _seal(content):
        raise UserError(f"{path.as_posix()} is damaged or was changed: its SHA-256 is not the {SEAL} in it", hint=hint)
    found = {name: value for name, value in content.items() if name not in ("schema_version", SEAL)}
    return checked(found, form, path.as_posix(), hint=hint)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content with its own checksum added, as plain JSON."""
    return {**content, SEAL: _seal(content)}


def _seal(content: Mapping[str, Any]) -> str:
    parts = {name: value for name, value in content.items() if name != SEAL}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with check_readable(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
