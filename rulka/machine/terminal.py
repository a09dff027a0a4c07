r"""All output to terminals: control characters in the text are escaped.

Names of files, players and tracks come from untrusted sources. An escape such as `\u001b` is harmless, in JSON as well
as in a line.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import TextIO
from unicodedata import category

FIRST_S, AGAIN_S = 3.0, 10.0
"""Silence before the first and before each further message that the process is still at work."""
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories to escape: control and format characters, surrogates, line and paragraph separators."""


def shown(text: str) -> str:
    """Returns text with control characters escaped; line feeds and tabs stay."""
    return "".join(
        json.dumps(char)[1:-1] if category(char) in _OBEYED and char not in "\n\t" else char for char in text
    )


def say(line: str, stream: TextIO | None = None) -> None:
    """Writes a line and flushes it, by default to standard output."""
    note_word()
    out = stream or sys.stdout
    out.write(f"{shown(line)}\n")
    out.flush()


def tell(line: str) -> None:
    """Writes a line to standard error."""
    say(line, sys.stderr)


_said_s = [time.monotonic()]
"""Time of the last output."""


def note_word() -> None:
    """Records output: a line was written, or a bar has moved."""
    _said_s[0] = time.monotonic()


def keep_telling(what: str) -> None:
    """Starts a thread that reports after long silences that this process is still at work.

    It writes to standard error, and only if that is a terminal.

    Args:
        what: name of the task, such as that of a stage.
    """
    if sys.stderr.isatty():
        threading.Thread(target=_keep_telling, args=(what,), name="telling", daemon=True).start()


def _keep_telling(what: str) -> None:
    started_s, patience_s = time.monotonic(), FIRST_S
    while True:
        time.sleep(max(0.1, _said_s[0] + patience_s - time.monotonic()))
        if time.monotonic() - _said_s[0] >= patience_s:
            tell(f"{what}: at work, {time.monotonic() - started_s:.0f} s")
            patience_s = AGAIN_S


class _Formatter(logging.Formatter):
    """Escapes the whole record, including its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def escape_logs(level: int = logging.WARNING) -> None:
    """Sets the log level and escapes all log messages; the process sets up no other logging."""
    logging.getLogger().setLevel(level)
    assert logging.lastResort is not None
    logging.lastResort.setLevel(level)
    logging.lastResort.setFormatter(_Formatter())
