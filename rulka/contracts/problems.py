"""Readable messages for pydantic validation errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_WORDS = {"missing": "is missing", "union_tag_not_found": ".kind is missing", "too_short": "is empty"}
"""Replacement messages, keyed by pydantic's error type."""
_MANY = 3
"""If this many sections or more have a key of the same name, none is suggested."""


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Returns one line per problem: key, rule, and the value unless it is a whole section.

    Args:
        error: the validation error.
        root: the validated class, whose fields are the outermost keys.
    """
    found = error.errors()
    # If every item of a list is wrong, pydantic also reports the list as empty.
    inner = {problem["loc"][:end] for problem in found for end in range(len(problem["loc"]))}
    return [
        _problem(problem, root) for problem in found if problem["type"] != "too_short" or problem["loc"] not in inner
    ]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean ...?" with the known name most similar to an unknown one; empty if none is similar."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _problem(problem: ErrorDetails, root: type[BaseModel]) -> str:
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    keys, sections = _walk(root, problem["loc"])
    key = ".".join(keys)
    if kind == "extra_forbidden":
        return _unknown(keys, sections, root)
    if kind == "union_tag_invalid":
        names = " or ".join(context["expected_tags"].rsplit(", ", 1))
        return f"{key}.kind: must be {names} (got {context['tag']!r:.80})"
    if kind in _WORDS:
        return f"{key}{'' if _WORDS[kind].startswith('.') else ' '}{_WORDS[kind]}"
    rule = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    rule = re.sub(r" or instance of \w+", "", rule)  # names an internal class
    is_shown = kind != "value_error" and not isinstance(value, dict)
    text = f"{rule} (got {value!r:.80})" if is_shown else rule
    return f"{key}: {text}" if key else text


def _unknown(keys: list[str], sections: list[type[BaseModel]], root: type[BaseModel]) -> str:
    """Returns the message for an unknown key, suggesting the same key of another section or a similar key here."""
    key, name = ".".join(keys), keys[-1]
    for section in sections:
        if new := getattr(section, "RENAMED", {}).get(name):
            return f"{key} was renamed: use {'.'.join([*keys[:-1], new])}"
    known = list(dict.fromkeys(field for section in sections for field in section.model_fields))
    places = [place for place in dict.fromkeys(_places(root)) if place.rpartition(".")[2] == name]
    outermost = min((place.count(".") for place in places), default=0)
    elsewhere = [place for place in places if place.count(".") == outermost]
    if key in places:
        return f"{key} is a key of another kind of {'.'.join(keys[:-1])}: this one has {', '.join(known)}"
    text = f"{key} is not a key that is known here"
    if 0 < len(elsewhere) < _MANY:
        return f"{text}; did you mean {' or '.join(elsewhere)}?"
    close = did_you_mean(name, known)
    return f"{text}{close}" if close else f"{text}; known are {', '.join(known)}"


def _walk(root: type[BaseModel], location: tuple[int | str, ...]) -> tuple[list[str], list[type[BaseModel]]]:
    """Returns the keys of a location as in the file, and the section classes that the last key belongs to.

    For a section of several kinds, pydantic inserts the kind among the keys. A section that is not discriminated by its
    kind can have more than one class.
    """
    keys: list[str] = []
    holders: list[type[BaseModel]] = []
    inside: list[type[BaseModel]] = [root]
    is_tagged = False
    for part in location:
        if is_tagged:
            is_tagged = False
            inside = [each for each in inside if part in get_args(each.model_fields["kind"].annotation)]
            continue
        keys.append(str(part))
        holders, fields = inside, [each.model_fields[part] for each in inside if part in each.model_fields]
        inside = [section for field in fields for section in _sections(field.annotation)]
        is_tagged = any(field.discriminator is not None for field in fields)
    return keys, holders


def _places(section: type[BaseModel], inside: str = "") -> Iterator[str]:
    """Yields the full dotted path of every possible key of a section."""
    for name, field in section.model_fields.items():
        yield f"{inside}{name}"
        for each in _sections(field.annotation):
            yield from _places(each, f"{inside}{name}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    parts = (annotation, *get_args(annotation))
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
