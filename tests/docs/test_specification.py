"""The page on the specification: each of its rows says where a statement is, and why it differs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.docs.test_pages import ROOT, anchors_of, text_of

PAGE = ROOT / "docs" / "specification.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ANCHOR = re.compile(r"\[[^\]]+\]\(([\w/.-]*)#([\w-]+)\)")


class Row(NamedTuple):
    """A statement of the specification."""

    statement: str
    here: str
    where: str
    why: str


def rows_of(text: str) -> list[Row]:
    """Returns the rows of all tables of statements."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    cells = [[[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()] for table in tables]
    return [Row(*row) for header, _, *rows in cells if header[:2] == ["statement", "here"] for row in rows]


@cache
def names_in(file: Path) -> set[str]:
    """Returns the names of a module's tests; that of a state machine is assigned."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return set(re.findall(r"^(?:def )?(test_\w+)(?:\(| = )", text, re.MULTILINE))


def missing_in(where: str) -> list[str]:
    """Returns the tests and anchors in a cell that do not exist, and what is neither."""
    tests, anchors = TEST.findall(where), ANCHOR.findall(where)
    wrong = [f"{file}::{name}" for file, name in tests if name not in names_in(ROOT / file)]
    pages = [(PAGE.parent / target if target else PAGE, anchor) for target, anchor in anchors]
    wrong += [f"{page}#{anchor}" for page, anchor in pages if not page.is_file() or anchor not in anchors_of(page)]
    return wrong if len(tests) + len(anchors) == len(where.split(", ")) else [*wrong, where]


def test_every_statement_says_where_it_is_and_why_it_differs() -> None:
    rows = rows_of(text_of(PAGE))
    assert len(rows) > 150
    assert {row.here for row in rows} <= {"works", "differs", "left out", "open"}
    assert {row.statement: missing for row in rows if (missing := missing_in(row.where))} == {}
    assert [row.statement for row in rows if row.here != "works" and not row.why] == []


def test_what_is_not_there_is_missed() -> None:
    for where in ("somewhere", "`tests/docs/test_pages.py::test_no`", "[IQN](algorithms/iqn.md#no)", "[No](no.md#a)"):
        assert missing_in(where) != []
