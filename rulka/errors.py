"""The base of every error that a person can act on, and how messages count."""

from __future__ import annotations


class UserError(ValueError):
    """Wrong input, wrong parameter or missing file: shown as one clear message, without a traceback.

    Attributes:
        hint: what to do about it, or an empty text when the message says so itself.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # for who meets it in Python

    def for_people(self) -> str:
        """Returns the message, followed by the hint where there is one."""
        return f"{self}\n  {self.hint}" if self.hint else str(self)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, whose plural ends in s: "1 ghost", "2 ghosts"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
