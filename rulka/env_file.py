"""Facts of the machine that stand in the file `.env`, where they are not in the environment."""

from __future__ import annotations

from pathlib import Path

from rulka.errors import UserError

ENV_FILE = Path(".env")
_QUOTES = "'\""


class EnvFileError(UserError):
    """A line of `.env` cannot be read; the message says which."""


def read_env_file(file: Path, prefix: str) -> dict[str, str]:
    """Reads the lines `NAME=value` of a file whose names begin in a certain way; those of others are skipped.

    A value may stand in quotes; nothing in it is expanded. Empty lines and those that begin with # are skipped.

    Args:
        file: need not exist.
        prefix: with which the names begin.

    Raises:
        EnvFileError: at a line that is none of these, or a name that comes twice.
    """
    values: dict[str, str] = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier() or name in values:
            what = "comes twice" if name in values else "is not NAME=value"
            message = f"{file.as_posix()}, line {number}: {name[:60]!r} {what}"
            raise EnvFileError(message)
        if len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
            value = value[1:-1]
        if name.startswith(prefix):
            values[name] = value
    return values
