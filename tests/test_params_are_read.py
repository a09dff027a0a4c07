"""Every parameter is read by code that is known to hold its section, not just by something of the same name.

A small inference over syntax trees: annotations, assignments, fields of sections and of our classes say which section
an expression is. What it does not understand counts as not read, so that it can only be too strict. Validators do not
count: a parameter that is checked and used by nothing does nothing.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from rulka.params import ALGORITHM_NAMES, Params, Section

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flows", "tasks", "rulka", "models")
VALIDATING = {
    "_check",
    "_check_range",
    "_check_game",
    "_check_starts",
    "_impossible",
    "impossible",
    "_impossible_for_iqn",
}
"""Functions of `rulka.params` that refuse combinations."""

Names = frozenset[str]
NONE: Names = frozenset()


def held_by(annotation: object) -> list[type[BaseModel]]:
    parts = (annotation, *get_args(annotation))
    return [each for each in parts if isinstance(each, type) and issubclass(each, BaseModel)]


def sections_below(section: type[BaseModel]) -> set[type[BaseModel]]:
    inner = [each for field in section.model_fields.values() for each in held_by(field.annotation)]
    return {section}.union(*(sections_below(each) for each in inner))


SECTIONS = {
    each.__name__: each
    for section in sections_below(Params)
    for each in section.mro()
    if issubclass(each, BaseModel) and each not in (Section, BaseModel)
}
HOLDS = {
    (name, field): frozenset(each.__name__ for each in held_by(info.annotation))
    for name, section in SECTIONS.items()
    for field, info in section.model_fields.items()
}


def named_in(annotation: ast.expr | None) -> Names:
    """Sections that an annotation names, or that its type variables are bound to."""
    found = ast.walk(annotation) if annotation is not None else ()
    names = (bounds().get(node.id, node.id) for node in found if isinstance(node, ast.Name))
    return frozenset(name for name in names if name in SECTIONS)


@cache
def bounds() -> dict[str, str]:
    """Sections that type variables are bound to."""
    return {
        target.id: keyword.value.id
        for tree in trees()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target, keyword in itertools.product(node.targets, node.value.keywords)
        if isinstance(target, ast.Name) and isinstance(keyword.value, ast.Name) and keyword.arg == "bound"
    }


@cache
def generic_attributes() -> frozenset[str]:
    """Attributes that classes annotate by such a variable."""
    return frozenset(
        part.target.id
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        if isinstance(part.annotation, ast.Name) and part.annotation.id in bounds()
    )


class Reads(ast.NodeVisitor):
    """Gathers (section, field) of what the code of one file reads.

    Attributes:
        found: so far.
    """

    def __init__(self, fields: dict[str, Names], results: dict[str, Names]) -> None:
        self.found: set[tuple[str, str]] = set()
        self._fields, self._results = fields, results
        self._own: dict[str, Names] = {}  # attributes that this file assigns
        self._scope: dict[str, Names] = {}

    def section_of(self, node: ast.expr) -> Names:
        """What an expression is; empty where that is not known."""
        match node:
            case ast.Name(id=name):
                return self._scope.get(name, NONE)
            case ast.Attribute(value=value, attr=name):
                inside = self.section_of(value)
                held = NONE.union(*(HOLDS.get((section, name), NONE) for section in inside))
                return held or self._own.get(name) or self._fields.get(name, NONE)
            case ast.Call(func=ast.Attribute(value=value, attr="model_copy")):
                return self.section_of(value)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return self._results.get(name, NONE)
        return NONE

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._scope
        told = NONE.union(*(named_in(base) for base in node.bases if isinstance(base, ast.Subscript)))
        if told and not told & set(bounds().values()):  # it says what the attributes of its generic base hold
            self._own |= dict.fromkeys(generic_attributes(), told)
        self._scope = outer | ({"self": frozenset({node.name})} if node.name in SECTIONS else {})
        self.generic_visit(node)
        self._scope = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in VALIDATING:
            return
        outer = self._scope
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        taken = {argument.arg: named_in(argument.annotation) for argument in arguments if argument.annotation}
        self._scope = outer | taken
        self.generic_visit(node)
        self._scope = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self._scope[node.target.id] = named_in(node.annotation)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                for each in zip(targets, values, strict=False):
                    self._assign(*each)
            case ast.Name(id=name), _:
                self._scope[name] = self.section_of(value)
            case ast.Attribute(attr=name), _ if self.section_of(value):
                self._own[name] = self._own.get(name, NONE) | self.section_of(value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            self.found |= {(section, node.attr) for section in self.section_of(node.value)}

    def visit_Call(self, node: ast.Call) -> None:
        """A section unpacked into arguments is read whole, and one whose values are all looked at."""
        self.generic_visit(node)
        unpacked = [keyword.value for keyword in node.keywords if keyword.arg is None]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "values":
            unpacked.append(node.func.value)
        for value in unpacked:
            match value:
                case ast.Call(func=ast.Attribute(value=section, attr="model_dump")):
                    names = self.section_of(section)
                    self.found |= {(name, field) for name in names for field in SECTIONS[name].model_fields}


@cache
def trees() -> tuple[ast.Module, ...]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return tuple(ast.parse(file.read_text(encoding="utf-8")) for file in files)


@cache
def declared() -> tuple[dict[str, Names], dict[str, Names]]:
    """Sections that fields of our classes hold, and that functions return, by name."""
    fields: dict[str, Names] = {}
    results: dict[str, Names] = {name: frozenset({name}) for name in SECTIONS}
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and node.name not in SECTIONS:
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    name = part.target.id
                    fields[name] = fields.get(name, NONE) | named_in(part.annotation)
        elif isinstance(node, ast.FunctionDef) and named_in(node.returns):
            results[node.name] = results.get(node.name, NONE) | named_in(node.returns)
    return fields, results


def reads_of(sources: Iterable[ast.Module]) -> set[tuple[str, str]]:
    """Every (section, field) that is read in some files."""
    fields, results = declared()
    found: set[tuple[str, str]] = set()
    for tree in sources:
        reads = Reads(fields, results)
        reads.visit(tree)  # twice: methods may use what a later `__init__` assigns
        reads.visit(tree)
        found |= reads.found
    return found


def test_every_parameter_is_read_by_code_that_holds_its_section() -> None:
    found = reads_of(trees())
    families = [
        (each.__name__, each) for section in SECTIONS.values() for each in section.mro() if issubclass(each, BaseModel)
    ]
    unread = [
        f"{name}.{field}"
        for name, section in SECTIONS.items()
        for field in section.model_fields
        if field != "kind"  # which tells classes apart
        if field not in ALGORITHM_NAMES  # looked up by the algorithm's name; what such a section holds is checked
        # A base class reads for those that are derived from it, and these read what they have from it.
        if not any(
            (each, field) in found
            for each, other in families
            if other not in (Section, BaseModel) and (issubclass(other, section) or issubclass(section, other))
        )
    ]
    assert sorted(unread) == []


@pytest.mark.parametrize(
    ("source", "is_read"),
    [
        ("def f(clone: CloneParams): return clone.epochs", True),
        ("def f(params: Params): return params.clone.epochs", True),
        ("def f(params: Params):\n    part = params.clone\n    return part.epochs", True),
        ("def f(params: Params): return g(**params.clone.model_dump())", True),
        ("class A:\n    def g(self): return self._p.epochs\n    def __init__(self, c: CloneParams): self._p = c", True),
        ("def f(ppo: PpoParams): return ppo.epochs", False),
        ("def f(history): return history.epochs", False),
        ("epochs = 5\nprint(epochs)", False),
        ("class CloneParams:\n    def _check(self): return self.epochs", False),
        ("def f(clone: CloneParams): return clone.model_dump()", False),
    ],
)
def test_what_counts_as_read(source: str, is_read: bool) -> None:
    assert (("CloneParams", "epochs") in reads_of([ast.parse(source)])) == is_read
