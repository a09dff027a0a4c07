"""Descriptions of parameters: each can be read alone, as `rulka params list KEY`, editors and the site show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from rulka.params import Params
from rulka.simulator.race_settings import RaceSettings
from rulka.study.plan import ExperimentFile
from rulka.study.population import PopulationFile
from rulka.study.turn import Order, Result

ROOTS = (Params, RaceSettings, ExperimentFile, PopulationFile, Order, Result)
DANGLING = re.compile(
    r"(the same|about|above|after|against|along|among|and|as|at|because|before|behind|below|beside|between|beyond|but|"
    r"by|during|for|from|how|if|in|into|it|its|of|off|on|or|over|since|so|such|than|that|their|them|then|these|they|this|"
    r"those|through|to|under|until|what|when|where|whether|which|while|who|whose|why|with|within|without)\b(?!-)",
    re.IGNORECASE,
)
"""First words that lean on something outside the sentence."""
UNITS = {
    "ms": r"\bms\b|milliseconds?",
    "s": r"\bseconds?\b|\bper m/s\b",
    "minutes": r"\bminutes\b",
    "m": r"\bmetres?\b|\baxle distances\b",
    "mps": r"\bm/s\b",
    "mps2": r"\bm/s2\b",
    "per_s": r"\bper second\b|\bper m/s\b",
    "rps": r"\brad/s\b",
    "rpm": r"\brpm\b",
    "deg": r"\bdegrees\b",
    "pixels": r"\bpixels\b",
    "height": r"\bpixels\b|\bmetres\b",
    "width": r"\bpixels\b|\bWidth of\b|\bFactor\b",
    "steps": r"\b([Ss]teps|[Dd]ecisions)\b",
}
"""Ends of names that stand for a quantity, longest first where one ends in another, and their units in words."""


def sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the classes of sections in a type: none, one, or each kind."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections(part)


def described(section: type[BaseModel], inside: str) -> Iterator[tuple[str, str]]:
    """Yields every key of a section of any kind, with its description."""
    for name, field in section.model_fields.items():
        yield f"{inside}{name}", field.description or ""
        for each in sections(field.annotation):
            yield from described(each, f"{inside}{name}.")


ALL = [pair for root in ROOTS for pair in described(root, "" if root is Params else f"{root.__name__}.")]


def unit_of(name: str) -> str | None:
    """Returns the pattern of the longest unit that ends a name; None if there is none."""
    ends = [unit for unit in UNITS if name == unit or name.endswith(f"_{unit}")]
    return UNITS[max(ends, key=len)] if ends else None


def test_every_description_is_a_sentence_or_a_noun_phrase() -> None:
    assert len(ALL) > 500
    wrong = [f"{key}: {text}" for key, text in ALL if not re.fullmatch(r"[A-Z].*[^.]\.", text)]
    assert wrong == [], "begins with a capital letter and ends with one full stop"


def test_no_description_begins_in_mid_sentence() -> None:
    assert [f"{key}: {text}" for key, text in ALL if DANGLING.match(text)] == []


def test_descriptions_of_quantities_name_their_unit() -> None:
    ends = [(key, text, unit_of(key.rpartition(".")[2])) for key, text in ALL]
    assert sum(unit is not None for _, _, unit in ends) > 100
    assert [f"{key}: {text}" for key, text, unit in ends if unit and not re.search(unit, text)] == []


def test_a_description_belongs_to_one_name() -> None:
    """Keys of one name may share it: a section of several algorithms, or a type."""
    names: dict[str, set[str]] = {}
    for key, text in ALL:
        names.setdefault(text, set()).add(key.rpartition(".")[2])
    assert {text: shared for text, shared in names.items() if len(shared) > 1} == {}
