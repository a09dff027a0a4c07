"""What pydantic found wrong, in the words of a message for people."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_WORDS = {"missing": "is missing", "extra_forbidden": "is not a key that is known here", "too_short": "is empty"}
"""What pydantic says less plainly, by its type of error."""


def problems_of(error: ValidationError) -> list[str]:
    """Returns a line for each thing that is wrong: key, rule, and the value where it is not a whole section."""
    found = error.errors()
    # A list of which every item is wrong counts as empty besides.
    inner = {problem["loc"][:end] for problem in found for end in range(len(problem["loc"]))}
    return [_problem(problem) for problem in found if problem["type"] != "too_short" or problem["loc"] not in inner]


def _problem(problem: ErrorDetails) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    value, rule = problem["input"], problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if problem["type"] in _WORDS:
        return f"{key} {_WORDS[problem['type']]}"
    is_shown = problem["type"] != "value_error" and not isinstance(value, dict)
    text = f"{rule} (got {value!r:.80})" if is_shown else rule
    return f"{key}: {text}" if key else text
