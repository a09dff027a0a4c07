"""What one look of the doctor gives: a state, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rulka.errors import UserError

MOST_NAMED = 5


class State(StrEnum):
    """How something was found."""

    OK = "ok"
    NOTE = "note"
    """Nothing that a run stops at, but worth knowing."""
    WRONG = "wrong"
    """A run fails at it, or its results are not those of these parameters and pins."""
    UNKNOWN = "unknown"
    """It could not be looked at; that says nothing of the others."""


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        state: how it was found.
        text: what was found.
        to_do: what to do about it; empty where there is nothing to do.
    """

    name: str
    state: State
    text: str
    to_do: str = ""

    def to_json(self) -> dict[str, str]:
        """Returns all but the name."""
        return {"state": self.state.value, "text": self.text, "to_do": self.to_do}

    def describe(self) -> str:
        """Returns it as a line for people, and a second one where there is something to do."""
        label = "WRONG" if self.state is State.WRONG else self.state.value
        return f"{label:<7} {self.name}: {self.text}" + (f"\n        to do: {self.to_do}" if self.to_do else "")


def named(words: Sequence[str]) -> str:
    """Returns the first words, and how many more there are."""
    rest = len(words) - MOST_NAMED
    return ", ".join(words[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


Look = Callable[[], Finding | list[Finding]]
"""Looks at something; where it raises, that is what was found."""


def looked_at(name: str, look: Look) -> list[Finding]:
    """Returns what a look gives; whatever it raises becomes a finding, so that the others are still looked at.

    Args:
        name: of that finding.
        look: does the looking. A UserError of it says what is wrong; any other exception is the look's own failure.
    """
    try:
        found: Any = look()
    except UserError as error:
        return [Finding(name, State.WRONG, str(error), error.hint)]
    except Exception as error:  # a broken machine raises whatever it likes, and this is where one looks at it
        return [Finding(name, State.UNKNOWN, f"not looked at: {type(error).__name__}: {' '.join(str(error).split())}")]
    return [found] if isinstance(found, Finding) else found
