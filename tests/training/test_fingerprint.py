"""The list of files that only one algorithm runs; were it wrong, old work would pass for new."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rulka.agents.algorithms import ALGORITHMS
from rulka.graph import code_files
from rulka.params import ALGORITHM_NAMES, Algorithm
from rulka.training.racing import code_of

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


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_an_algorithm_runs_no_file_that_another_one_calls_its_own(algorithm: Algorithm) -> None:
    others = set(code_files("train")) - set(code_of(algorithm))
    assert others
    for file in code_of(algorithm):
        if file.as_posix() != DOOR:
            assert not imported(file) & others, f"{algorithm} runs them too, for {file}: take them out of `own_code`"


def test_every_file_is_somebodys_and_every_pattern_names_one() -> None:
    files = set(code_files("train"))
    assert {file for name in ALGORITHM_NAMES for file in code_of(name)} == files
    for pattern in (pattern for entry in ALGORITHMS.values() for pattern in entry.own_code):
        assert any(file.match(pattern) for file in files), f"{pattern} names no file any more"
