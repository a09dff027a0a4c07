"""The base class of errors that the user can act on, and counted nouns for messages."""

from __future__ import annotations


class UserError(ValueError):
    """Wrong input, wrong parameter or missing file: shown as one clear message, without a traceback.

    Attributes:
        hint: the remedy; empty if the message gives it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # for tracebacks in Python

    def for_people(self) -> str:
        """Returns the message, followed by any hint."""
        return f"{self}\n  {self.hint}" if self.hint else str(self)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, whose plural ends in s: "1 ghost", "2 ghosts"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
