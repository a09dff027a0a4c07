"""Facts of the machine that stand in the file `.env`, where they are not in the environment."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from rulka.errors import UserError

ENV_FILE = Path(".env")


class EnvFileError(UserError):
    """A line of `.env` cannot be read; the message says which."""


def read_env_file(file: Path, prefix: str) -> dict[str, str]:
    """Reads the lines `NAME=value` of a file whose names begin in a certain way, as Prefect does: by python-dotenv.

    Args:
        file: need not exist.
        prefix: with which the names begin.

    Raises:
        EnvFileError: at a line that cannot be read, or a name that comes twice.
    """
    values: dict[str, str] = {}
    for found in parse_stream(StringIO(file.read_text(encoding="utf-8") if file.is_file() else "")):
        if found.error or (found.key and (found.value is None or found.key in values)):
            what = "comes twice" if found.key in values else "is not NAME=value"
            message = f"{file.as_posix()}, line {found.original.line}: {found.original.string.strip()[:60]!r} {what}"
            raise EnvFileError(message)
        if found.key and found.value is not None:
            values[found.key] = found.value
    return {name: value for name, value in values.items() if name.startswith(prefix)}
