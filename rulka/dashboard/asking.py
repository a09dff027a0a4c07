"""How pages ask: an answer or what is wrong, in words; and dear questions not more often than is of use."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

from rulka.errors import UserError

Value = TypeVar("Value")


class Problem(NamedTuple):
    """Why something cannot be shown, and what to do about it."""

    text: str
    hint: str = ""


class Answer(NamedTuple):
    """What was found; or, with `value` None, why nothing was."""

    value: Any = None
    problem: Problem | None = None


def ask(question: Callable[[], Any]) -> Answer:
    """Returns what a function returns; where it raises what a person can act on, that in words."""
    try:
        return Answer(question())
    except UserError as error:
        return Answer(problem=Problem(str(error), error.hint))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return Answer(problem=Problem(f"{where}{error.strerror or error}", "`rulka doctor` looks at the folder."))


class Remembered(Generic[Value]):
    """An answer that is asked for anew when it is older than some seconds; whoever asks meanwhile waits for that.

    Args:
        question: asked without arguments.
        lasts_s: how long an answer holds.
    """

    def __init__(self, question: Callable[[], Value], lasts_s: float) -> None:
        self._question, self._lasts_s, self._lock = question, lasts_s, Lock()
        self._known: tuple[float, Value] | None = None

    def __call__(self) -> Value:
        """Returns the answer."""
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > self._lasts_s:
                value = self._question()
                self._known = time.monotonic(), value
            return self._known[1]
