"""Every parameter is read by some code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from rulka.agents.params import ALGORITHM_NAMES
from rulka.params import Params
from rulka.tracks.params import TrackParams

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flows", "tasks", "rulka", "models")


def sections_below(section: type[BaseModel]) -> set[type[BaseModel]]:
    annotations = (field.annotation for field in section.model_fields.values())
    parts = (part for annotation in annotations for part in (annotation, *get_args(annotation)))
    inner = (part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return {section}.union(*(sections_below(each) for each in inner))


def reads(node: ast.AST) -> Iterator[str]:
    """Yields the names of all attributes that code reads, but for what refuses impossible combinations."""
    if isinstance(node, ast.FunctionDef) and "impossible" in node.name:
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from reads(child)


def test_every_parameter_is_read() -> None:
    """As an attribute, and not only where combinations are refused.

    An attribute of the same name elsewhere can hide a key that nothing reads; a misspelt reader, basedpyright finds.
    """
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if file.name != "sections.py")
    read = {name for file in files for name in reads(ast.parse(file.read_text(encoding="utf-8")))}
    unread = {
        f"{section.__name__}.{name}"
        for section in sections_below(Params) - {TrackParams}  # whose keys are the arguments of `generate_track`
        for name in section.model_fields
        if name not in read and name not in ALGORITHM_NAMES  # these are looked up by the algorithm's name
    }
    assert sorted(unread) == []
