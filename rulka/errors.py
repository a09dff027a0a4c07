"""The base of every error that a person can act on."""

from __future__ import annotations


class UserError(ValueError):
    """Wrong input, wrong parameter or missing file: shown as one clear message, without a traceback.

    Attributes:
        hint: what to do about it, or an empty text when the message says so itself.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def for_people(self) -> str:
        """Returns the message, followed by the hint where there is one."""
        return f"{self}\n  {self.hint}" if self.hint else str(self)
