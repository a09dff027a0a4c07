"""The list of files that only one algorithm runs; were it wrong, old work would pass for new."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rulka.agents.algorithms import ALGORITHMS
from rulka.graph import code_files
from rulka.params import Algorithm
from rulka.runtime.fingerprint import code_of

DOOR = "rulka/agents/algorithms.py"
"""The one file of all algorithms that knows those of each."""


def imported(file: Path) -> set[Path]:
    """The files of this project that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {path for name in names if (path := Path(*name.split(".")).with_suffix(".py")).is_file()}


@pytest.mark.parametrize(("algorithm", "other"), [("ppo", "iqn"), ("iqn", "ppo")])
def test_nothing_else_runs_the_files_of_one_algorithm(algorithm: Algorithm, other: Algorithm) -> None:
    own = set(code_files("train")) - set(code_of(other))
    assert own
    for file in set(code_files("train")) - own:
        if file.as_posix() != DOOR:
            assert not imported(file) & own, f"{file} runs them for {other} too: take them out of the list"


def test_every_file_is_somebodys_and_every_pattern_names_one() -> None:
    files = set(code_files("train"))
    assert set(code_of("ppo")) | set(code_of("iqn")) == files
    for pattern in (pattern for entry in ALGORITHMS.values() for pattern in entry.own_code):
        assert any(file.match(pattern) for file in files), f"{pattern} names no file any more"
