r"""The one place where text reaches a terminal: what a terminal would obey in it is written as an escape.

Names of files, players and tracks come from strangers. As `\u001b` they are harmless, in JSON as well as in a line.
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
"""After so long without a word somebody at a terminal is told that something is at work."""
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: control characters, marks of direction, halves of characters, ends of lines and paragraphs."""


def shown(text: str) -> str:
    """Returns text as it may be written: ends of lines and tabs stay."""
    return "".join(
        json.dumps(char)[1:-1] if category(char) in _OBEYED and char not in "\n\t" else char for char in text
    )


def say(line: str, stream: TextIO | None = None) -> None:
    """Writes a line, to standard output when no stream is named, and at once."""
    note_word()
    out = stream or sys.stdout
    out.write(f"{shown(line)}\n")
    out.flush()


def tell(line: str) -> None:
    """Writes a line to standard error."""
    say(line, sys.stderr)


_said_s = [time.monotonic()]
"""When something was written last."""


def note_word() -> None:
    """Notes that something is written now, or that a bar has moved."""
    _said_s[0] = time.monotonic()


def keep_telling(what: str) -> None:
    """Tells on standard error, where that is a terminal, that this process is at work, whenever it is silent for long.

    Args:
        what: it does, such as the name of a stage.
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
    """Escapes all of a record, its traceback too."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def escape_logs(level: int = logging.WARNING) -> None:
    """Escapes what is logged, from a level on; the process sets up no other logging."""
    logging.getLogger().setLevel(level)
    assert logging.lastResort is not None
    logging.lastResort.setLevel(level)
    logging.lastResort.setFormatter(_Formatter())
